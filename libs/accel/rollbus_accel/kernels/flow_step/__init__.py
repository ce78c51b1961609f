"""One step of a flow policy with its log-probability, and the log-probability of a step that was taken."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op
from rollbus_accel.kernels.checks import floats, masks, same_device, same_shape, shape
from rollbus_accel.kernels.checks import seeds as check_seeds
from rollbus_accel.kernels.flow_step.samplers import Weights


def _fake(x: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=torch.float32, memory_format=torch.contiguous_format), _fake_score(x)


def _fake_score(x: Tensor, *rest: object) -> Tensor:
    return x.new_empty(len(x), dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, to_log_prob: Tensor) -> tuple[Tensor | None, ...]:
    x, following, velocity, time, data, noise, std, counts = ctx.saved_tensors
    slope = noise * (1.0 - time) - data * time
    mean = (data + noise)[:, None] * x.float() + slope[:, None] * velocity.float()
    zero = torch.zeros((), device=x.device)
    z = torch.where(counts, (following.float() - mean) / std, zero)
    to_velocity = to_log_prob[:, None] * z * slope[:, None] / std
    to_std = torch.where(counts, to_log_prob[:, None] * (z * z - 1.0) / std, zero).sum_to_size(std.shape)
    return None, None, to_velocity.to(velocity.dtype), None, None, None, to_std.to(std.dtype), None


_COLUMNS = "Tensor velocity, Tensor time, Tensor data, Tensor noise, Tensor std, Tensor counts"
_step = Op("flow_step", schema=f"(Tensor x, {_COLUMNS}, Tensor seeds) -> (Tensor, Tensor)", fake=_fake)
_score = Op(
    "flow_log_prob",
    folder="flow_step",
    schema=f"(Tensor x, Tensor following, {_COLUMNS}) -> Tensor",
    fake=_fake_score,
    setup_context=_setup,
    backward=_backward,
)


def flow_step(
    x: Tensor, velocity: Tensor, time: Tensor, weights: Weights, seeds: Tensor, counts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(next x [B, D], its log-prob [B]), float32; ``x`` and ``velocity`` are [B, D], ``time`` is [B].

    ``weights`` are a sampler's; see `samplers`. Row i's noise is a function of ``seeds[i]`` (int64 or
    uint64) alone; see `philox`. The log-prob is over the elements of the bool ``counts`` [B, D], all by
    default, and 0 where the deviation is. No gradients: this is for acting.

    ValueError for shapes that do not fit, numbers that are not floats and seeds of another dtype.
    """
    weights, counts = _checked("flow_step", {"x": x, "velocity": velocity}, time, weights, counts)
    check_seeds("flow_step", seeds, len(x))
    same_device("flow_step", {"x": x, "seeds": seeds})
    following, log_prob = _step(x, velocity, time, *weights, counts, seeds.view(torch.int64))
    return following, log_prob


def flow_log_prob(
    x: Tensor,
    following: Tensor,
    velocity: Tensor,
    time: Tensor,
    weights: Weights,
    counts: Tensor | None = None,
) -> Tensor:
    """Log-prob [B] float32 of a step from ``x`` to ``following`` [B, D]; the rest as in `flow_step`.

    Gradients go to ``velocity`` and the deviation. ``x`` is data: what it owes to earlier steps is ignored.
    Where the deviation is 0 there is no density, and the result is not finite.
    """
    columns = {"x": x, "following": following, "velocity": velocity}
    weights, counts = _checked("flow_log_prob", columns, time, weights, counts)
    log_prob: Tensor = _score(x, following, velocity, time, *weights, counts)
    return log_prob


def _checked(
    op: str, columns: dict[str, Tensor], time: Tensor, weights: Weights, counts: Tensor | None
) -> tuple[Weights, Tensor]:
    """Weights with ``std`` [B, 1] or [B, D], and ``counts`` [B, D]; ValueError for what does not fit."""
    x = columns["x"]
    counts = torch.ones_like(x, dtype=torch.bool) if counts is None else counts
    std = weights.std[:, None] if weights.std.ndim == 1 else weights.std
    same_shape(op, {**columns, "counts": counts}, ndim=2)
    floats(op, {**columns, "time": time, **weights._asdict()})
    masks(op, {"counts": counts})
    for name, tensor in {"time": time, "data": weights.data, "noise": weights.noise}.items():
        shape(op, name, tensor, (len(x),))
    shape(op, "std", std, (len(x), 1) if std.shape[1] == 1 else tuple(x.shape))
    same_device(op, {"x": x, "time": time, **weights._asdict()})
    return weights._replace(std=std), counts
