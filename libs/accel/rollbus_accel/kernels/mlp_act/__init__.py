"""A whole small policy network in one call, without gradients: what an actor runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, same_device, shape

_OP = "mlp_act"
ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu")
MAX_WIDTH = 256
#: Values normalised are cut at this many standard deviations.
CLIP = 10.0


def _fake(obs: Tensor, weights: Sequence[Tensor], *rest: object) -> Tensor:
    return obs.new_empty(len(obs), len(weights[-1]), dtype=torch.float32)


_op = Op(
    _OP,
    schema="(Tensor obs, Tensor[] weights, Tensor[] biases, Tensor shift, Tensor scale, float clip, "
    "str activation) -> Tensor",
    fake=_fake,
)


def mlp_act(
    obs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str = "tanh",
    shift: Tensor | None = None,
    scale: Tensor | None = None,
    clip: float = CLIP,
) -> Tensor:
    """float32 [N, A]: what two or three layers make of normalised observations. No gradients.

    ``obs`` [N, D] of floating point becomes ``(obs - shift) * scale``, cut at ``clip`` (`Normaliser` of
    rollbus_policies); ``shift`` and ``scale`` are float32 [D], default 0 and 1. Layer i has ``weights[i]``
    [out, in] as torch.nn.Linear and ``biases[i]`` [out], all of one floating dtype, of at most 256 units;
    hidden layers are followed by ``activation``: tanh, relu, elu, silu or gelu. Layers of bfloat16 get
    bfloat16 inputs, sum in float32 and add their bias there.

    ValueError for shapes, dtypes, depths and widths that do not fit.
    """
    _check_layers(obs, weights, biases, activation)
    size = obs.shape[1]
    if shift is None:
        shift = torch.zeros(size, device=obs.device)
    if scale is None:
        scale = torch.ones(size, device=obs.device)
    shape(_OP, "shift", shift, (size,))
    shape(_OP, "scale", scale, (size,))
    same_device(_OP, {"obs": obs, "shift": shift, "scale": scale})
    result: Tensor = _op(obs, list(weights), list(biases), shift, scale, float(clip), activation)
    return result


def _check_layers(obs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"{_OP}: activation {activation!r} is not one of: {', '.join(ACTIVATIONS)}")
    if len(weights) not in (2, 3) or len(biases) != len(weights):
        raise ValueError(f"{_OP}: {len(weights)} weights and {len(biases)} biases; give 2 or 3 of each")
    if obs.ndim != 2:
        raise ValueError(f"{_OP}: obs has the shape {list(obs.shape)}; give [N, D]")
    size = obs.shape[1]
    for i, (weight, bias) in enumerate(zip(weights, biases)):
        floats(_OP, {"obs": obs, f"weights[{i}]": weight, f"biases[{i}]": bias})
        same_device(_OP, {"obs": obs, f"weights[{i}]": weight, f"biases[{i}]": bias})
        if weight.ndim != 2 or weight.shape[1] != size:
            raise ValueError(f"{_OP}: weights[{i}] has the shape {list(weight.shape)}, not [out, {size}]")
        if not weight.dtype == bias.dtype == weights[0].dtype:
            raise ValueError(f"{_OP}: layer {i} is {weight.dtype} and {bias.dtype}; give one dtype to all")
        size = len(weight)
        shape(_OP, f"biases[{i}]", bias, (size,))
        if size > MAX_WIDTH:
            raise ValueError(f"{_OP}: layer {i} has {size} units, more than {MAX_WIDTH}; use torch.nn")
