"""Random network distillation (Burda et al., 1810.12894): what is new to the learner is rewarded.

A network learns to predict what a random, fixed one says of an observation; its error is large where few
such observations were seen. Where it differs from the paper: one value function for both rewards, so novelty
ends with the episode; the error of observations, all of them, is learned in every minibatch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rollbus_learner.following import after
from rollbus_policies._networks import Mlp, linear
from rollbus_policies._normaliser import Normalisers
from rollbus_policies._transforms import VectorInput, group_keys

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch
    from rollbus_wire.spec import EnvSpec

HIDDEN, FEATURES = (64, 64), 32
#: Observations are cut at so many deviations.
CUT = 5.0


class Novelty(nn.Module):
    """A fixed network and one that predicts it, on the policy's observations, normalised."""

    def __init__(self, spec: EnvSpec, frame_stack: int) -> None:
        super().__init__()
        self._inputs = VectorInput(spec, group_keys(spec, "policy"), frame_stack)
        self.normaliser = Normalisers()
        for key in self._inputs.keys:
            if spec.observation[key].dtype == "float32":
                shape = spec.observation[key].shape
                self.normaliser.add(key, shape if frame_stack == 1 else (frame_stack, *shape))
        self.target = _network(self._inputs.size).requires_grad_(False)
        self.predictor = _network(self._inputs.size)

    def forward(self, batch: Batch, prefix: str = "obs/") -> Tensor:
        """Mean squared error [...] on ``batch[prefix + key]`` [..., ...]."""
        obs = {key: batch[prefix + key] for key in self._inputs.keys}
        seen = self._inputs(obs, self.normaliser).clamp(-CUT, CUT)
        error: Tensor = (self.predictor(seen) - self.target(seen)).square().mean(-1)
        return error

    def merge(self, batch: Batch, valid: Tensor) -> None:
        """Observation statistics, of ``obs/`` [..., ...] where ``valid`` bool [...]."""
        for key in self._inputs.keys:
            normaliser = self.normaliser.of(key)
            if normaliser is not None:
                normaliser.merge(batch[f"obs/{key}"], valid)


def _network(size: int) -> nn.Module:
    body = Mlp(size, HIDDEN, "relu", "orthogonal")
    return nn.Sequential(body, linear(HIDDEN[-1], FEATURES, "orthogonal", 1.0))


@torch.no_grad()
def reached(novelty: nn.Module, batch: Batch) -> Tensor:
    """How new the observation is that each decision led to, [T, N]: the final one where an episode ended."""
    return after(novelty(batch), partial(novelty, batch, "final_obs/"), batch)
