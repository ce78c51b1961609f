"""One optimiser per `Step`: Adam over the roles it trains, and nothing else gets a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from rollbus_learner.algorithm import Step

#: Elements of all gradients together up to which they are copied into one.
_SMALL = 1 << 20
#: Devices with a fused kernel of Adam.
_FUSED = ("cpu", "cuda", "mps", "xpu")


class StepOptimiser:
    """Adam (1412.6980) of one step. ``learning_rate`` is the step's own; `scale` multiplies it.

    Not the class of torch: making it imports torch's compiler, which takes as long as importing torch
    itself.
    """

    def __init__(self, step: Step, roles: Mapping[str, nn.Module]) -> None:
        self.step = step
        self.parameters = [p for name in step.trains for p in roles[name].parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError(f"step {step.name!r} trains {list(step.trains)}, which have no parameters")
        self.learning_rate = step.learning_rate
        self._means = [torch.zeros_like(p) for p in self.parameters]
        self._squares = [torch.zeros_like(p) for p in self.parameters]
        self._fused = self.parameters[0].device.type in _FUSED
        #: Steps of this optimiser, and of those how many did not reach a parameter.
        self._count = torch.zeros((), dtype=torch.float32, device=self.parameters[0].device)
        self._missed = [0] * len(self.parameters)

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

    def divide(self, count: float) -> None:
        """Divide the gradients: they were added up over parts of a minibatch with ``count`` samples."""
        torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], count)

    def apply(self) -> Tensor:
        """Clip, then step; the gradient norm before clipping, a scalar.

        A parameter that the loss did not reach keeps its value and its moments.
        """
        with torch.no_grad():
            parameters, means, squares, counts = self._reached()
            gradients = [p.grad for p in parameters if p.grad is not None]
            norm = total_norm(gradients)
            clip = self.step.clip
            # What gradients are divided by.
            scale = ((norm + 1e-6) / clip).clamp_(min=1.0) if clip else None
            update = torch._fused_adam_ if self._fused else _adam
            beta1, beta2 = self.step.betas
            update(
                parameters, gradients, means, squares, [], counts, amsgrad=False,
                lr=self.learning_rate, beta1=beta1, beta2=beta2, weight_decay=0.0,
                eps=self.step.eps, maximize=False, grad_scale=scale,
            )  # fmt: skip
        return norm

    def _reached(self) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
        """Parameters with a gradient, their moments, and how many steps they have made with this one."""
        self._count += 1
        reached = [p.grad is not None for p in self.parameters]
        if all(reached) and not any(self._missed):
            return list(self.parameters), self._means, self._squares, [self._count] * len(reached)
        self._missed = [missed + (not got) for missed, got in zip(self._missed, reached)]
        counts = [self._count - missed for missed in self._missed]
        parts = (self.parameters, self._means, self._squares, counts)
        parameters, means, squares, counts = ([*compress(part, reached)] for part in parts)
        return parameters, means, squares, counts

    def state(self) -> dict[str, Any]:
        """Moments and step counts, in the order of the parameters."""
        return {
            "mean": dict(enumerate(self._means)),
            "square": dict(enumerate(self._squares)),
            "count": {i: self._count - missed for i, missed in enumerate(self._missed)},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`; raises `ValueError` if it is of other parameters."""
        for name, mine in (("mean", self._means), ("square", self._squares)):
            given = {int(index): value for index, value in state[name].items()}
            shapes = [tuple(given[i].shape) if i in given else None for i in range(len(mine))]
            if len(given) != len(mine) or shapes != [tuple(t.shape) for t in mine]:
                raise ValueError(
                    f"optimiser state {name!r} of step {self.step.name!r} does not fit: {shapes}"
                )
            for index, tensor in enumerate(mine):
                tensor.copy_(given[index])
        counts = {int(index): int(value) for index, value in state["count"].items()}
        if sorted(counts) != list(range(len(self.parameters))):
            raise ValueError(f"optimiser state 'count' of step {self.step.name!r} does not fit: {counts}")
        self._count.fill_(max(counts.values()))
        self._missed = [max(counts.values()) - counts[index] for index in range(len(counts))]


def build(steps: Iterable[Step], roles: Mapping[str, nn.Module]) -> dict[str, StepOptimiser]:
    """One optimiser per step, by the step's name."""
    return {step.name: StepOptimiser(step, roles) for step in steps}


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Joint 2-norm, a scalar. One copy of small gradients costs less than a reduction of each."""
    if sum(gradient.numel() for gradient in gradients) <= _SMALL:
        return torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def _adam(
    parameters: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor],
    _: list[Tensor], counts: list[Tensor], *, grad_scale: Tensor | None, **settings: Any,
) -> None:  # fmt: skip
    """What `torch._fused_adam_` does, where the device has no such kernel."""
    if grad_scale is not None:
        torch._foreach_div_(gradients, grad_scale)
    before = [count - 1 for count in counts]
    adam(parameters, gradients, means, squares, [], before, **settings)
