"""Weights plane: a host's relay <-> whoever serves a learner's slot. docs/protocol.md is the reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List

from .base import Array, Message


@dataclass
class FetchWeights(Message):
    """What do I need for the newest version? Answered by `WeightManifest`, or a fault ("no-version")."""

    policy: str
    #: (lineage, number) of the version that the asker has whole; empty: none.
    base: List[int] = field(default_factory=list)
    #: Digest of the encoded image that the asker has.
    base_digest: int = 0
    #: "bfloat16": how float32 tensors travel; empty: as they are.
    cast: str = ""
    #: Patterns (shell style) of the tensors that may have changed since ``base``; empty: all.
    names: List[Any] = field(default_factory=list)


@dataclass
class WeightManifest(Message):
    """A stream of bytes that makes ``version``, and what must come of it."""

    stream: str
    policy: str
    version: List[int]
    num_bytes: int
    chunk_bytes: int
    #: The exact version that the bytes are a delta to; empty: they are the whole image.
    base: List[int]
    base_digest: int
    #: Of the encoded image of ``version``.
    image_digest: int
    image_bytes: int
    digest_kind: str
    #: As in the notice.
    published_s: float = 0.0
    published_mono_s: float = 0.0
    boot: str = ""


@dataclass
class FetchChunk(Message):
    """Send one chunk of a stream. Answered by `WeightChunk`, or a fault ("unknown-stream")."""

    stream: str
    index: int
    #: Bytes per second that the asker has seen come in; 0: not known yet.
    link_bytes_per_s: float = 0.0
    #: Packings that the asker can undo.
    accept: List[Any] = field(default_factory=list)


@dataclass
class WeightChunk(Message):
    """Bytes ``index * chunk_bytes`` onward; ``packing`` is "", "zlib" or "zstd"."""

    stream: str
    index: int
    data: Array
    #: Of the bytes after unpacking.
    digest: int
    packing: str = ""
    #: Before packing, bytes were sorted by their place in items of this size.
    width: int = 1
