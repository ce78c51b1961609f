"""A small policy network layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": functional.gelu,
}


def mlp_act(
    obs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    shift: Tensor,
    scale: Tensor,
    clip: float,
    activation: str,
) -> Tensor:
    """As the public function."""
    kind = torch.promote_types(obs.dtype, torch.float32)
    x = ((obs.to(kind) - shift) * scale).clamp(-clip, clip)
    last = len(weights) - 1
    for i, (weight, bias) in enumerate(zip(weights, biases)):
        x = functional.linear(x.to(weight.dtype).to(kind), weight.to(kind), bias.to(kind))
        x = x if i == last else FUNCTIONS[activation](x)
    return x.to(torch.float32)
