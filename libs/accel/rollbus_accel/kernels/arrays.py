"""Tensors of the CPU as the arrays that numba kernels take: contiguous, shared where they already are."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def float32(x: Tensor) -> np.ndarray:
    """``x`` as a contiguous float32 array."""
    if x.dtype != torch.float32:
        x = x.to(torch.float32)
    return (x if x.is_contiguous() else x.contiguous()).detach().numpy()


def flags(x: Tensor) -> np.ndarray:
    """A bool ``x`` as a contiguous bool array."""
    return (x if x.is_contiguous() else x.contiguous()).numpy()


def seeds(x: Tensor) -> np.ndarray:
    """int64 or uint64 ``x`` as a contiguous uint64 array of the same bits."""
    return x.view(torch.int64).contiguous().numpy().view(np.uint64)
