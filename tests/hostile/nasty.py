"""Messages that nobody sends by accident, as lists of frames; each must be refused, soon and cheaply."""

from __future__ import annotations

import struct

import msgpack
import numpy as np

from rollbus_wire.codec import pack
from rollbus_wire.limits import MAX_DEPTH, MAX_FRAMES, MAX_HEADER_BYTES

MIB = 1 << 20


def envelope(kind: str, **body: object) -> list[bytes]:
    """A well-formed message."""
    header = {"v": 1, "k": kind, "run": "", "id": 1, "re": 0, "from": "stranger", "b": body}
    return [bytes(frame) for frame in pack(header)]


def extension(code: int, data: bytes) -> bytes:
    return msgpack.packb({"v": 1, "k": "ping", "b": {"x": msgpack.ExtType(code, data)}})


def array(frame: int, dtype: int, *shape: int, data: bytes = b"") -> list[bytes]:
    head = struct.pack("<HBB", frame, dtype, len(shape)) + struct.pack("<%dQ" % len(shape), *shape)
    return [extension(1, head + data)]


NASTY: dict[str, list[bytes]] = {
    "nothing": [b""],
    "not msgpack": [b"GET / HTTP/1.1\r\n\r\n"],
    "only a number": [b"\x2a"],
    "truncated": [envelope("ping")[0][:-3]],
    "two headers": [envelope("ping")[0] * 2],
    "depth of the reader": [b"\x91" * 100_000 + b"\xc0"],
    "depth of the limit": [b"\x81\xa1b" + b"\x91" * (MAX_DEPTH + 2) + b"\xc0"],
    "an array of 4 G entries": [b"\xdd\xff\xff\xff\xff"],
    "a map of 4 G entries": [b"\xdf\xff\xff\xff\xff"],
    "a text of 4 GB": [b"\xdb\xff\xff\xff\xff" + b"a" * 100],
    "millions of empty maps": [b"\x93" + (b"\xdc\xff\xff" + b"\x80" * 65535) * 3],
    "millions of small maps": [b"\xdc\xff\xff" + b"\x81\xa0\xc0" * 65535],
    "millions of arrays": [b"\xdc\xff\xff" + b"\xd7\x01" * 400_000],
    "header above the limit": [b"\xc6" + struct.pack(">I", MAX_HEADER_BYTES) + bytes(MAX_HEADER_BYTES)],
    "10,000 frames": [envelope("ping")[0], *[b"x"] * 10_000],
    "one frame too many": [envelope("ping")[0], *[b""] * MAX_FRAMES],
    "frames that nothing names": [envelope("ping")[0], b"abc", b"def"],
    "huge key": [msgpack.packb({"v": 1, "k": "ping", "b": {"n" * MIB: 1}})],
    "key of bytes": [msgpack.packb({"v": 1, "k": "ping", "b": {b"n": 1}})],
    "key of a number": [msgpack.packb({"v": 1, "k": "ping", "b": {5: 1}})],
    "huge kind": [msgpack.packb({"v": 1, "k": "k" * 3 * MIB, "b": {}})],
    "huge version": [msgpack.packb({"v": ["v" * MIB] * 3, "k": "ping", "b": {}})],
    "huge sender": [msgpack.packb({"v": 1, "k": "ping", "from": "f" * 3 * MIB, "b": {}})],
    "huge name": envelope("attach", slice="s" * 3 * MIB, assignment=[0, 0]),
    "not utf-8": [b"\x82\xa1v\x01\xa1k\xa4\xff\xfe\xfd\xfc"],
    "timestamp": [b"\x82\xa1v\x01\xa1k\xd6\xff\x00\x00\x00\x00"],
    "extension of another type": [extension(42, b"abcd")],
    "pickle": [b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94."],
    "dtype object": array(0, 12, 1, data=bytes(8)),
    "dtype 255": array(0, 255, 1, data=bytes(8)),
    "200 dimensions": [extension(1, b"\x00\x00\x0a\xc8" + bytes(1600))],
    "negative dimension": array(0, 10, (1 << 64) - 4, data=bytes(16)),
    "dimensions that overflow": array(0, 10, 1 << 33, 1 << 33, data=bytes(16)),
    "no elements, huge dimension": array(0, 10, 0, (1 << 63) - 1),
    "array of a frame that is not there": array(7, 10, 4),
    "array of another size": array(0, 10, 1 << 20, data=bytes(16)),
    "not a number": envelope("heartbeat", stage="run", since_s=float("nan"), deadline_s=1.0),
    "infinity": envelope("heartbeat", stage="run", since_s=0.0, deadline_s=float("inf")),
    "a list of lists where numbers are due": envelope("attach", slice="hub-0/0", assignment=[[1], {}]),
    "an unknown kind": envelope("no_such_message", x=1),
    "a body that is a list": [msgpack.packb({"v": 1, "k": "ping", "b": [1]})],
    "arrays where maps are due": envelope("hello", protocol=[1, 0], spec=np.zeros(3), num_rows=1),
}
