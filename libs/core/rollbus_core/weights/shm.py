"""A weight slot in shared memory: three buffer files, written in turn (docs/protocol.md, "Weights").

A buffer is a 64-byte header (magic, generation, length, lineage, number), then one image. Writer and
readers keep out of each other's way by `flock`, which the kernel drops when a process dies. While a
buffer is being written its header says length 0, so that a writer killed in mid-copy leaves a buffer
that nobody takes for a version.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rollbus_core.version import Version
from rollbus_wire.errors import SharedMemoryFull, StaleRead
from rollbus_wire.messages import Notice

NUM_BUFFERS = 3
HEADER_BYTES = 64
_MAGIC = b"RBWEIGHT"
_HEADER = struct.Struct("<8sQQQQ")


class Header(NamedTuple):
    """What stands at the beginning of a buffer."""

    magic: bytes = _MAGIC
    generation: int = 0
    length: int = 0
    lineage: int = 0
    number: int = 0

    @classmethod
    def read(cls, descriptor: int) -> Header:
        """The header of an open buffer; an empty one if the file holds none."""
        data = os.pread(descriptor, _HEADER.size, 0)
        header = cls(*_HEADER.unpack(data)) if len(data) == _HEADER.size else cls()
        return header if header.magic == _MAGIC else cls()

    def write(self, descriptor: int) -> None:
        """Put it at the beginning of an open buffer."""
        os.pwrite(descriptor, _HEADER.pack(*self), 0)


def buffer_path(prefix: Path, buffer: int) -> Path:
    """The file of one buffer of the slot ``prefix``."""
    return prefix.with_name(f"{prefix.name}.{buffer}")


class WeightWriter:
    """The learner's end. There is one writer per slot; a successor adopts the files."""

    def __init__(self, prefix: Path, num_bytes: int = 0, policy: str = "") -> None:
        """Take room for images of ``num_bytes``; a larger one later makes the buffers grow.

        ``policy`` names the slot in notices; by default it is what follows "-" in ``prefix``.
        Raises `SharedMemoryFull`.
        """
        self.prefix = prefix
        self.policy = policy or prefix.name.partition("-")[2] or prefix.name
        self.publishes_skipped = 0
        self._descriptors = [
            os.open(buffer_path(prefix, i), os.O_RDWR | os.O_CREAT, 0o600) for i in range(NUM_BUFFERS)
        ]
        for descriptor in self._descriptors:
            self._reserve(descriptor, num_bytes)
        generations = [Header.read(d).generation for d in self._descriptors]
        self._generation = max(generations)
        self._newest = generations.index(self._generation) if self._generation else -1

    def publish(self, version: Sequence[int], image: bytes) -> Notice | None:
        """Write ``image`` as ``version``; None, and one more ``publishes_skipped``, if no buffer is free."""
        for step in range(1, NUM_BUFFERS):
            # In turn, so that the version before the newest stays readable for late readers.
            buffer = (self._newest + step) % NUM_BUFFERS
            if not self._lock(self._descriptors[buffer]):
                continue
            try:
                return self._write(buffer, Version.of(version), image)
            finally:
                fcntl.flock(self._descriptors[buffer], fcntl.LOCK_UN)
        self.publishes_skipped += 1
        return None

    def close(self) -> None:
        """Give the files back; they stay readable."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _write(self, buffer: int, version: Version, image: bytes) -> Notice:
        descriptor = self._descriptors[buffer]
        generation = self._generation + 1
        Header(generation=generation).write(descriptor)
        self._reserve(descriptor, len(image))
        _write_all(descriptor, image)
        Header(_MAGIC, generation, len(image), *version).write(descriptor)
        self._generation, self._newest = generation, buffer
        return Notice(
            policy=self.policy, version=list(version), buffer=buffer, generation=generation,
            digest=zlib.crc32(image), num_bytes=len(image), slot=self.prefix.name,
        )  # fmt: skip

    def _reserve(self, descriptor: int, num_bytes: int) -> None:
        # Pages are taken now: a full memory is an error here and not a bus error while copying.
        try:
            os.posix_fallocate(descriptor, 0, HEADER_BYTES + num_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise SharedMemoryFull(
                f"no room for weights of {num_bytes >> 10} KiB x {NUM_BUFFERS} in {self.prefix.parent}: "
                f"{error.strerror}; free memory there, give it more (docker: --shm-size), or set "
                "ROLLBUS_RUNTIME_DIR"
            ) from None

    @staticmethod
    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class WeightReader:
    """An actor's end. It never blocks: a buffer that is being written is stale anyway."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix

    def read(self, notice: Notice) -> bytes:
        """A copy of the image that ``notice`` names; raises `StaleRead` unless it is there whole."""
        with self.pin(notice) as descriptor:
            image = _read_all(descriptor, notice.num_bytes)
            self._check(descriptor, notice)
        digest = zlib.crc32(image)
        if digest != notice.digest:
            raise StaleRead(
                f"weights {Version.of(notice.version)} in {self.prefix.name}.{notice.buffer}: CRC-32 is "
                f"{digest:08x}, the notice says {notice.digest:08x}; the old version stays"
            )
        return image

    @contextlib.contextmanager
    def pin(self, notice: Notice) -> Iterator[int]:
        """Hold the buffer that ``notice`` names against the writer; gives its descriptor."""
        if not 0 <= notice.buffer < NUM_BUFFERS:
            raise StaleRead(f"notice names buffer {notice.buffer} of {NUM_BUFFERS}")
        try:
            descriptor = os.open(buffer_path(self.prefix, notice.buffer), os.O_RDONLY)
        except FileNotFoundError:
            raise StaleRead(f"weight slot {self.prefix} has no buffer {notice.buffer}") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StaleRead(f"{self.prefix.name}.{notice.buffer} is being written again") from None
            self._check(descriptor, notice)
            yield descriptor
        finally:
            os.close(descriptor)

    def _check(self, descriptor: int, notice: Notice) -> None:
        header = Header.read(descriptor)
        expected = Header(_MAGIC, notice.generation, notice.num_bytes, *Version.of(notice.version))
        if header != expected:
            raise StaleRead(
                f"{self.prefix.name}.{notice.buffer} holds generation {header.generation} (version "
                f"{header.lineage}.{header.number}, {header.length} bytes), the notice names "
                f"{notice.generation} (version {Version.of(notice.version)}, {notice.num_bytes} bytes)"
            )


def _write_all(descriptor: int, image: bytes) -> None:
    view, done = memoryview(image), 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], HEADER_BYTES + done)


def _read_all(descriptor: int, num_bytes: int) -> bytes:
    parts, done = [], 0
    while done < num_bytes:
        part = os.pread(descriptor, num_bytes - done, HEADER_BYTES + done)
        if not part:
            raise StaleRead(f"the buffer ends after {done} of {num_bytes} bytes")
        parts.append(part)
        done += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
