"""Crop, resize, normalise, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def image_preprocess(
    images: Tensor,
    offsets: Tensor,
    crop: Sequence[int],
    size: Sequence[int],
    scale: Tensor,
    shift: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """As the public function, with ``pixel * scale + shift`` per channel."""
    num, height, width, _ = images.shape
    top = offsets[:, 0].clamp(0, height - crop[0])
    left = offsets[:, 1].clamp(0, width - crop[1])
    rows = top[:, None] + torch.arange(crop[0], device=images.device)
    columns = left[:, None] + torch.arange(crop[1], device=images.device)
    which = torch.arange(num, device=images.device)[:, None, None]
    window = images[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).float()
    if window.numel():
        window = functional.interpolate(window, tuple(size), mode="bilinear", align_corners=False)
    else:
        window = window.new_empty(num, images.shape[3], *size)
    return (window * scale[:, None, None] + shift[:, None, None]).to(dtype).contiguous()
