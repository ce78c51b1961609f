"""Frames: every dtype, the inline boundary, every limit and every malformed header."""

from __future__ import annotations

import struct

import msgpack
import numpy as np
import pytest

from rollbus_wire import codec
from rollbus_wire.errors import LimitExceeded, WireError


def travel(value):
    frames = [bytes(memoryview(f).cast("B")) if isinstance(f, np.ndarray) else f for f in codec.pack(value)]
    return codec.unpack(frames)


@pytest.mark.parametrize("name", codec.DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (5, 300, 2)])
def test_every_dtype_comes_back_equal(name, shape):
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(name)
    back = travel({"a": array})["a"]
    assert back.dtype == array.dtype and back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_not_a_number_and_infinity_keep_their_bits():
    array = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324])
    assert travel(array).tobytes() == array.tobytes()


@pytest.mark.parametrize(("size", "num_frames"), [(16384, 1), (16385, 2)])
def test_small_arrays_ride_in_the_header(size, num_frames):
    array = np.arange(size, dtype=np.uint8)
    assert len(codec.pack({"a": array})) == num_frames
    np.testing.assert_array_equal(travel({"a": array})["a"], array)


def test_many_arrays_keep_their_places():
    arrays = {str(i): np.full(3000 + i, i, np.uint16) for i in range(5)}
    back = travel({"deep": [{"er": arrays}], "n": 7})
    assert back["n"] == 7
    for key, array in arrays.items():
        np.testing.assert_array_equal(back["deep"][0]["er"][key], array)


def test_views_that_are_not_contiguous_travel_by_value():
    array = np.arange(20000, dtype=np.int32).reshape(100, 200)[::2, ::-1]
    np.testing.assert_array_equal(travel(array), array)
    small = np.arange(20, dtype=np.int32).reshape(4, 5).T
    np.testing.assert_array_equal(travel(small), small)


def test_arrays_that_came_cannot_be_written():
    for size in (10, 10000):
        with pytest.raises(ValueError):
            travel(np.zeros(size))[0] = 1


def test_numpy_scalars_become_numbers():
    assert travel([np.float32(0.5), np.int64(3), np.bool_(True)]) == [0.5, 3, True]


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.array(["text"]),
        np.array([b"bytes"]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]),
        np.array([1j]),
        np.arange(4, dtype=">i4"),
        object(),
        {1, 2},
    ],
)
def test_other_types_do_not_travel(value):
    with pytest.raises(WireError):
        codec.pack({"a": value})


def test_nine_dimensions_are_too_many():
    with pytest.raises(LimitExceeded):
        codec.pack(np.zeros((1,) * 9))
    assert travel(np.zeros((1,) * 8)).shape == (1,) * 8


def header(index=0, dtype=5, ndim=1, shape=(4,), data=b"abcd", code=1):
    prefix = struct.pack("<HBB", index, dtype, ndim) + struct.pack("<%dQ" % len(shape), *shape)
    return msgpack.packb({"a": msgpack.ExtType(code, prefix + data)})


def test_the_helper_makes_a_good_header():
    np.testing.assert_array_equal(codec.unpack([header()])["a"], np.frombuffer(b"abcd", np.uint8))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""] * 1025,
        [b"\0" * (codec.MAX_HEADER_BYTES + 1)],
        [header(ndim=2, shape=(1 << 31, 1 << 31))],
    ],
)
def test_limits(frames):
    with pytest.raises(LimitExceeded):
        codec.unpack(frames)


@pytest.mark.parametrize(
    "frames",
    [
        [header(code=2)],
        [header(dtype=12)],
        [header(dtype=255)],
        [header(index=1)],
        [header(index=1, data=b"abcd"), b"abcd"],
        [header(index=1, data=b""), b"abc"],
        [header(index=1, data=b""), b"abcde"],
        [header(data=b"abc")],
        [header(data=b"abcde")],
        [header(shape=(), ndim=1, data=b"")],
        [header(ndim=9, shape=(1,) * 9, data=b"a")],
        [header(ndim=255)],
        [header(), b"unnamed frame"],
        [msgpack.packb({"a": msgpack.ExtType(1, b"ab")})],
        [b""],
        [b"\xc1"],
        [b"\x81"],
        [b"\x80\x80"],
        [b"\xff" * 3],
        [b"\x81\xa1\xff\x01"],
        [b"\x81\x92\x01\x02\x03"],
        [header(shape=(1 << 63, 1 << 63, 0), ndim=3, data=b"")],
        [b"\x91" * 3000],
        [b"\xdd\xff\xff\xff\xff"],
        [b"\xdf\xff\xff\xff\xff"],
        [b"\xdd" + struct.pack(">I", (1 << 16) + 1) + b"\x01" * ((1 << 16) + 1)],
        [b"\xc6\xff\xff\xff\xff"],
    ],
)
def test_malformed_headers_are_refused(frames):
    with pytest.raises(WireError):
        codec.unpack(frames)


def test_an_array_above_two_gigabytes_is_refused_before_anything_is_allocated():
    with pytest.raises(LimitExceeded, match="at most"):
        codec.unpack([header(index=1, dtype=11, shape=((1 << 28) + 1,), data=b""), b""])


def test_random_bytes_never_raise_anything_else():
    random = np.random.RandomState(0)
    for _ in range(3000):
        frames = [random.bytes(random.randint(1, 40)) for _ in range(random.randint(1, 3))]
        try:
            codec.unpack(frames)
        except WireError:
            pass


def test_damaged_headers_never_raise_anything_else():
    good = codec.pack({"k": "step", "b": {"a": np.arange(5), "text": "abc", "n": [1.5, None, True]}})[0]
    random = np.random.RandomState(1)
    for _ in range(3000):
        damaged = bytearray(good)
        for _ in range(random.randint(1, 4)):
            damaged[random.randint(len(damaged))] = random.randint(256)
        try:
            codec.unpack([bytes(damaged)])
        except WireError:
            pass


@pytest.mark.parametrize("code", [code for code in range(128) if code != codec.ARRAY_EXTENSION])
def test_no_extension_but_the_array_is_taken(code):
    extension = msgpack.ExtType(code, b"\0" * 12)
    for value in (extension, {"a": extension}, [0, [extension]], {"b": {"c": [1, {"d": extension}]}}):
        with pytest.raises(WireError, match="extension type %d" % code):
            codec.unpack([msgpack.packb(value)])


@pytest.mark.parametrize("num_bytes", [4, 8, 12])
def test_timestamps_are_refused_in_every_encoding(num_bytes):
    fixed = {4: b"\xd6", 8: b"\xd7"}.get(num_bytes)
    size = struct.pack(">I", num_bytes)
    heads = [b"\xc7" + size[3:], b"\xc8" + size[2:], b"\xc9" + size] + ([fixed] if fixed else [])
    for head in heads:
        extension = head + b"\xff" + b"\0" * num_bytes
        for packed in (extension, b"\x81\xa1a" + extension, b"\x92\x01\x91" + extension):
            with pytest.raises(WireError, match="extension type -1"):
                codec.unpack([packed])


@pytest.mark.parametrize("code", range(-128, -1))
def test_reserved_extensions_are_refused(code):
    packed = b"\xc7\x04" + struct.pack("b", code) + b"\0" * 4
    with pytest.raises(WireError, match="extension type %d" % code):
        codec.unpack([packed])


def test_not_a_number_is_a_number_and_no_size():
    assert np.isnan(codec.unpack(codec.pack({"a": float("nan")}))["a"])
    sizes = np.array([np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(codec.unpack(codec.pack({"a": sizes}))["a"], sizes)
