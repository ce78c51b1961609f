"""Fetches weights from another host, chunk by chunk, and goes on at the missing chunk after a lost link.

What is whole is a version: the digest of the result is compared with the server's before anybody sees it.
A delta that does not fit, or does not give that digest, is thrown away with its base, and the whole image
is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rollbus_core.version import Version
from rollbus_core.weights import delta, digests, packing
from rollbus_core.weights.copying import copy_tensors, shared_pool
from rollbus_core.weights.encoding import fitting
from rollbus_core.weights.image import read_layout
from rollbus_wire.errors import MissingPackage, PeerLost, StaleRead, WireError
from rollbus_wire.link import Link
from rollbus_wire.messages import Fault, FetchChunk, FetchWeights, Message, WeightChunk, WeightManifest
from rollbus_wire.polling import drain

#: Chunks asked for and not come: 8 MiB fill 1 Gbit/s with 60 ms round trip.
WINDOW = 32
#: Silence after which everything open is asked for again, doubled each time it was in vain.
STALL_S, MAX_STALL_S = 1.0, 30.0
#: Time until a server without a newer version is asked again.
RETRY_S = 0.2
#: The link's rate is taken over this long.
RATE_S = 0.5
#: A larger image, or smaller chunks, are refused before anything is allocated.
MAX_IMAGE_BYTES, MIN_CHUNK_BYTES = 1 << 40, 64 << 10


class Arrived(NamedTuple):
    """A whole version: its encoded image (uint8), which holds until the next `poll`, and its manifest."""

    version: Version
    image: np.ndarray
    manifest: WeightManifest


class _Transfer:
    """Chunks of one stream: which came, which are asked for."""

    def __init__(self, manifest: WeightManifest, memory: np.ndarray | None) -> None:
        self.manifest = manifest
        self.data = fitting(memory, manifest.num_bytes)
        self.missing = set(range(-(-manifest.num_bytes // manifest.chunk_bytes)))
        self._next = 0
        self.open: set[int] = set()

    def take(self, chunk: WeightChunk) -> bool:
        """Keep ``chunk``; False if it came before. Raises `WireError` if it is not what was asked for."""
        self.open.discard(chunk.index)
        if chunk.index not in self.missing:
            return False
        size = self.manifest.chunk_bytes
        target = self.data[chunk.index * size : (chunk.index + 1) * size]
        data = np.asarray(chunk.data).reshape(-1).view(np.uint8)
        if chunk.packing:
            data = packing.unpack(data, chunk.packing, chunk.width, target.size)
        try:
            whole = data.size == target.size and digests.digest(data, self.manifest.digest_kind)
        except MissingPackage as error:
            raise WireError(str(error)) from None
        if data.size != target.size or whole != chunk.digest:
            raise WireError(f"chunk {chunk.index} of weights {self.manifest.version} is damaged")
        target[:] = data
        self.missing.discard(chunk.index)
        return True

    def due(self) -> list[int]:
        """Chunks to ask for now."""
        found: list[int] = []
        count = -(-self.manifest.num_bytes // self.manifest.chunk_bytes)
        while len(self.open) + len(found) < WINDOW and self._next < count:
            if self._next in self.missing:
                found.append(self._next)
            self._next += 1
        self.open.update(found)
        return found

    def again(self) -> None:
        """What is open was lost: it is due anew."""
        self._next, self.open = min(self.missing, default=self._next), set()


class StreamReader:
    """The fetching end of the plane ``weights``. Never blocks; call `poll` in a loop of one thread."""

    def __init__(
        self, link: Link, policy: str, *, cast: str = "", names: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``cast``: see `encoding`. ``names``: patterns of the tensors that change, as in LoRA. If others
        did, the result's digest is wrong, and from then on all are compared."""
        self.link, self.policy, self.cast, self.names = link, policy, cast, list(names)
        self._clock = clock
        self._wanted: Version | None = None
        self._base: tuple[Version, np.ndarray, int] | None = None
        self._transfer: _Transfer | None = None
        #: Memory of the image before the base, for the next one: fresh memory costs ten times a copy.
        self._spare: np.ndarray | None = None
        self._asked_at, self._heard_at, self._stall_s = -1e9, -1e9, STALL_S
        self._rate, self._rate_since, self._rate_bytes = 0.0, clock(), 0
        self._filter = True
        #: Bytes of chunks as they came, chunks that were damaged, and deltas whose result was wrong.
        self.num_bytes = self.damaged_chunks = self.wrong_results = self.num_stalls = 0
        self.last_problem = ""

    @property
    def version(self) -> Version | None:
        """The newest version that came whole."""
        return self._base[0] if self._base is not None else None

    @property
    def link_bytes_per_s(self) -> float:
        """What the link has carried lately; 0: not known."""
        return self._rate

    def want(self, version: Version) -> None:
        """There is ``version``: fetch it, or a newer one."""
        if self._wanted is None or version > self._wanted:
            self._wanted = version

    def adopt(self, version: Version, image: np.ndarray) -> None:
        """Take ``image``, encoded as this reader's versions are, for what came last."""
        self._base = (version, image, digests.image_digest(image, pool=shared_pool(image.size)))

    def reconnect(self, link: Link) -> None:
        """Go on over another link, at the chunk that is missing."""
        self.link = link
        self._asked_at = -1e9
        if self._transfer is not None:
            self._transfer.again()

    def poll(self) -> Arrived | None:
        """Ask for what is due and take what came; a version when it is whole."""
        for envelope in drain(self.link):
            self._heard(envelope.message)
        if self._transfer is not None and not self._transfer.missing:
            return self._finish()
        self._ask(self._clock())
        return None

    def _heard(self, message: Message) -> None:
        transfer = self._transfer
        if isinstance(message, WeightManifest) and transfer is None:
            try:
                self._begin(message)
            except (WireError, MemoryError) as error:
                self.last_problem = f"manifest of weights: {error}"
        elif isinstance(message, WeightChunk):
            if transfer is not None and message.stream == transfer.manifest.stream:
                self._take(transfer, message)
        elif isinstance(message, Fault):
            self.last_problem = f"{message.code}: {message.text}"
            if message.code == "unknown-stream":
                self._transfer, self._asked_at = None, -1e9

    def _begin(self, manifest: WeightManifest) -> None:
        known, version = self._base, Version.of(manifest.version)
        fits = not manifest.base or (
            known is not None and list(known[0]) == manifest.base and known[2] == manifest.base_digest
        )
        sane = 0 <= manifest.num_bytes <= MAX_IMAGE_BYTES and manifest.chunk_bytes >= MIN_CHUNK_BYTES
        if not fits or not sane or manifest.policy != self.policy:
            self.last_problem = f"manifest of weights {manifest.version} does not fit what was asked for"
            return
        if known is None or version > known[0]:
            self._transfer = _Transfer(manifest, None if manifest.base else self._spare)
            self._heard_at = self._rate_since = self._clock()
            self._rate_bytes = 0

    def _take(self, transfer: _Transfer, chunk: WeightChunk) -> None:
        try:
            new = transfer.take(chunk)
        except WireError as error:
            self.damaged_chunks += 1
            self.last_problem = str(error)
            transfer.again()
            return
        size = np.asarray(chunk.data).nbytes
        self.num_bytes += size
        now = self._clock()
        self._heard_at = now
        if new:
            self._stall_s = STALL_S
        self._rate_bytes += size
        if now - self._rate_since >= RATE_S:
            self._rate = self._rate_bytes / (now - self._rate_since)
            self._rate_since, self._rate_bytes = now, 0

    def _ask(self, now: float) -> None:
        transfer = self._transfer
        if transfer is None:
            newest = self.version
            if self._wanted is not None and (newest is None or self._wanted > newest):
                if now - self._asked_at >= RETRY_S:
                    self._asked_at = now
                    self._send(self._request())
            return
        if now - self._heard_at >= self._stall_s:
            self.num_stalls += 1
            self._heard_at, self._stall_s = now, min(MAX_STALL_S, 2 * self._stall_s)
            transfer.again()
        for index in transfer.due():
            self._send(
                FetchChunk(transfer.manifest.stream, index, self._rate, list(packing.PACKINGS))
            )  # fmt: skip

    def _request(self) -> FetchWeights:
        names = self.names if self._filter else []
        if self._base is None:
            return FetchWeights(self.policy, cast=self.cast, names=names)
        version, _, digest = self._base
        return FetchWeights(self.policy, list(version), digest, self.cast, names)

    def _send(self, message: Message) -> None:
        try:
            self.link.send(message)
        except PeerLost as error:  # asked for again after the stall
            self.last_problem = str(error)

    def _finish(self) -> Arrived | None:
        assert self._transfer is not None
        manifest, data = self._transfer.manifest, self._transfer.data
        self._transfer, self._asked_at = None, -1e9
        try:
            image = self._result(manifest, data)
        except (StaleRead, MissingPackage) as error:
            self.wrong_results += 1
            self.last_problem = str(error)
            if self.names and self._filter:
                self._filter = False  # others than ``names`` change, too
            else:
                self._base = None  # without a base the server sends all
            return None
        version = Version.of(manifest.version)
        self._spare = self._base[1] if self._base is not None else None
        self._base = (version, image, manifest.image_digest)
        return Arrived(version, image, manifest)

    def _result(self, manifest: WeightManifest, data: np.ndarray) -> np.ndarray:
        """The image of the manifest's version; raises `StaleRead` unless it is that to the last bit."""
        image = data
        if manifest.base:
            assert self._base is not None
            image = fitting(self._spare, self._base[1].size)
            copy_tensors({"": image}, {"": self._base[1]})
            delta.apply(read_layout(image), image, data)
        digest = digests.image_digest(image, manifest.digest_kind, shared_pool(image.size))
        if digest != manifest.image_digest or image.size != manifest.image_bytes:
            raise StaleRead(
                f"weights {Version.of(manifest.version)} came to {manifest.digest_kind} {digest:016x}, the "
                f"server has {manifest.image_digest:016x}; it is fetched anew"
            )
        return image
