"""Heads of which a row has only a part, because its task has fewer action elements or choices than others.

They are called with one argument more, the mask of what is a row's own, and their parameters are
(the inner head's, mask). What is not a row's own is 0 in a stored action, and counts for nothing: no density,
no entropy, no gradient. Symbols as in `_head_base`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rollbus_policies._head_base import Head
from rollbus_policies._heads_around import Around
from rollbus_policies._transforms import to_tensor
from rollbus_wire.errors import SpecError

#: Logit of a choice that a row does not have: finite, so that p log p stays 0.
_ABSENT = -1e9


class Own(NamedTuple):
    """Parameters of the inner head, and bool [..., n]: which elements, or choices, are a row's own."""

    params: Any
    mask: Tensor


class _Masked(Around):
    no_sampler = "what is padding differs from row to row"


class MaskedElements(_Masked):
    """Elements that a row does not have are left out; of heads whose elements are independent."""

    def forward(self, raw: Tensor, *given: Tensor) -> Own:
        return Own(self.inner(raw, *given[:-1]), given[-1])

    def decide(self, params: Own, features: Tensor, seeds: np.ndarray, held: np.ndarray) -> Tensor:
        return self._kept(self.inner.decide(params.params, features, seeds, held), params.mask)

    def anything(self, params: Own, seeds: np.ndarray) -> Tensor:
        return self._kept(self.inner.anything(params.params, seeds).to(params.mask.device), params.mask)

    def mode(self, params: Own) -> Tensor:
        return self._kept(self.inner.mode(params.params), params.mask)

    def sample(self, params: Own, noise: Tensor) -> Tensor:
        return self._kept(self.inner.sample(params.params, noise), params.mask)

    def log_probs(self, params: Own, action: Tensor) -> Tensor:
        return _where(params.mask, self.inner.log_probs(params.params, self._kept(action, params.mask)))

    def entropies(self, params: Own) -> Tensor:
        return _where(params.mask, self.inner.entropies(params.params))

    def give(self, name: str, params: Own) -> Tensor:
        return self._kept(self.inner.give(name, params.params), params.mask)

    def _kept(self, action: Tensor, mask: Tensor) -> Tensor:
        return _where(mask.reshape(*mask.shape[:-1], *self.action[1]), action)


class MaskedChoices(_Masked):
    """Choices that a row does not have get no probability; an element that it does not have is always 0."""

    def __init__(self, inner: Head) -> None:
        super().__init__(inner)
        if not inner.has_density:
            raise SpecError(
                f"{type(inner).__name__} explores all choices alike, also those that a task does not have; "
                "set policy.head: auto, or give all tasks the same actions"
            )

    def forward(self, raw: Tensor, *given: Tensor) -> Own:
        mask = given[-1]
        absent = torch.full((), _ABSENT, dtype=raw.dtype, device=raw.device)
        return Own(self.inner(torch.where(mask, raw, absent), *given[:-1]), mask)

    def decide(self, params: Own, features: Tensor, seeds: np.ndarray, held: np.ndarray) -> Tensor:
        return self.inner.decide(params.params, features, seeds, held)

    def anything(self, params: Own, seeds: np.ndarray) -> Tensor:
        even = self.forward(torch.zeros(params.mask.shape, device=params.mask.device), params.mask)
        return self.inner.sample(even.params, to_tensor(self.noise(seeds), params.mask.device))

    def mode(self, params: Own) -> Tensor:
        return self.inner.mode(params.params)

    def sample(self, params: Own, noise: Tensor) -> Tensor:
        return self.inner.sample(params.params, noise)

    def log_probs(self, params: Own, action: Tensor) -> Tensor:
        """An element with but one choice is no choice: whatever ``action`` has there is taken for it."""
        has = params.mask[..., self.inner.index] & ~self.inner.absent  # type: ignore[index,operator]
        return self.inner.log_probs(params.params, _where(has.sum(-1) > 1, action))

    def entropies(self, params: Own) -> Tensor:
        return self.inner.entropies(params.params)

    def log_prob(self, params: Own, action: Tensor) -> Tensor:
        one = not self.action[1]  # a single choice, which all tasks have
        return self.inner.log_prob(params.params, action) if one else super().log_prob(params, action)

    def entropy(self, params: Own) -> Tensor:
        return self.inner.entropy(params.params)


def _where(mask: Tensor, x: Tensor) -> Tensor:
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))
