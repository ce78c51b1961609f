"""Weights on a host without the learner: fetched once, read by all actors there.

Every actor of the host has a `WeightRelay` on one slot. The one that gets the slot's lock fetches from the
learner's server into the slot and writes the notice of what is there beside it; the others read that. When
its process dies the kernel drops the lock, and the next one goes on from what is in the slot.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from rollbus_core.version import Version
from rollbus_core.weights.encoding import decode, encode
from rollbus_core.weights.shm import WeightReader, WeightWriter
from rollbus_core.weights.stream import Arrived, StreamReader
from rollbus_wire.errors import ConfigError, StaleRead, WireError
from rollbus_wire.link import Link
from rollbus_wire.messages import Notice, from_data, to_data
from rollbus_wire.polling import Poller

#: How long a relay sleeps at most, and one that waits for the lock.
TURN_S = 0.02


class LocalNotice:
    """The file beside a slot that names what is in it. It is replaced whole; who reads it verifies the
    buffer against it, so that an old one is only stale."""

    def __init__(self, prefix: Path) -> None:
        self._path = prefix.with_name(f"{prefix.name}.notice")
        self._seen: tuple[int, int] | None = None
        self._notice: Notice | None = None

    def write(self, notice: Notice) -> None:
        """Make ``notice`` what others see."""
        temporary = self._path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(to_data(notice)))
        os.replace(temporary, self._path)

    def read(self) -> Notice | None:
        """What was written last; None if nothing was."""
        try:
            status = self._path.stat()
            if self._seen != (status.st_ino, status.st_mtime_ns):
                message = from_data("notice", json.loads(self._path.read_bytes()))
                self._notice = message if isinstance(message, Notice) else None
                self._seen = (status.st_ino, status.st_mtime_ns)
        except (FileNotFoundError, ValueError, WireError):
            return None
        return self._notice


class WeightRelay:
    """An actor's end of a slot that is filled from another host (`base.WeightSource`)."""

    def __init__(
        self, prefix: Path, connect: Callable[[str], Link], *, cast: str = "", names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """``connect`` dials the address of a notice's ``stream``, in the relay's own thread."""
        self.prefix, self._connect, self._cast, self._names = prefix, connect, cast, names
        self.reader = WeightReader(prefix)
        self._local = LocalNotice(prefix)
        self._memory: dict[str, np.ndarray] = {}
        self._wanted: Notice | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None
        #: Whether this one fetches for the host; the stream it fetches by.
        self.holds_lock = False
        self.stream: StreamReader | None = None

    def local(self, notice: Notice) -> Notice | None:
        """The newest notice of this host's slot; fetching what ``notice`` names goes on meanwhile.

        Raises what ended the relay's thread, and `ConfigError` if the learner serves no other hosts.
        """
        if self.failure is not None:
            raise self.failure
        if not notice.stream:
            raise ConfigError(
                f"this host ({self.prefix.parent}) has no memory in common with the learner, which "
                "serves no weights to others: set ROLLBUS_WEIGHTS=tcp://HOST:PORT where the learner "
                "runs (docs/security.md)"
            )
        self._wanted = notice
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="weight-relay", daemon=True)
            self._thread.start()
        return self._local.read()

    def open(self, notice: Notice) -> AbstractContextManager[Mapping[str, np.ndarray]]:
        """The tensors of a local notice; see `base.WeightSource`."""
        return self.reader.open(notice)

    def close(self) -> None:
        """Give the lock back."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5.0)

    # --- the relay's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with open(self.prefix.with_name(f"{self.prefix.name}.relay"), "w") as lock:
                if self._take(lock.fileno()):
                    self.holds_lock = True
                    self._relay()
        except BaseException as error:  # noqa: BLE001 - raised in the actor's loop by `local`
            self.failure = error

    def _take(self, lock: int) -> bool:
        """Wait until the slot's lock is held, or the end."""
        while not self._stop.is_set():
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            self._stop.wait(TURN_S)
        return False

    def _relay(self) -> None:
        writer, notice = WeightWriter(self.prefix), LocalNotice(self.prefix)
        endpoint, poller = "", Poller()
        try:
            while not self._stop.is_set():
                wanted = self._wanted
                if wanted is None:
                    self._stop.wait(TURN_S)
                    continue
                if wanted.stream != endpoint:
                    endpoint, writer.policy = wanted.stream, wanted.policy
                    self._dial(wanted, poller)
                assert self.stream is not None
                self.stream.want(Version.of(wanted.version))
                arrived = self.stream.poll()
                if arrived is not None:
                    self._publish(writer, notice, arrived)
                poller.wait(TURN_S)
        finally:
            writer.close()
            if self.stream is not None:
                self.stream.link.close()

    def _dial(self, wanted: Notice, poller: Poller) -> None:
        """Fetch where ``wanted`` says: for the first time, or from a learner that has moved."""
        link = self._connect(wanted.stream)
        poller.add(link)
        if self.stream is not None:
            self.stream.link.close()
            self.stream.reconnect(link)
            return
        self.stream = StreamReader(link, wanted.policy, cast=self._cast, names=self._names)
        found = self._local.read()
        if found is not None:
            with contextlib.suppress(StaleRead), self.reader.open(found) as tensors:
                self.stream.adopt(Version.of(found.version), encode(tensors, self._cast)[1])

    def _publish(self, writer: WeightWriter, local: LocalNotice, arrived: Arrived) -> None:
        tensors, since = decode(arrived.image, self._memory), arrived.manifest
        self._memory = tensors if self._cast else {}
        while (notice := writer.publish(arrived.version, tensors)) is None:
            if self._stop.wait(TURN_S):
                return
        notice.published_s, notice.published_mono_s, notice.boot = (
            since.published_s, since.published_mono_s, since.boot,
        )  # fmt: skip
        local.write(notice)
