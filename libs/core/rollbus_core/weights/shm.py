"""A weight slot in shared memory: three buffer files, written in turn (docs/protocol.md, "Weights").

A buffer is a 64-byte header (magic, generation, length, lineage, number), then one image. Writer and
readers keep out of each other's way by `flock`, which the kernel drops when a process dies. While a
buffer is being written its header says length 0, so that a writer killed in mid-copy leaves a buffer
that nobody takes for a version.

Both ends map the buffers once and copy straight between the mapping and their tensors: `read` and
`write` are system calls that copy at less than half the speed of memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rollbus_core.memory import room_for
from rollbus_core.version import Version
from rollbus_core.weights import digests
from rollbus_core.weights.age import stamp
from rollbus_core.weights.base import Weights
from rollbus_core.weights.copying import shared_pool
from rollbus_core.weights.image import Layout, read_layout
from rollbus_wire.errors import StaleRead
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


class _Maps:
    """Mappings of a slot's buffers, each made anew when its file has grown or is another one."""

    def __init__(self, protection: int) -> None:
        self._protection = protection
        self._maps: dict[int, tuple[tuple[int, int], np.ndarray]] = {}

    def image(self, buffer: int, descriptor: int, num_bytes: int) -> np.ndarray:
        """The image of an open buffer, uint8 [num_bytes]; raises `StaleRead` if the file is shorter."""
        status = os.fstat(descriptor)
        # Touching a page behind the end of the file would be a bus error.
        if status.st_size < HEADER_BYTES + num_bytes:
            raise StaleRead(f"buffer {buffer} has {status.st_size} bytes, its image needs {num_bytes}")
        file, data = self._maps.get(buffer, ((0, 0), np.empty(0, np.uint8)))
        if file != (status.st_dev, status.st_ino) or data.size < HEADER_BYTES + num_bytes:
            mapped = mmap.mmap(descriptor, status.st_size, mmap.MAP_SHARED, self._protection)
            # The mapping lives as long as an array views it.
            data = np.frombuffer(mapped, np.uint8)
            self._maps[buffer] = ((status.st_dev, status.st_ino), data)
        return data[HEADER_BYTES : HEADER_BYTES + num_bytes]


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
        self._maps = _Maps(mmap.PROT_READ | mmap.PROT_WRITE)
        self._descriptors = [
            os.open(buffer_path(prefix, i), os.O_RDWR | os.O_CREAT, 0o600) for i in range(NUM_BUFFERS)
        ]
        for descriptor in self._descriptors:
            self._reserve(descriptor, num_bytes)
        generations = [Header.read(d).generation for d in self._descriptors]
        self._generation = max(generations)
        self._newest = generations.index(self._generation) if self._generation else -1

    def publish(self, version: Sequence[int], weights: Weights) -> Notice | None:
        """Write ``weights`` as ``version``; None, and one more ``publishes_skipped``, if no buffer is free.

        Tensors are copied into the buffer and nowhere else. Raises `SharedMemoryFull`, `SpecError`.
        """
        since = stamp()
        for step in range(1, NUM_BUFFERS):
            # In turn, so that the version before the newest stays readable for late readers.
            buffer = (self._newest + step) % NUM_BUFFERS
            if not self._lock(self._descriptors[buffer]):
                continue
            try:
                notice = self._write(buffer, Version.of(version), weights)
                notice.published_s, notice.published_mono_s, notice.boot = since
                return notice
            finally:
                fcntl.flock(self._descriptors[buffer], fcntl.LOCK_UN)
        self.publishes_skipped += 1
        return None

    def close(self) -> None:
        """Give the files back; they stay readable."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _write(self, buffer: int, version: Version, weights: Weights) -> Notice:
        layout = None if isinstance(weights, bytes) else Layout.of(weights)
        num_bytes = len(weights) if layout is None else layout.num_bytes
        descriptor, generation = self._descriptors[buffer], self._generation + 1
        Header(generation=generation).write(descriptor)
        self._reserve(descriptor, num_bytes)
        image = self._maps.image(buffer, descriptor, num_bytes)
        if isinstance(weights, bytes):
            image[:] = np.frombuffer(weights, np.uint8) if weights else 0
        elif layout is not None:
            layout.write(image, weights)
        digest = digests.image_digest(image, digests.BEST, shared_pool(num_bytes))
        Header(_MAGIC, generation, num_bytes, *version).write(descriptor)
        self._generation, self._newest = generation, buffer
        return Notice(
            policy=self.policy, version=list(version), buffer=buffer, generation=generation,
            digest=digest, digest_kind=digests.BEST, num_bytes=num_bytes, slot=self.prefix.name,
        )  # fmt: skip

    def _reserve(self, descriptor: int, num_bytes: int) -> None:
        with room_for(f"weights of {num_bytes >> 10} KiB x {NUM_BUFFERS}", self.prefix.parent):
            os.posix_fallocate(descriptor, 0, HEADER_BYTES + num_bytes)

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
        self._maps = _Maps(mmap.PROT_READ)

    def local(self, notice: Notice) -> Notice | None:
        """``notice`` itself: what the learner of this memory domain publishes is here."""
        return notice

    def close(self) -> None:
        """Mappings go with their last view."""

    def read(self, notice: Notice) -> bytes:
        """A copy of the image that ``notice`` names; raises `StaleRead` unless it is there whole."""
        with self._image(notice) as image:
            copy = image.tobytes()
        self._verify(notice, copy)
        return copy

    @contextlib.contextmanager
    def open(self, notice: Notice, verify: bool = True) -> Iterator[Mapping[str, np.ndarray]]:
        """The tensors that ``notice`` names; see `rollbus_core.weights.base.WeightSource`.

        They view the buffer, which is pinned meanwhile. The digest is checked before, so that damage
        leaves the reader's old version whole; ``verify=False`` leaves that to whoever copies.
        """
        with self._image(notice) as image:
            if verify:
                self._verify(notice, image)
            yield read_layout(image).views(image)

    @contextlib.contextmanager
    def _image(self, notice: Notice) -> Iterator[np.ndarray]:
        with self.pin(notice) as descriptor:
            yield self._maps.image(notice.buffer, descriptor, notice.num_bytes)
            self._check(descriptor, notice)

    def _verify(self, notice: Notice, image: bytes | np.ndarray) -> None:
        digest = digests.image_digest(image, notice.digest_kind, shared_pool(notice.num_bytes))
        if digest != notice.digest:
            raise StaleRead(
                f"weights {Version.of(notice.version)} in {self.prefix.name}.{notice.buffer}: "
                f"{notice.digest_kind} is {digest:016x}, the notice says {notice.digest:016x}; the old "
                "version stays"
            )

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
            # A mapping keeps a duplicate of the descriptor, and with it the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
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
