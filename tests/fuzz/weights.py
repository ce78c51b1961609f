"""Requests into a weight server; manifests and chunks into a reader; images, deltas and packed bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from fuzz_services import FedLink, say_mutated
from harness import Bytes

from rollbus_core.version import Version
from rollbus_core.weights import delta, digests, packing
from rollbus_core.weights.encoding import decode, encode
from rollbus_core.weights.image import read_layout
from rollbus_core.weights.server import CHUNK_BYTES, WeightServer
from rollbus_core.weights.stream import StreamReader
from rollbus_wire.errors import StaleRead, WireError
from rollbus_wire.messages import Fault, FetchChunk, FetchWeights, Notice, WeightChunk, WeightManifest

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float16)}
LAYOUT, IMAGE = encode(TENSORS)
_digest = digests.image_digest(IMAGE)
MANIFEST = WeightManifest(
    "s", "policy", [0, 1], IMAGE.size, CHUNK_BYTES, [], 0, _digest, IMAGE.size, digests.BEST
)
CHUNK = WeightChunk("s", 0, IMAGE, digests.digest(IMAGE))
_zipped = packing.pack(IMAGE, "zlib", 4)
SERVER = (
    MANIFEST, CHUNK, WeightChunk("s", 0, _zipped, digests.digest(IMAGE), "zlib", 4),
    Fault("unknown-stream", "x"),
)  # fmt: skip
RELAY = (
    FetchWeights("policy", [0, 1], _digest, "", ["a*"]), FetchWeights("policy"),
    FetchChunk("s", 0, 1e6, ["zlib"]),
)  # fmt: skip


class Source:
    """A slot that always holds `TENSORS`."""

    @contextlib.contextmanager
    def open(self, notice: Notice) -> Iterator[Mapping[str, np.ndarray]]:
        yield TENSORS

    def local(self, notice: Notice) -> Notice:
        return notice

    def close(self) -> None:
        """Nothing is open."""


_server_link = FedLink()
_server = WeightServer(Source(), _server_link)
_server.offer(Notice("policy", [0, 1], 0, 1, 0, IMAGE.size))


def fuzz(data: bytes) -> None:
    source = Bytes(data)
    how = source.number(4)
    if how == 0:
        while len(source):
            say_mutated(_server_link, RELAY, source)
        _server.poll()
    elif how == 1:
        _read(source)
    elif how == 2:
        _image(source)
    else:
        _packed(source)


def _read(source: Bytes) -> None:
    link = FedLink(bound=False)
    reader = StreamReader(link, "policy")
    reader.want(Version(0, 1))
    if source.number(2):
        link.say(MANIFEST)
    while len(source):
        say_mutated(link, SERVER, source)
    for _ in range(3):
        arrived = reader.poll()
        if arrived is not None:
            assert (
                digests.image_digest(arrived.image, arrived.manifest.digest_kind)
                == arrived.manifest.image_digest
            )
            with contextlib.suppress(StaleRead):
                decode(arrived.image)
    link.close()


def _image(source: Bytes) -> None:
    """A header and data of any bytes, or the right image with some bytes changed; then a delta."""
    image = np.frombuffer(source.rest(), np.uint8)
    if image.size > 8 and image[0] % 2:
        changed, places = IMAGE.copy(), image[1:].copy()
        changed[places[: places.size // 2] % IMAGE.size] = places[places.size // 2 :][: places.size // 2]
        image = changed
    elif image.size > 2:
        text = image[1:].tobytes()
        image = np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)
    with contextlib.suppress(StaleRead):
        decode(image.copy())
    with contextlib.suppress(StaleRead):
        delta.apply(read_layout(IMAGE), IMAGE.copy(), image)


def _packed(source: Bytes) -> None:
    name, width, size = (
        packing.PACKINGS[source.number(len(packing.PACKINGS))],
        source.number(20),
        source.number(256),
    )
    with contextlib.suppress(WireError):
        packing.unpack(np.frombuffer(source.rest(), np.uint8), name, width, size)


def seeds() -> Iterable[bytes]:
    for number in range(len(RELAY)):
        yield bytes([0, number, 0, 0, 0, 1, 0])
    for number in range(len(SERVER)):
        yield bytes([1, 1, number, 0, 0, 0, 1, 0])
    yield bytes([2, 0]) + IMAGE.tobytes()[8:]
    yield bytes([2, 1, 9, 9, 9, 9, 0, 0, 0, 0])
    yield bytes([2, 0]) + b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'
    yield bytes([2, 0]) + b"[" * 2000
    for number, name in enumerate(packing.PACKINGS):
        yield bytes([3, number, 4, 64]) + packing.pack(np.zeros(64, np.uint8), name, 4).tobytes()
