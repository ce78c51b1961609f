"""Real services on links that a fuzz target feeds: bytes go through the same checks as from a socket."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq
from harness import Bytes, mutated

from rollbus_wire.codec import pack
from rollbus_wire.errors import PeerLost, RollbusError, WireError
from rollbus_wire.limits import MAX_ELEMENTS_ASKED
from rollbus_wire.link import Envelope
from rollbus_wire.messages import PROTOCOL, Message
from rollbus_wire.zmq_link import ZmqLink

#: Pollers want one; it is never connected.
_NO_SOCKET = zmq.Context.instance().socket(zmq.DEALER)


class Silent:
    """A logger that says nothing."""

    def info(self, event: str, **fields: Any) -> None:
        """Drop it."""

    warning = error = info


class FedLink(ZmqLink):
    """A `ZmqLink` whose frames come from a list instead of a socket; what is sent is packed and dropped."""

    def __init__(self, *, bound: bool = True, run: str = "") -> None:
        super().__init__(_NO_SOCKET, run, "fuzzed")
        self.bound, self.endpoint, self._max_elements = bound, "fuzzed", MAX_ELEMENTS_ASKED
        self.frames: list[list[bytes]] = []
        self.sent: list[Message] = []

    def keep_alive(self) -> None:
        """There is nobody to dial anew."""

    def feed(self, *frames: bytes) -> None:
        """One arrival, without its routing frame."""
        self.frames.append(list(frames))

    def say(self, message: Message, id: int = 0, re: int = 0, body: dict[str, Any] | None = None) -> None:
        """A message of the other side, well formed unless ``body`` says other fields."""
        fields = {k: v for k, v in message.__dict__.items() if v is not None} if body is None else body
        header = {
            "v": PROTOCOL[0],
            "k": message.kind,
            "run": "",
            "id": id,
            "re": re,
            "from": "f",
            "b": fields,
        }
        self.feed(*[bytes(frame) for frame in pack(header)])

    def recv(self) -> Envelope | None:
        while self.frames or self.waiting:
            frames, peer = self._next()
            try:
                return self._open(frames, peer)
            except WireError as error:
                self.rejects.add(error, b"", "fuzzed")
        return None

    def _receive(self) -> list[bytes]:
        return [b"peer", *self.frames.pop(0)] if self.bound else self.frames.pop(0)

    def send(self, message: Message, to: bytes = b"", re: int = 0, id: int = 0) -> int:
        from rollbus_wire.messages import to_data

        pack(to_data(message))
        self.sent.append(message)
        del self.sent[:-64]
        return id or next(self._ids)

    def close(self) -> None:
        """Nothing is open."""


def say_mutated(link: FedLink, examples: Sequence[Message], data: Bytes) -> None:
    """One of ``examples`` with fuzzed fields, or raw bytes as its frames."""
    number = data.number(len(examples) + 1)
    if number == len(examples):
        link.feed(data.rest())
        return
    message = examples[number]
    try:
        link.say(message, id=data.number(256), re=data.number(8), body=mutated(message, data))
    except (WireError, OverflowError, ValueError):
        return  # nobody can send this


def folder() -> Path:
    """A new folder in memory that goes with the process."""
    path = Path(
        tempfile.mkdtemp(prefix="rollbus-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    )
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


__all__ = ["FedLink", "PeerLost", "RollbusError", "Silent", "folder", "say_mutated"]
