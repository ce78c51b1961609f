"""The codec against generated values and damaged bytes."""

from __future__ import annotations

import numpy as np
import pytest

from rollbus_wire import codec
from rollbus_wire.errors import WireError

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as hnp  # noqa: E402

ARRAYS = st.sampled_from(codec.DTYPES).flatmap(
    lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12))
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    PLAIN | ARRAYS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, dict)) and len(a) == len(b):
        keys = range(len(a)) if isinstance(a, list) else a
        return all(same(a[k], b[k]) for k in keys)
    return type(a) is type(b) and (a == b or a != a)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_values_come_back(value):
    assert same(value, codec.unpack([bytes(f) for f in codec.pack(value)]))


@settings(max_examples=300, deadline=None)
@given(VALUES, st.data())
def test_damage_is_a_wire_error_or_another_value(value, data):
    frames = [bytearray(bytes(f)) for f in codec.pack(value)]
    place = data.draw(st.integers(0, len(frames[0]) - 1))
    frames[0][place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frames)))
    try:
        codec.unpack([bytes(f) for f in frames[:cut]])
    except WireError:
        pass


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_are_a_wire_error_or_a_value(frames):
    try:
        codec.unpack(frames)
    except WireError:
        pass
