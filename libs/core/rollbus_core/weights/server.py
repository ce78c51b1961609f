"""Serves a learner's slot to other hosts: whole images or deltas, in chunks that are asked for one by one.

It runs beside the learner, in a thread of its own (`ServerThread`) or another process of the memory domain.
It keeps the encoded images of the last few versions that somebody fetched, as bases of deltas.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from rollbus_core.version import Version
from rollbus_core.weights import delta, digests, packing
from rollbus_core.weights.base import WeightSource
from rollbus_core.weights.copying import shared_pool
from rollbus_core.weights.encoding import CASTS, encode
from rollbus_core.weights.image import Layout
from rollbus_wire.errors import PeerLost, StaleRead, WireError, short
from rollbus_wire.link import Envelope, Link
from rollbus_wire.messages import (
    Fault,
    FetchChunk,
    FetchWeights,
    Message,
    Notice,
    WeightChunk,
    WeightManifest,
)
from rollbus_wire.polling import Poller, drain

#: Small enough that a slow link has many to continue from, large enough that a message costs little.
CHUNK_BYTES = 256 << 10
#: A delta above this share of the image is not worth its base.
MAX_DELTA_SHARE = 0.9
#: Characters of all patterns of one request.
MAX_PATTERNS = 4096
#: Encoded images and streams that are kept.
KEEP = 3

_T = TypeVar("_T")


class _Held(NamedTuple):
    """The encoded image of one version."""

    layout: Layout
    image: np.ndarray
    digest: int
    notice: Notice


class _Stream:
    """Bytes on their way to readers, and what packing would do to them."""

    def __init__(self, data: np.ndarray, width: int, whole: bool) -> None:
        self.data, self.width, self.whole = data, width, whole
        self._gains: dict[str, packing.Gain] = {}

    def chunk(self, message: FetchChunk) -> WeightChunk:
        """One chunk, packed if that is faster at the reader's link rate."""
        start = message.index * CHUNK_BYTES
        data = self.data[start : start + CHUNK_BYTES]
        digest = digests.digest(data)
        name = packing.choose(message.accept) if message.link_bytes_per_s else ""
        if name and name not in self._gains:
            self._gains[name] = packing.measure(data, name, self.width)
        if not name or not self._gains[name].pays(message.link_bytes_per_s):
            return WeightChunk(message.stream, message.index, data, digest)
        packed = packing.pack(data, name, self.width)
        return WeightChunk(message.stream, message.index, packed, digest, name, self.width)


class WeightServer:
    """The serving end of the plane ``weights``, for one slot. Call `poll` in a loop of one thread."""

    def __init__(self, source: WeightSource, link: Link, keep: int = KEEP) -> None:
        self.link, self._source, self._keep = link, source, keep
        self._notice: Notice | None = None
        #: By cast; the longest unused come first.
        self._held: dict[str, OrderedDict[Version, _Held]] = defaultdict(OrderedDict)
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        #: What was answered, for tests and heartbeats.
        self.num_full = self.num_deltas = self.num_chunks = self.num_bytes = 0

    def offer(self, notice: Notice) -> None:
        """A newer version is in the slot."""
        if self._notice is None or Version.of(notice.version) > Version.of(self._notice.version):
            self._notice = notice

    def poll(self) -> bool:
        """Answer what came; whether anything did."""
        busy = False
        for envelope in drain(self.link):
            busy = True
            with contextlib.suppress(PeerLost):  # the asker is gone; its successor asks again
                self.link.send(self._answer(envelope), to=envelope.peer, re=envelope.id)
        return busy

    def _answer(self, envelope: Envelope) -> Message:
        message = envelope.message
        if isinstance(message, FetchChunk):
            return self._chunk(message)
        if isinstance(message, FetchWeights):
            return self._manifest(message)
        return Fault("wire", f"{message.kind} is not a request of the weights plane")

    def _chunk(self, message: FetchChunk) -> Message:
        stream = self._streams.get(message.stream)
        if stream is None or not 0 <= message.index * CHUNK_BYTES < max(1, stream.data.size):
            return Fault(
                "unknown-stream", f"no chunk {message.index} of stream {short(message.stream)} is kept"
            )
        chunk = stream.chunk(message)
        self.num_chunks += 1
        self.num_bytes += chunk.data.size
        return chunk

    def _manifest(self, message: FetchWeights) -> Message:
        if message.cast not in CASTS:
            return Fault("wire", f"weights cannot be cast to {short(message.cast)}; known: {CASTS}")
        try:
            new = self._newest(message)
        except StaleRead as error:
            # Overwritten before it was read: the notice of a newer one is on its way.
            return Fault("no-version", str(error))
        if new is None:
            return Fault("no-version", f"no version of policy {short(message.policy)} is published here")
        try:
            base = self._base(message, new)
        except WireError as error:
            return Fault(error.code, str(error))
        names = [name for name in message.names if isinstance(name, str)]
        if len(names) != len(message.names) or sum(map(len, names)) > MAX_PATTERNS:
            return Fault("wire", f"names of tensors are texts of at most {MAX_PATTERNS} characters together")
        patterns = hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]
        key = f"{new.digest:016x}-{base.digest if base else 0:016x}-{patterns}"
        stream = _remembered(self._streams, key, self._keep, lambda: self._stream(new, base, names, message))
        whole = stream.whole
        self.num_full, self.num_deltas = self.num_full + whole, self.num_deltas + (not whole)
        notice = new.notice
        return WeightManifest(
            stream=key, policy=notice.policy, version=list(notice.version),
            num_bytes=stream.data.size, chunk_bytes=CHUNK_BYTES,
            base=[] if whole else list(message.base), base_digest=0 if whole else message.base_digest,
            image_digest=new.digest, image_bytes=new.image.size, digest_kind=digests.BEST,
            published_s=notice.published_s, published_mono_s=notice.published_mono_s, boot=notice.boot,
        )  # fmt: skip

    def _newest(self, message: FetchWeights) -> _Held | None:
        notice = self._notice
        if notice is None or notice.policy != message.policy:
            return None
        held, version = self._held[message.cast], Version.of(notice.version)
        return _remembered(held, version, self._keep, lambda: self._encode(notice, message.cast))

    def _encode(self, notice: Notice, cast: str) -> _Held:
        with self._source.open(notice) as tensors:
            layout, image = encode(tensors, cast, self._unused_memory(cast))
        return _Held(layout, image, digests.image_digest(image, pool=shared_pool(image.size)), notice)

    def _unused_memory(self, cast: str) -> np.ndarray | None:
        """The memory of an image that is about to be forgotten, unless a stream still sends it."""
        if len(self._held[cast]) < self._keep:
            return None
        image = self._held[cast].popitem(last=False)[1].image
        return None if any(stream.data is image for stream in self._streams.values()) else image

    def _base(self, message: FetchWeights, new: _Held) -> _Held | None:
        """The asker's version, if this side has exactly the same."""
        if len(message.base) != 2:
            return None
        held = self._held[message.cast].get(Version.of(message.base))
        same = held is not None and held.digest == message.base_digest
        return held if held is not None and same and held.layout.header == new.layout.header else None

    @staticmethod
    def _stream(new: _Held, base: _Held | None, names: list[str], message: FetchWeights) -> _Stream:
        width = 2 if message.cast else 4
        if base is not None:
            most = int(MAX_DELTA_SHARE * new.image.size)
            changed = delta.diff(new.layout, base.image, new.image, names, most)
            if changed is not None:
                return _Stream(changed, width, whole=False)
        return _Stream(new.image, width, whole=True)


class ServerThread:
    """A `WeightServer` in a thread, so that a learner in a long update still serves."""

    def __init__(self, source: WeightSource, bind: Callable[[], Link]) -> None:
        """``bind`` makes the link, in the thread that uses it."""
        self._offers: queue.SimpleQueue[Notice] = queue.SimpleQueue()
        self._stop, self._bound = threading.Event(), threading.Event()
        self.endpoint = ""
        self.failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(source, bind), name="weight-server", daemon=True
        )
        self._thread.start()
        self._bound.wait()
        self._raise()

    def offer(self, notice: Notice) -> None:
        """A newer version is in the slot. Raises what ended the thread, if it has ended."""
        self._raise()
        self._offers.put(notice)

    def close(self) -> None:
        """End the thread; what was sent is flushed for a bounded time."""
        self._stop.set()
        self._thread.join(5.0)

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _run(self, source: WeightSource, bind: Callable[[], Link]) -> None:
        try:
            self._serve(source, bind())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that owns this one
            self.failure = error
        finally:
            self._bound.set()

    def _serve(self, source: WeightSource, link: Link) -> None:
        self.endpoint = getattr(link, "endpoint", "")
        self._bound.set()
        server, poller = WeightServer(source, link), Poller()
        poller.add(link)
        try:
            while not self._stop.is_set():
                poller.wait(0.05)
                while not self._offers.empty():
                    server.offer(self._offers.get())
                server.poll()
        finally:
            link.close()


_K = TypeVar("_K")


def _remembered(cache: OrderedDict[_K, _T], key: _K, keep: int, make: Callable[[], _T]) -> _T:
    """The value of ``key``, made if it is not there; the longest unused beyond ``keep`` are dropped."""
    if key not in cache:
        cache[key] = make()
        while len(cache) > keep:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]
