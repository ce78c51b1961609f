"""All rows in order are told from every other selection."""

import numpy as np
import pytest

from rollbus_core.all_rows import AllRows


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint8"])
def test_all_rows_in_order_are_known_in_any_integer_type(dtype):
    assert AllRows(5).are(np.arange(5, dtype=dtype))


@pytest.mark.parametrize(
    "rows",
    [
        np.arange(4, dtype=np.int32),
        np.arange(6, dtype=np.int32),
        np.array([1, 0, 2, 3, 4], np.int32),
        np.array([0, 1, 2, 3, 3], np.int32),
        np.arange(5, dtype=np.int32)[None],
        np.arange(5, dtype=np.int32).view(np.float32),
        np.arange(5, dtype=np.int32).byteswap(),
        np.zeros(0, np.int32),
    ],
)
def test_others_are_not(rows):
    assert not AllRows(5).are(rows)


def test_strided_rows_are_compared_by_value():
    assert AllRows(5).are(np.arange(10, dtype=np.int32)[:5])
    assert not AllRows(5).are(np.arange(10, dtype=np.int32)[::2])


def test_its_own_rows_cannot_be_changed():
    every = AllRows(3)
    assert every.are(every.rows)
    with pytest.raises(ValueError):
        every.rows[0] = 2
