"""Images, digests, copies, casts, deltas and packings: bits that must not change."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from rollbus_core.weights import copying, delta, digests, packing
from rollbus_core.weights.base import from_image, to_image
from rollbus_core.weights.encoding import decode, encode, from_bfloat16, to_bfloat16
from rollbus_core.weights.image import ALIGNMENT, Layout
from rollbus_wire.errors import ConfigError, MissingPackage, SpecError, StaleRead, WireError

TENSORS = {
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "n": np.array(7, np.int64),
    "flag": np.array([True, False, True]), "empty": np.zeros((0, 5), np.float32),
    "half": np.arange(5, dtype=np.float16), "bytes": np.arange(3, dtype=np.uint8),
}  # fmt: skip


def same(found: Any, expected: Any) -> bool:
    return found.keys() == expected.keys() and all(
        found[n].dtype == v.dtype and found[n].shape == v.shape and found[n].tobytes() == v.tobytes()
        for n, v in expected.items()
    )


# --- image -----------------------------------------------------------------------------------------


def test_the_library_reads_what_is_written_and_the_other_way_round() -> None:
    assert same(load(to_image(TENSORS)), TENSORS)
    assert same(from_image(save(TENSORS)), TENSORS)
    assert same(from_image(to_image(TENSORS)), TENSORS)


def test_tensors_are_aligned() -> None:
    layout = Layout.of(TENSORS)
    assert len(layout.header) % ALIGNMENT == 0
    assert all(e.start % e.dtype.itemsize == 0 for e in layout.entries)


def test_transposed_tensors_are_written_in_c_order() -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert np.array_equal(from_image(to_image({"t": value}))["t"], value)


def test_a_dtype_that_no_image_holds_is_named() -> None:
    with pytest.raises(SpecError, match="'c'.*complex64"):
        to_image({"c": np.zeros(2, np.complex64)})


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image[:4], lambda image: b"", lambda image: image[:-1], lambda image: image + b"x",
        lambda image: image.replace(b'"F32"', b'"X32"'), lambda image: b"\xff" * 8 + image[8:],
        lambda image: image.replace(b"[3,4]", b"[4,4]"), lambda image: image.replace(b"[3,4]", b"[3,-"),
    ],
)  # fmt: skip
def test_a_damaged_image_is_stale(change: Any) -> None:
    with pytest.raises(StaleRead, match="not readable"):
        from_image(change(to_image(TENSORS)))


# --- digests and copies ----------------------------------------------------------------------------


def test_the_digest_of_an_image_is_that_of_its_blocks_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "BLOCK_BYTES", 4)
    data = b"abcdefghij"
    parts = b"".join(zlib.crc32(part).to_bytes(8, "little") for part in (b"abcd", b"efgh", b"ij"))
    assert digests.image_digest(data, "crc32") == zlib.crc32(parts)
    assert digests.image_digest(data, "crc32", copying.pool()) == zlib.crc32(parts)
    assert digests.image_digest(b"abcd", "crc32") == zlib.crc32(b"abcd") == digests.digest(b"abcd", "crc32")


def test_an_unknown_digest_says_what_to_do() -> None:
    with pytest.raises(MissingPackage, match="'md5'.*crc32.*install"):
        digests.digest(b"", "md5")


def test_large_copies_are_shared_by_threads_and_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "MIN_SHARED_BYTES", 1)
    monkeypatch.setattr(copying, "BLOCK_BYTES", 64)
    monkeypatch.setattr(copying, "num_threads", lambda: 2)
    rng = np.random.default_rng(0)
    sources = {"a": rng.random((37, 11)), "b": rng.random(5), "t": rng.random((30, 20)).T, "s": np.array(2.0)}
    targets = {name: np.zeros(value.shape) for name, value in sources.items()}
    addresses = {name: value.ctypes.data for name, value in targets.items()}
    copying.copy_tensors(targets, sources)
    assert all(np.array_equal(targets[name], value) for name, value in sources.items())
    assert addresses == {name: value.ctypes.data for name, value in targets.items()}


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4095, 100_000])
def test_copies_around_the_cache_are_exact(size: int) -> None:
    streaming = pytest.importorskip("rollbus_core.weights.streaming")
    source = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    source.flags.writeable = False
    target = np.full(size + 16, 7, np.uint8)
    streaming.copy_around(target[8 : 8 + size], source)
    assert np.array_equal(target[8 : 8 + size], source)
    assert (target[:8] == 7).all() and (target[8 + size :] == 7).all(), "nothing beside it"


def test_copies_of_large_models_take_any_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    streaming = pytest.importorskip("rollbus_core.weights.streaming")
    used: list[int] = []

    def around(target: np.ndarray, source: np.ndarray) -> None:
        used.append(source.size)
        streaming.copy_around(target, source)

    monkeypatch.setattr(copying, "MIN_AROUND_BYTES", 1)
    monkeypatch.setattr(copying, "_around", lambda: around)
    rng = np.random.default_rng(5)
    odd = np.frombuffer(rng.bytes(4004), np.float32)[1:]  # at four bytes of a word
    sources = {
        "a": rng.random(77),
        "t": rng.random((3, 4)).T,
        "o": odd,
        "c": np.arange(5),
        "s": np.array(1.5),
    }
    targets = {name: np.zeros(value.shape, value.dtype) for name, value in sources.items()}
    targets["c"] = np.zeros(5)  # converted, not moved
    copying.copy_tensors(targets, sources)
    for name, value in sources.items():
        assert targets[name].tobytes() == value.astype(targets[name].dtype).tobytes(), name
    assert sorted(used) == [1, 77]


def test_a_copy_never_broadcasts() -> None:
    with pytest.raises(ValueError, match=r"\[1\].*\[3\]"):
        copying.copy_tensors({"a": np.zeros(3)}, {"a": np.zeros(1)})


# --- casts -----------------------------------------------------------------------------------------


def test_bfloat16_is_torchs() -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 100_000, dtype=np.uint64).astype(np.uint32)
    # Ties, both ways, largest finite, infinities, subnormals, both zeros.
    bits[:8] = [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 1, 0, 0x80000000]
    value = bits.view(np.float32)
    expected = torch.from_numpy(value).bfloat16()
    found = from_bfloat16(to_bfloat16(value))
    nan = np.isnan(value)
    assert np.isnan(found[nan]).all()
    assert np.array_equal(found[~nan], expected.float().numpy()[~nan])


def test_a_cast_image_holds_floats_in_half_and_the_rest_exactly() -> None:
    layout, image = encode(TENSORS, "bfloat16")
    assert {e.name: e.label for e in layout.entries} == {
        "w": "BF16", "n": "I64", "flag": "BOOL", "empty": "BF16", "half": "F16", "bytes": "U8",
    }  # fmt: skip
    expected = dict(TENSORS, w=torch.from_numpy(TENSORS["w"]).bfloat16().float().numpy())
    assert same(decode(image), expected)
    again = encode(decode(image), "bfloat16")[1]
    assert np.array_equal(again, image), "rounding twice is rounding once"


def test_an_unknown_cast_is_refused() -> None:
    with pytest.raises(ConfigError, match="'int4'.*bfloat16"):
        encode(TENSORS, "int4")


# --- deltas ----------------------------------------------------------------------------------------


def two(changed: float, size: int = 200_000) -> tuple[Layout, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    old = {"big": rng.standard_normal(size).astype(np.float32), "k": np.arange(9), "b": np.zeros(3, bool)}
    new = {name: value.copy() for name, value in old.items()}
    new["big"][rng.random(size) < changed] += 1
    layout, image = encode(old)
    return layout, image, encode(new)[1]


@pytest.mark.parametrize("changed", [0.0, 1e-5, 0.01, 0.5, 0.9, 1.0])
def test_a_delta_gives_the_new_image_to_the_last_bit(changed: float) -> None:
    layout, old, new = two(changed)
    found = delta.diff(layout, old, new)
    assert found is not None
    delta.apply(layout, old, found)
    assert np.array_equal(old, new)


def test_the_size_of_a_delta() -> None:
    layout, old, new = two(0.01)
    num = np.count_nonzero(layout.views(old)["big"] != layout.views(new)["big"])
    # 16 bytes of record, 4 blocks of 65,536 with a count each, 2 bytes of place and 4 of value.
    assert delta.diff(layout, old, new).size == 16 + 4 * 4 + num * 6
    assert delta.diff(layout, old, old).size == 0
    layout, old, new = two(1.0)
    assert delta.diff(layout, old, new).size == 16 + 200_000 * 4, "dense"


def test_bits_count_not_values() -> None:
    layout, old = encode({"a": np.array([0.0, np.nan, 1.0], np.float32)})
    new = old.copy()
    layout.views(new)["a"][0] = -0.0
    found = delta.diff(layout, old, new)
    assert found.size == 16 + 4 + 6, "NaN equals itself, -0 is not 0"
    delta.apply(layout, old, found)
    assert np.signbit(layout.views(old)["a"][0])


def test_large_tensors_are_compared_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [np.array(delta.diff(*two(0.01)))]
    monkeypatch.setattr(copying, "MIN_SHARED_BYTES", 1)
    monkeypatch.setattr(delta, "_STEP", 1000)
    assert np.array_equal(delta.diff(*two(0.01)), expected[0])


def test_names_restrict_what_is_compared() -> None:
    old = {"base.w": np.zeros(4), "lora.a": np.zeros(4), "lora.b": np.zeros(4)}
    layout, image = encode(old)
    new = encode({name: value + 1 for name, value in old.items()})[1]
    delta.apply(layout, image, delta.diff(layout, image, new, ["*lora*"]))
    assert {name: value[0] for name, value in layout.views(image).items()} == {
        "base.w": 0.0, "lora.a": 1.0, "lora.b": 1.0,
    }  # fmt: skip


def test_a_broken_delta_is_refused() -> None:
    layout, old, new = two(0.01)
    good = delta.diff(layout, old, new)
    for cut in (1, 15, 20, 40, good.size - 1):
        with pytest.raises(StaleRead):
            delta.apply(layout, old.copy(), good[:cut])
    for place, value in ((0, 77), (4, 9), (8, 250), (16, 250)):
        bad = good.copy()
        bad[place] = value
        with pytest.raises(StaleRead):
            delta.apply(layout, old.copy(), bad)
    bad = good.copy()
    counts = bad[16:32].view("<u4")
    counts[:] = [0, 0, 0, counts.sum()]  # places beyond the 200,000th element
    with pytest.raises(StaleRead, match="of 200000"):
        delta.apply(layout, old.copy(), bad)


# --- packing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", packing.PACKINGS)
@pytest.mark.parametrize("size", [0, 1, 7, 4096])
def test_packings_come_back(name: str, size: int) -> None:
    data = np.random.default_rng(3).integers(0, 256, size, dtype=np.uint8)
    for width in (1, 2, 4):
        packed = packing.pack(data, name, width)
        assert np.array_equal(packing.unpack(packed, name, width, size), data)
        for wrong in (size + 1, size - 1):
            if wrong >= 0:
                with pytest.raises(WireError):
                    packing.unpack(packed, name, width, wrong)


def test_sorting_bytes_is_what_makes_weights_smaller() -> None:
    data = np.random.default_rng(4).standard_normal(50_000).astype(np.float32).view(np.uint8)
    sizes = [packing.pack(data, "zlib", width).size for width in (1, 4)]
    assert sizes[1] < 0.9 * data.size and sizes[1] < sizes[0]


@pytest.mark.parametrize(("name", "data"), [("lzma", b""), ("zlib", b"nonsense")])
def test_what_is_not_packed_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(WireError, match=name):
        packing.unpack(np.frombuffer(data, np.uint8), name, 1, 10)


def test_packing_pays_only_on_slow_links() -> None:
    gain = packing.Gain(ratio=1.25, bytes_per_s=50e6)
    # Saves a fifth: pays while 1/50 < 0.2/rate, which is below 10 MB/s.
    assert gain.pays(9.9e6) and not gain.pays(10.1e6)
    assert not gain.pays(0.0), "an unknown rate"
    assert not packing.Gain(1.0, 1e12).pays(1.0), "saves nothing"
    assert packing.choose(["zlib"]) == "zlib" and packing.choose(["other"]) == ""
