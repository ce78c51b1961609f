"""Exploration that depends on the state and stays for a while (gSDE, Raffin et al., 2005.05719).

An action is ``mean + W' f`` of the features f [F], with one matrix W [F, A] per row whose elements are
N(0, exp(log_std)^2): what is explored is a smooth function of the observation for as long as W stays. Over
all W an action is Gaussian with variance ``sum_i f_i^2 exp(log_std_i)^2``, which is what is scored.
Where it differs from stable-baselines3: a row's matrix is a function of its run, episode and step, not of
when the noise of all rows was drawn anew; samples with gradient draw from that Gaussian.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_core import rng
from rollbus_policies._heads_gaussian import Gaussian, TanhGaussian
from rollbus_policies._samplers import Sampler
from rollbus_policies._transforms import to_tensor
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec

#: Added to the variance, so that features of 0 leave a density.
_SMALLEST = 1e-6


class Sde(Gaussian):
    """Executed is the mean with the noise, clipped (PPO); no gradient of the noise reaches the features.

    Parameters: (mean, log_std), both [..., A].
    """

    no_sampler = "its noise depends on features and is drawn in torch"
    reads_features = True
    #: Whether the noise's gradient reaches the features.
    teaches_features = False

    def __init__(self, spec: ActionSpec, log_std_init: float) -> None:
        super().__init__(spec, log_std_init)
        self._parameters.pop("log_std", None)
        self.num_params, self.log_std_init = spec.size, log_std_init

    def read(self, num_features: int) -> None:
        self.log_std = nn.Parameter(torch.full((num_features, self.size), float(self.log_std_init)))

    def initial_bias(self) -> Tensor:
        return torch.zeros(self.num_params)

    def forward(self, raw: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert features is not None
        if not self.teaches_features:
            features = features.detach()
        variance = features**2 @ (2.0 * self.log_std).exp()
        return raw, 0.5 * torch.log(variance + _SMALLEST)

    def decide(
        self, params: tuple[Tensor, Tensor], features: Tensor, seeds: np.ndarray, held: np.ndarray
    ) -> Tensor:
        drawn = to_tensor(rng.normal(held, self.log_std.numel()), features.device)
        matrix = self.log_std.exp() * drawn.unflatten(-1, self.log_std.shape)
        # Row by row, so that the sum does not depend on how many rows there are.
        return self._shaped(params[0] + (features.unsqueeze(-1) * matrix).sum(-2))

    def sampler(self) -> Sampler:
        raise SpecError(f"{self.no_sampler}; set actor.engine: torch_local")


class TanhSde(Sde, TanhGaussian):
    """The same before tanh, and samples have a gradient (SAC), which reaches the features."""

    teaches_features = True
