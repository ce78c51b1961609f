"""One optimiser per `Step`: Adam over the roles the step trains, and nothing else gets a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rollbus_learner.algorithm import Step


class StepOptimiser:
    """Adam of one step. ``learning_rate`` is the step's own; `scale` multiplies it."""

    def __init__(self, step: Step, roles: Mapping[str, nn.Module]) -> None:
        self.step = step
        self.parameters = [p for name in step.trains for p in roles[name].parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError(f"step {step.name!r} trains {list(step.trains)}, which have no parameters")
        self.adam = _adam(self.parameters, step)

    def scale(self, factor: float) -> None:
        """Set the learning rate to ``factor`` times the step's."""
        for group in self.adam.param_groups:
            group["lr"] = self.step.learning_rate * factor

    def zero(self) -> None:
        """Drop the gradients of the last step."""
        self.adam.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of ``loss`` to the parameters this step trains only."""
        torch.autograd.backward(loss, inputs=self.parameters)

    def apply(self) -> Tensor:
        """Clip, then step; the gradient norm before clipping, a scalar."""
        norm = clip_gradients(self.parameters, self.step.clip)
        self.adam.step()
        return norm

    def state(self) -> dict[str, Any]:
        """The optimiser's `state_dict`."""
        return self.adam.state_dict()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.adam.load_state_dict(dict(state))


def build(steps: Iterable[Step], roles: Mapping[str, nn.Module]) -> dict[str, StepOptimiser]:
    """One optimiser per step, by the step's name."""
    return {step.name: StepOptimiser(step, roles) for step in steps}


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale all gradients so that their joint norm is at most ``limit`` (0: none); the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if limit:
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm


def _adam(parameters: list[nn.Parameter], step: Step) -> torch.optim.Adam:
    """Adam, fused where the device has it, else one kernel per operation."""
    settings: dict[str, Any] = {"lr": step.learning_rate, "betas": step.betas, "eps": step.eps}
    try:
        return torch.optim.Adam(parameters, fused=True, **settings)
    except RuntimeError:
        return torch.optim.Adam(parameters, foreach=True, **settings)
