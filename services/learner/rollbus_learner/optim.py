"""One optimiser per `Step`: Adam over the roles it trains, and nothing else gets a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from rollbus_learner.algorithm import Step


class StepOptimiser:
    """Adam (1412.6980) of one step. ``learning_rate`` is the step's own; `scale` multiplies it.

    The functional form of torch's Adam, because making the class imports torch's compiler, which
    takes as long as importing torch itself.
    """

    def __init__(self, step: Step, roles: Mapping[str, nn.Module]) -> None:
        self.step = step
        self.parameters = [p for name in step.trains for p in roles[name].parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError(f"step {step.name!r} trains {list(step.trains)}, which have no parameters")
        self.learning_rate = step.learning_rate
        self._means = [torch.zeros_like(p) for p in self.parameters]
        self._squares = [torch.zeros_like(p) for p in self.parameters]
        self._counts = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]

    def scale(self, factor: float) -> None:
        """Set the learning rate to ``factor`` times the step's."""
        self.learning_rate = self.step.learning_rate * factor

    def zero(self) -> None:
        """Drop the gradients of the last step."""
        for parameter in self.parameters:
            parameter.grad = None

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of ``loss`` to the parameters this step trains only."""
        torch.autograd.backward(loss, inputs=self.parameters)

    def apply(self) -> Tensor:
        """Clip, then step; the gradient norm before clipping, a scalar.

        A parameter that the loss did not reach keeps its value and its moments.
        """
        found = [(i, p.grad) for i, p in enumerate(self.parameters) if p.grad is not None]
        reached, gradients = [i for i, _ in found], [gradient for _, gradient in found]
        norm = clip_gradients(gradients, self.step.clip)
        beta1, beta2 = self.step.betas
        with torch.no_grad():
            adam(
                [self.parameters[i] for i in reached], gradients,
                [self._means[i] for i in reached], [self._squares[i] for i in reached], [],
                [self._counts[i] for i in reached],
                fused=_has_fused(self.parameters[0].device.type), amsgrad=False, beta1=beta1, beta2=beta2,
                lr=self.learning_rate, weight_decay=0.0, eps=self.step.eps, maximize=False,
            )  # fmt: skip
        return norm

    def state(self) -> dict[str, Any]:
        """Moments and step counts, in the order of the parameters."""
        return {
            "mean": dict(enumerate(self._means)),
            "square": dict(enumerate(self._squares)),
            "count": dict(enumerate(self._counts)),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`; raises `ValueError` if it is of other parameters."""
        for name, mine in (("mean", self._means), ("square", self._squares), ("count", self._counts)):
            given = {int(index): value for index, value in state[name].items()}
            shapes = [tuple(given[i].shape) if i in given else None for i in range(len(mine))]
            if len(given) != len(mine) or shapes != [tuple(t.shape) for t in mine]:
                raise ValueError(
                    f"optimiser state {name!r} of step {self.step.name!r} does not fit: {shapes}"
                )
            for index, tensor in enumerate(mine):
                tensor.copy_(given[index])


def build(steps: Iterable[Step], roles: Mapping[str, nn.Module]) -> dict[str, StepOptimiser]:
    """One optimiser per step, by the step's name."""
    return {step.name: StepOptimiser(step, roles) for step in steps}


def clip_gradients(gradients: list[Tensor], limit: float) -> Tensor:
    """Scale ``gradients`` so that their joint norm is at most ``limit`` (0: none); the norm before."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit:
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm


def _has_fused(device: str) -> bool:
    return device in ("cpu", "cuda")
