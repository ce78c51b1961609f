"""A delta as bytes: gaps between indices, as short as the largest allows, then the values."""

from __future__ import annotations

import struct

import numpy as np
import torch
from torch import Tensor

#: Number of elements, bytes of a gap, bytes of a value; little-endian.
_HEAD = struct.Struct("<QHH")
_GAPS = (np.uint8, np.uint16, np.uint32)


def pack(indices: Tensor, values: Tensor) -> bytes:
    """``indices`` int32 [K], increasing, and ``values`` [K], both of `weight_delta`, as bytes.

    With 1 % of the elements changed at random, an index takes two bytes.
    """
    numbers = indices.cpu().numpy().astype(np.int64)
    gaps = np.diff(numbers, prepend=-1) - 1
    if (gaps < 0).any():
        raise ValueError("weight_delta: indices do not increase; pack what weight_delta returned")
    largest = int(gaps.max(initial=0))
    kind = next(kind for kind in _GAPS if largest <= np.iinfo(kind).max)
    data = values.detach().cpu().contiguous().view(torch.uint8).numpy()
    head = _HEAD.pack(len(numbers), np.dtype(kind).itemsize, values.element_size())
    return b"".join((head, gaps.astype(np.dtype(kind).newbyteorder("<")).tobytes(), data.tobytes()))


def unpack(data: bytes | memoryview, num_elements: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The inverse of `pack`, for a tensor of ``num_elements`` of ``dtype``; (indices, values) on the CPU.

    ValueError for bytes that are not a delta of such a tensor.
    """
    if len(data) < _HEAD.size:
        raise ValueError(f"weight_delta: {len(data)} bytes are not a delta, whose head has {_HEAD.size}")
    count, gap_bytes, value_bytes = _HEAD.unpack_from(data)
    kinds = {np.dtype(kind).itemsize: np.dtype(kind).newbyteorder("<") for kind in _GAPS}
    wanted = _HEAD.size + count * (gap_bytes + dtype.itemsize)
    if gap_bytes not in kinds or value_bytes != dtype.itemsize or len(data) != wanted:
        raise ValueError(
            f"weight_delta: {len(data)} bytes are not a delta of {dtype}; their head states {count} elements "
            f"of {gap_bytes} + {value_bytes} bytes"
        )
    gaps = np.frombuffer(data, kinds[gap_bytes], count, _HEAD.size).astype(np.int64)
    indices = np.cumsum(gaps + 1) - 1
    if count and indices[-1] >= num_elements:
        raise ValueError(f"weight_delta: index {indices[-1]} is beyond the tensor's {num_elements} elements")
    values = np.frombuffer(data, np.uint8, count * value_bytes, _HEAD.size + count * gap_bytes).copy()
    return torch.from_numpy(indices.astype(np.int32)), torch.from_numpy(values).view(dtype)
