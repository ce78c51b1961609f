"""Action distributions.

A head turns the raw output of a network ``[..., num_params]`` into parameters (``head(raw)``); all
other methods take these. A *stored* action is what the learner scores (class index, Gaussian value,
pre-squash value); ``env_action`` is what the environment executes, in its bounds. Noise is passed in,
so that a row's sample is a function of its own seed.
Symbols: A action dimensions, D discrete dimensions, n classes, E independent elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_policies._samplers import Sampler
from rollbus_policies._transforms import to_tensor
from rollbus_wire.errors import SpecError


class Head(nn.Module):
    """One action distribution."""

    #: Width of the network's output.
    num_params: int
    #: dtype and shape per row of the stored action.
    action: tuple[str, tuple[int, ...]]
    #: Whether samples carry gradient (`rsample`).
    reparameterised = False
    #: Why `sampler` does not give the same in numpy; "": it does.
    no_sampler = ""
    #: Whether it is called with the features, too, ``head(raw, features)``, and wants `read` before.
    reads_features = False
    #: Whether `log_prob` and `entropy` exist.
    has_density = True
    #: What `give` gives.
    gives: frozenset[str] = frozenset()

    @property
    def num_noise(self) -> int:
        """Width of the noise that `sample` with gradient takes."""
        return 0

    def noise(self, seeds: np.ndarray) -> np.ndarray:
        """What `sample` needs for rows with ``seeds`` uint64 [B]."""
        raise NotImplementedError

    def random(self, seeds: np.ndarray) -> np.ndarray:
        """Stored actions [B, ...] that are uniform over the action space."""
        raise NotImplementedError

    def anything(self, params: Any, seeds: np.ndarray) -> Tensor:
        """`random` for rows with ``params``, on the CPU."""
        return torch.from_numpy(self.random(seeds))

    def read(self, num_features: int) -> None:
        """Say how wide features are; of heads that depend on them."""

    def decide(self, params: Any, features: Tensor, seeds: np.ndarray, held: np.ndarray) -> Tensor:
        """The stored action of rows with ``features`` [B, F] that sample, a function of their own seeds.

        ``held`` uint64 [B]: seeds that stay for some decisions.
        """
        return self.sample(params, to_tensor(self.noise(seeds), features.device))

    def mode(self, params: Any) -> Tensor:
        """The stored action that `sample` is centred on."""
        raise NotImplementedError

    def sample(self, params: Any, noise: Tensor) -> Tensor:
        """A stored action, made from ``noise`` [..., num_noise]."""
        raise NotImplementedError

    def log_probs(self, params: Any, action: Tensor) -> Tensor:
        """[..., E]: of each independent element of stored ``action``."""
        raise NotImplementedError

    def entropies(self, params: Any) -> Tensor:
        """[..., E] in nats."""
        raise NotImplementedError

    def log_prob(self, params: Any, action: Tensor) -> Tensor:
        """[...] of stored ``action``."""
        return self.log_probs(params, action).sum(-1)

    def entropy(self, params: Any) -> Tensor:
        """[...] in nats."""
        return self.entropies(params).sum(-1)

    def give(self, name: str, params: Any) -> Tensor:
        """What only some heads have, with gradient: one of `gives`."""
        raise SpecError(f"{type(self).__name__} has no {name}")

    def explore(self, amount: float) -> None:
        """Set how much `sample` explores, where that is not learned; actors get it with the weights."""
        raise SpecError(f"{type(self).__name__} learns how much it explores")

    def squash(self, action: Tensor) -> Tensor:
        """Stored ``action`` in units of [-1, 1], as action-value functions take it."""
        raise SpecError(f"{type(self).__name__}: discrete actions have no [-1, 1] units")

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """What the environment executes for stored ``action``."""
        return action

    def executed(self, action: Tensor) -> Tensor:
        """`env_action` of a tensor [B, ...], for exported policies."""
        return action

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        """The stored action that executes as ``action`` (demonstrations); always finite."""
        return action

    def sampler(self) -> Sampler:
        """The same in numpy."""
        raise NotImplementedError

    def initial_bias(self) -> Tensor:
        """Initial bias [num_params] of the layer before the head."""
        return torch.zeros(self.num_params)
