"""One update of any algorithm, as a function of its arguments. Effects are at the caller."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from rollbus_learner.algorithm import Algorithm, Loss, Progress, Step
from rollbus_learner.execution import Execution
from rollbus_learner.minibatch import minibatches
from rollbus_learner.optim import StepOptimiser
from rollbus_wire.errors import Diverged

if TYPE_CHECKING:
    from torch import Tensor

    from rollbus_learner.algorithm import Batch, Roles

PLAIN = Execution()


class NonFiniteLoss(Diverged):
    """A term of a loss (before its step was taken) or a gradient is NaN or infinite.

    ``batch`` is the minibatch that gave it.
    """

    def __init__(self, term: str, step: str, value: float, batch: Batch) -> None:
        super().__init__(
            f"{term} of step {step!r} is {value}: nothing of this update is published or saved. Lower the "
            "learning rate, set a gradient limit, or look at the minibatch that was written to the run folder"
        )
        self.term, self.step, self.batch = term, step, batch


class Sums:
    """Metrics as sums and counts, divided once at the end."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        #: Names of what is trained on.
        self.terms: set[str] = set()

    def add(self, name: str, numerator: float, count: float = 1.0) -> None:
        """Add ``numerator`` over ``count`` samples."""
        self._sums[name] = self._sums.get(name, 0.0) + numerator
        self._counts[name] = self._counts.get(name, 0.0) + count

    def merge(self, other: Sums) -> None:
        """Add all sums and counts of ``other``."""
        for name, numerator in other._sums.items():
            self.add(name, numerator, other._counts[name])

    def common_count(self, step: str) -> float:
        """What the trained terms are divided by; ValueError unless it is one number."""
        counts = {self._counts[name] for name in self.terms}
        if len(counts) != 1:
            raise ValueError(
                f"the terms of step {step!r} are means over different numbers of samples, "
                f"{sorted(counts)}: set learner.micro_batch to 0"
            )
        return max(counts.pop(), 1.0)

    def means(self) -> dict[str, float]:
        """Mean per name; without those of no sample."""
        return {name: self._sums[name] / count for name, count in self._counts.items() if count}


def update(
    algorithm: Algorithm,
    roles: Roles,
    optimisers: Mapping[str, StepOptimiser],
    batch: Batch,
    progress: Progress,
    generator: torch.Generator,
    execution: Execution = PLAIN,
) -> dict[str, float]:
    """Label, then epochs x minibatches x steps; returns means over all samples gone through.

    Raises `NonFiniteLoss` before the optimiser step at the first term that is not finite.
    """
    factors = algorithm.before_update(progress)
    for name, optimiser in optimisers.items():
        optimiser.scale(factors.get(name, 1.0))
    with execution.autocast():
        labels = algorithm.label(batch, roles, progress)
    sums = Sums()
    num_minibatches = _epochs(algorithm, roles, optimisers, batch, generator, execution, sums)
    metrics = {**labels, **sums.means(), "minibatches": float(num_minibatches)}
    algorithm.after_update(batch, roles, metrics)
    return metrics


def _epochs(
    algorithm: Algorithm,
    roles: Roles,
    optimisers: Mapping[str, StepOptimiser],
    batch: Batch,
    generator: torch.Generator,
    execution: Execution,
    sums: Sums,
) -> int:
    """All epochs, or until `Algorithm.after_step` ends the update; the minibatches gone through."""
    steps, done = algorithm.steps(), 0
    for part in minibatches(batch, algorithm.plan(), generator):
        done += 1
        for step in steps:
            if done % step.every:
                continue
            metrics = take(step, roles, optimisers[step.name], part, sums, execution)
            if algorithm.after_step(roles, step.name, metrics):
                return done
    return done


def take(
    step: Step, roles: Roles, optimiser: StepOptimiser, batch: Batch, sums: Sums,
    execution: Execution = PLAIN,
) -> dict[str, float]:  # fmt: skip
    """One optimiser step on one minibatch; returns its own means."""
    optimiser.zero()
    own = Sums()
    parts = execution.parts(batch)
    for part in parts:
        with execution.autocast():
            loss = step.loss(roles, part)
        optimiser.backward(_collect(loss, step, part, own, whole=len(parts) == 1))
    if len(parts) > 1:
        optimiser.divide(own.common_count(step.name))
    norm = float(optimiser.apply())
    if not math.isfinite(norm):
        raise NonFiniteLoss("gradient norm", step.name, norm, batch)
    sums.merge(own)
    sums.add(f"grad_norm_{step.name}", norm)
    return own.means()


def _collect(loss: Loss, step: Step, batch: Batch, sums: Sums, *, whole: bool) -> Tensor:
    """The loss; of a part of a minibatch (not ``whole``) the sum that is still to be divided by the count.

    Numerators are read all at once (one wait for the device).
    """
    both = {**loss.terms, **loss.metrics}
    numerators, counts = zip(*both.values())
    with torch.no_grad():
        read = torch.stack(numerators).tolist(), _numbers(counts)
    parts: list[Tensor] = []
    for name, tensor, numerator, count in zip(both, numerators, *read):
        if name in loss.terms:
            if not math.isfinite(numerator):
                raise NonFiniteLoss(f"loss term {name!r}", step.name, numerator, batch)
            parts.append(tensor / max(count, 1) if whole else tensor)
            sums.terms.add(name)
        sums.add(name, numerator, count)
    return functools.reduce(torch.add, parts)


def _numbers(counts: Sequence[Tensor | int]) -> Sequence[float]:
    """``counts`` as numbers; those on a device are read at once."""
    if all(isinstance(count, int) for count in counts):
        return counts  # type: ignore[return-value]
    return torch.stack([torch.as_tensor(count) for count in counts]).tolist()
