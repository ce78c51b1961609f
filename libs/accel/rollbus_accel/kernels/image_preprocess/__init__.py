"""Camera images to network input: crop, bilinear resize, normalisation, channels first; one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import same_device, shape

_OP = "image_preprocess"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_CHANNELS = 8


def _fake(
    images: Tensor, offsets: Tensor, crop: Sequence[int], size: Sequence[int], scale: Tensor, shift: Tensor,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    return images.new_empty(len(images), images.shape[3], *size, dtype=dtype)


_op = Op(
    _OP,
    schema="(Tensor images, Tensor offsets, int[] crop, int[] size, Tensor scale, Tensor shift, "
    "ScalarType dtype) -> Tensor",
    fake=_fake,
)


def image_preprocess(
    images: Tensor,
    size: tuple[int, int] | None = None,
    crop: tuple[int, int] | None = None,
    offsets: Tensor | None = None,
    mean: Sequence[float] | float = 0.0,
    std: Sequence[float] | float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``(pixel / 255 - mean) / std`` of ``dtype`` [N, C, h, w]. No gradients.

    ``images`` are uint8 [N, H, W, C]. Of each, the window ``crop`` (height, width; default: all) is cut at
    ``offsets`` int64 [N, 2] (top, left; default: the middle), moved into the image where they reach beyond;
    random ones are DrQ's augmentation. It is resized to ``size`` (h, w; default: the window's) as torch's
    ``interpolate(mode="bilinear")`` does, without antialiasing: shrink large images beforehand. ``mean`` and
    ``std`` are per channel or one for all, in units of 1.

    ValueError for shapes, dtypes and numbers that do not fit.
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(f"{_OP}: images are {images.dtype} {list(images.shape)}; give uint8 [N, H, W, C]")
    num, height, width, channels = images.shape
    window = _window(crop, height, width)
    if not 1 <= channels <= MAX_CHANNELS:
        raise ValueError(f"{_OP}: {channels} channels; give 1 to {MAX_CHANNELS}, in the last dimension")
    out = window if size is None else tuple(size)
    if len(out) != 2 or min(out) < 1:
        raise ValueError(f"{_OP}: size is {size}; give (height, width)")
    if dtype not in DTYPES:
        raise ValueError(f"{_OP}: dtype is {dtype}; give one of {', '.join(str(d) for d in DTYPES)}")
    offsets = _offsets(offsets, images, window)
    scale, shift = (x.to(images.device) for x in _affine(mean, std, channels))
    result: Tensor = _op(images, offsets, list(window), list(out), scale, shift, dtype)
    return result


def _window(crop: tuple[int, int] | None, height: int, width: int) -> tuple[int, int]:
    window = (height, width) if crop is None else (int(crop[0]), int(crop[1]))
    if not (1 <= window[0] <= height and 1 <= window[1] <= width):
        raise ValueError(f"{_OP}: a crop of {window} does not fit images of {height}x{width}")
    return window


def _offsets(offsets: Tensor | None, images: Tensor, window: tuple[int, int]) -> Tensor:
    num, height, width, _ = images.shape
    if offsets is None:
        middle = torch.tensor([(height - window[0]) // 2, (width - window[1]) // 2], device=images.device)
        return middle.expand(num, 2)
    if offsets.dtype != torch.int64:
        raise ValueError(f"{_OP}: offsets are {offsets.dtype}; give int64")
    shape(_OP, "offsets", offsets, (num, 2))
    same_device(_OP, {"images": images, "offsets": offsets})
    return offsets


def _affine(
    mean: Sequence[float] | float, std: Sequence[float] | float, channels: int
) -> tuple[Tensor, Tensor]:
    """(scale, shift) float32 [C] that take a pixel of 0..255 to its normalised value."""
    columns = []
    for name, given in (("mean", mean), ("std", std)):
        column = torch.as_tensor(given, dtype=torch.float64)
        if column.shape not in ((), (channels,)):
            raise ValueError(f"{_OP}: {name} is {given}; give one number, or one per channel: {channels}")
        columns.append(column.expand(channels))
    # In Python: torch.compile follows no branch on what a tensor holds.
    if not all(each > 0 for each in ([std] if isinstance(std, int | float) else std)):
        raise ValueError(f"{_OP}: std is {std}; give numbers above 0")
    return (1 / (255 * columns[1])).float(), (-columns[0] / columns[1]).float()
