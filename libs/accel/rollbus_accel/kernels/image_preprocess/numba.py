"""Images on the CPU: a row of output pixels at a time, where each comes from computed once per image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numba import njit
from torch import Tensor

Array = np.ndarray


@njit(cache=True, nogil=True, fastmath={"contract", "nsz", "reassoc"}, error_model="numpy")
def _convert(images: Array, offsets: Array, crop: Array, scale: Array, shift: Array, out: Array) -> None:
    """Without a change of size."""
    num, channels, out_height, out_width = out.shape
    for n in range(num):
        top = min(max(offsets[n, 0], 0), images.shape[1] - crop[0])
        left = min(max(offsets[n, 1], 0), images.shape[2] - crop[1])
        for y in range(out_height):
            for c in range(channels):
                factor, offset = scale[c], shift[c]
                for x in range(out_width):
                    out[n, c, y, x] = np.float32(images[n, top + y, left + x, c]) * factor + offset


@njit(cache=True, nogil=True, inline="always")
def _sources(size: int, length: int, near: Array, far: Array, part: Array) -> None:
    """For each of ``size`` output pixels, the two of ``length`` it lies between, and how far."""
    step = np.float32(length) / np.float32(size)
    for i in range(size):
        at = max((np.float32(i) + np.float32(0.5)) * step - np.float32(0.5), np.float32(0.0))
        near[i] = min(int(at), length - 1)
        far[i] = min(near[i] + 1, length - 1)
        part[i] = at - np.float32(near[i])


@njit(cache=True, nogil=True, fastmath={"contract", "nsz", "reassoc"}, error_model="numpy")
def _resize(images: Array, offsets: Array, crop: Array, scale: Array, shift: Array, out: Array) -> None:
    num, channels, out_height, out_width = out.shape
    rows = np.empty((2, out_height), np.int64), np.empty(out_height, np.float32)
    columns = np.empty((2, out_width), np.int64), np.empty(out_width, np.float32)
    _sources(out_height, crop[0], rows[0][0], rows[0][1], rows[1])
    _sources(out_width, crop[1], columns[0][0], columns[0][1], columns[1])
    blended = np.empty(images.shape[2] * channels, np.float32)
    for n in range(num):
        top = min(max(offsets[n, 0], 0), images.shape[1] - crop[0])
        left = min(max(offsets[n, 1], 0), images.shape[2] - crop[1])
        for y in range(out_height):
            upper = images[n, top + rows[0][0, y], left : left + crop[1]]
            lower = images[n, top + rows[0][1, y], left : left + crop[1]]
            weight = rows[1][y]
            # Vertically first: that runs along memory.
            for x in range(crop[1]):
                for c in range(channels):
                    a = np.float32(upper[x, c])
                    blended[c * crop[1] + x] = a + (np.float32(lower[x, c]) - a) * weight
            for c in range(channels):
                factor, offset, base = scale[c], shift[c], c * crop[1]
                for x in range(out_width):
                    a = blended[base + columns[0][0, x]]
                    b = blended[base + columns[0][1, x]]
                    out[n, c, y, x] = (a + (b - a) * columns[1][x]) * factor + offset


def image_preprocess(
    images: Tensor,
    offsets: Tensor,
    crop: Sequence[int],
    size: Sequence[int],
    scale: Tensor,
    shift: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """As the reference."""
    out = torch.empty(len(images), images.shape[3], *size, dtype=torch.float32)
    if out.numel():
        run = _convert if tuple(crop) == tuple(size) else _resize
        run(
            images.contiguous().numpy(), offsets.contiguous().numpy(), np.array(crop), scale.numpy(),
            shift.numpy(), out.numpy(),
        )  # fmt: skip
    return out.to(dtype)
