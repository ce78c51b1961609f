"""Which head an action spec and the settings give, and action chunks as wider heads.

Symbols as in `_head_base`, and C actions of one decision of which k are executed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from torch import Tensor

from rollbus_policies._executed import mean_over
from rollbus_policies._head_base import Head
from rollbus_policies._heads_around import Around
from rollbus_policies._heads_discrete import (
    Bins,
    Categorical,
    MultiCategorical,
    QValues,
    first_to_finish,
    race,
)
from rollbus_policies._heads_gaussian import Deterministic, Gaussian, StateGaussian, TanhGaussian
from rollbus_policies._heads_masked import MaskedChoices, MaskedElements
from rollbus_policies._heads_sde import Sde, TanhSde
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec

__all__ = ["Bins", "Categorical", "ChunkHead", "Gaussian", "Head", "MultiCategorical", "StateGaussian"]
__all__ += ["TanhGaussian", "chunk_spec", "first_to_finish", "make_head", "race"]


class ChunkHead(Around):
    """C actions of one decision as the independent elements of one wider head.

    The first k are executed; only these are scored, and of them only those that really were.
    """

    no_sampler = "its action chunks are sampled in torch"

    def __init__(self, inner: Head, spec: ActionSpec, chunk: int, execute: int) -> None:
        super().__init__(inner)
        self._shape, self._chunk, self._execute = spec.shape, chunk, execute
        self._wide_shape = chunk_spec(spec, chunk).shape

    def log_probs(self, params: Any, action: Tensor) -> Tensor:
        """[..., k]: of each action that is to be executed."""
        return self._per_action(self.inner.log_probs(params, action))

    def entropies(self, params: Any) -> Tensor:
        """[..., k], in nats."""
        return self._per_action(self.inner.entropies(params))

    def cloning_loss(self, params: Any, action: Tensor, valid: Tensor | None) -> Tensor:
        """Negative log-likelihood [...] in nats per action, over all C that are ``valid`` bool [..., C]."""
        loss = -self.inner.log_probs(params, action).unflatten(-1, (self._chunk, -1)).sum(-1)
        return mean_over(loss, valid)

    def squash(self, action: Tensor) -> Tensor:
        """The k actions that are executed, [..., k, *shape]."""
        unit = self.inner.squash(action)
        lead = unit.shape[: unit.ndim - len(self.action[1])]
        return unit.reshape(*lead, self._chunk, *self._shape).narrow(len(lead), 0, self._execute)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """[B, k, *shape]."""
        return self.whole(action)[:, : self._execute]

    def executed(self, action: Tensor) -> Tensor:
        """[B, k, *shape]."""
        return self.inner.executed(action).reshape(-1, self._chunk, *self._shape)[:, : self._execute]

    def whole(self, action: np.ndarray) -> np.ndarray:
        """All C actions in the environment's units, [B, C, *shape]."""
        return self.inner.env_action(action).reshape(len(action), self._chunk, *self._shape)

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        """Of [B, C, *shape]."""
        return self.inner.from_env_action(action.reshape(len(action), *self._wide_shape))

    def _per_action(self, elements: Tensor) -> Tensor:
        return elements.unflatten(-1, (self._chunk, -1)).sum(-1)[..., : self._execute]


def chunk_spec(spec: ActionSpec, chunk: int) -> ActionSpec:
    """C actions of ``spec`` as one: a leading dimension, and D C choices where they are discrete."""
    shape = (chunk, *spec.shape)
    if spec.kind != "continuous":
        return ActionSpec("multi_discrete", (chunk * spec.size,), num=list(spec.num) * chunk)
    return dataclasses.replace(spec, shape=shape, low=list(spec.low) * chunk, high=list(spec.high) * chunk)


_GAUSSIANS = {
    "tanh_gaussian": TanhGaussian, "state_gaussian": StateGaussian, "deterministic": Deterministic,
    "gsde": Sde, "tanh_gsde": TanhSde,
}  # fmt: skip
#: Heads that give Q of every discrete action.
Q_HEADS = ("q_values", "dueling_q_values")


def make_head(
    kind: str, spec: ActionSpec, log_std_init: float = 0.0, *, num_bins: int = 11, chunk: int = 1,
    execute: int = 1, masked: bool = False,
) -> Head:  # fmt: skip
    """The head for ``spec``; ``kind``, a setting ``policy.head``, chooses among continuous ones.

    ``masked``: rows have only some of its elements or choices.
    """
    if chunk > 1 and kind in ("gsde", "tanh_gsde"):
        raise SpecError(f"policy.head: {kind} explores one action per decision; set policy.chunk: 1")
    if chunk > 1:
        wide = make_head(kind, chunk_spec(spec, chunk), log_std_init, num_bins=num_bins, masked=masked)
        return ChunkHead(wide, spec, chunk, execute)
    if masked:
        inner = make_head(kind, spec, log_std_init, num_bins=num_bins)
        return MaskedElements(inner) if spec.kind == "continuous" else MaskedChoices(inner)
    if spec.kind == "continuous":
        if kind == "bins":
            return Bins(spec, num_bins)
        if kind in Q_HEADS:
            raise SpecError(f"policy.head: {kind} has one output per action, these are continuous")
        return _GAUSSIANS.get(kind, Gaussian)(spec, log_std_init)
    if kind in Q_HEADS and spec.kind == "discrete":
        return QValues(spec.num[0], dueling=kind == "dueling_q_values")
    if kind in Q_HEADS:
        raise SpecError(f"policy.head: {kind} needs one discrete action, these are {spec.kind}")
    if kind != "auto":
        raise SpecError(
            f"policy.head: {kind} needs continuous actions, these are {spec.kind}; set head: auto, and an "
            "algorithm that takes them (rollbus matrix)"
        )
    if spec.kind == "discrete":
        return Categorical(spec.num[0])
    if len(spec.shape) != 1:
        raise SpecError(f"multi_discrete actions of shape {list(spec.shape)}; one dimension is supported")
    return MultiCategorical(spec.num)
