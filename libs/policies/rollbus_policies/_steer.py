"""A small network that chooses the noise a generative policy begins with (DSRL, 2506.15799).

One vector of noise stands for all actions of a decision. Symbols: B rows, A elements of an action.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_core import rng
from rollbus_policies._heads_gaussian import TanhGaussian
from rollbus_policies._networks import OUTPUT_GAIN, Mlp, apply, linear
from rollbus_policies._transforms import to_tensor
from rollbus_wire.spec import ActionSpec


class Steer(nn.Module):
    """Squashed Gaussian over noise in [-bound, bound]^A, from features [B, F]."""

    def __init__(self, num_features: int, size: int, hidden: Sequence[int], bound: float) -> None:
        super().__init__()
        self.bound, self.size = bound, size
        self.head = TanhGaussian(ActionSpec("continuous", (size,), low=[-1.0] * size, high=[1.0] * size), 0.0)
        self.encoder = Mlp(num_features, hidden, "relu", "orthogonal")
        self.output = linear(self.encoder.size, self.head.num_params, "orthogonal", OUTPUT_GAIN)

    def sample(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Noise over bound [B, A] made from standard normal ``noise`` [B, A], and its log-prob [B]."""
        params = self._params(features)
        drawn = self.head.sample(params, noise)
        return torch.tanh(drawn), self.head.log_prob(params, drawn)

    def start(self, features: Tensor, modes: list[str], seeds: np.ndarray) -> Tensor:
        """Noise [B, A] for rows in these modes; "random": what it begins with unsteered, within the bound."""
        drawn = to_tensor(rng.normal(seeds, self.size), features.device)
        mean, log_std = self._params(features)
        is_sampled, is_random = (
            torch.tensor([mode == name for mode in modes], device=features.device).unsqueeze(1)
            for name in ("sample", "random")
        )
        steered = self.bound * torch.tanh(mean + log_std.exp() * drawn * is_sampled)
        return torch.where(is_random, drawn.clamp(-self.bound, self.bound), steered)

    def mode(self, features: Tensor) -> Tensor:
        """Noise [B, A] in mode "mode"."""
        return self.bound * torch.tanh(self._params(features)[0])

    def _params(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(apply(self.output, self.encoder(features)))
