"""A slot with a server, a reader over a link that can lose messages, and a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_core.version import Version
from rollbus_core.weights.encoding import decode
from rollbus_core.weights.server import WeightServer
from rollbus_core.weights.shm import WeightReader, WeightWriter
from rollbus_core.weights.stream import Arrived, StreamReader
from rollbus_wire.link import Envelope, Link, local_pair
from rollbus_wire.messages import Message, Notice


class Filtered(Link):
    """A link whose arrivals pass ``let``: the message itself, another one, or None for a loss."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link
        self.let: Callable[[Message], Message | None] = lambda message: message

    def send(self, message: Message, to: bytes = b"", re: int = 0, id: int = 0) -> int:
        return self.link.send(message, to, re, id)

    def recv(self) -> Envelope | None:
        while (envelope := self.link.recv()) is not None:
            message = self.let(envelope.message)
            if message is not None:
                envelope.message = message
                return envelope
        return None

    def close(self) -> None:
        self.link.close()


class World:
    """One learner's slot, its server and one reader elsewhere."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.writer = WeightWriter(folder / "weights-policy")
        self.source = WeightReader(folder / "weights-policy")
        self.now = 0.0
        server_end, reader_end = local_pair()
        self.server = WeightServer(self.source, server_end)
        self.link = Filtered(reader_end)
        self.reader = StreamReader(self.link, "policy", clock=lambda: self.now, **options)
        self.number = 0

    def publish(self, tensors: dict[str, np.ndarray]) -> Notice:
        self.number += 1
        notice = self.writer.publish((0, self.number), tensors)
        assert notice is not None
        self.server.offer(notice)
        self.reader.want(Version.of(notice.version))
        return notice

    def restart_server(self) -> None:
        """A new process serves the same slot."""
        notice = self.server._notice
        server_end, reader_end = local_pair()
        self.server = WeightServer(self.source, server_end)
        if notice is not None:
            self.server.offer(notice)
        self.link.link = reader_end

    def turn(self, seconds: float = 0.01) -> Arrived | None:
        arrived = self.reader.poll()
        self.server.poll()
        self.now += seconds
        return arrived

    def fetch(self, turns: int = 3000) -> dict[str, np.ndarray]:
        """Turn until a version is whole; its tensors."""
        for _ in range(turns):
            arrived = self.turn()
            if arrived is not None:
                return decode(arrived.image)
        raise AssertionError(f"nothing came whole: {self.reader.last_problem}")


def policy(seed: int = 0, size: int = 400_000) -> dict[str, np.ndarray]:
    """A policy of about 1.7 MB: seven chunks."""
    rng = np.random.default_rng(seed)
    return {
        "base.w": rng.standard_normal(size).astype(np.float32).reshape(-1, 100),
        "lora.a": rng.standard_normal((50, 4)).astype(np.float32),
        "steps": np.array(seed, np.int64),
    }


def changed(tensors: dict[str, np.ndarray], share: float = 0.01, seed: int = 9) -> dict[str, np.ndarray]:
    """``tensors`` with a share of ``base.w`` moved."""
    new = {name: value.copy() for name, value in tensors.items()}
    mask = np.random.default_rng(seed).random(new["base.w"].shape) < share
    new["base.w"][mask] += 0.5
    return new


def equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        found[n].dtype == v.dtype and np.array_equal(found[n], v) for n, v in expected.items()
    )
