"""Root-mean-square normalisation, step by step."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(y [N, H], 1 / rms [N]) of ``x`` [N, H]; see the public function."""
    kind = torch.promote_types(x.dtype, torch.float32)
    wide = x.to(kind)
    inverse_rms = (wide.square().mean(-1) + eps).rsqrt()
    return (wide * inverse_rms[:, None] * weight.to(kind)).to(x.dtype), inverse_rms


def rms_norm_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, inverse_rms: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of ``x`` and ``weight``: with n = x / rms, the part of ``w * grad`` along n is taken out."""
    kind = torch.promote_types(x.dtype, torch.float32)
    grad, inverse = grad_y.to(kind), inverse_rms[:, None]
    normed = x.to(kind) * inverse
    scaled = grad * weight.to(kind)
    along = (scaled * normed).mean(-1, keepdim=True)
    return ((scaled - normed * along) * inverse).to(x.dtype), (grad * normed).sum(0).to(weight.dtype)
