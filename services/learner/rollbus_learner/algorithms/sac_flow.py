"""SAC-Flow: SAC whose policy is a flow with noise in every step (Zhang et al., 2509.25756).

The density of an action is that of the whole path that made it, with y = tanh(x_K):
``log N(x_0) + sum_k log N(x_{k+1}; x_k + v_k / K, s_k^2) - sum log(1 - y^2)``, where the deviations s_k are
learned (``policy.sampler: flow_noise``). A path's entropy has no natural size, so ``target_entropy`` is a
number; with fixed deviations the temperature cannot be trained. Where it differs from the paper: the velocity
is the attention expert of `flow`, not a gated or decoded one; s_k is bounded (``policy.max_std``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_learner.algorithms import sac
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(sac.Config):
    """Settings of SAC-Flow; those of SAC with other defaults."""

    masks_padding: ClassVar[bool] = False

    name: str = "sac_flow"
    target_entropy: float = option(0.0, "Entropy of a whole path that alpha: auto aims at.", "nats")
    initial_alpha: float = option(0.2, "Temperature at the start, with alpha: auto.", gt=0)


class SACFlow(sac.SAC):
    """SAC on path densities."""

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        if not policy.spec.generative:  # type: ignore[union-attr]
            raise ConfigError(f"algorithm.name: {config.name} needs a policy that samples in steps; use sac")
        if config.alpha == "auto" and not getattr(policy, "learns_deviation", False):
            raise ConfigError(
                f"algorithm.name: {config.name} cannot train its temperature, because the deviations of this "
                "policy's steps are fixed; set policy.sampler: flow_noise, or algorithm.alpha to a number"
            )
        super().__init__(config, spec, policy, feed)


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> SACFlow:
    """The algorithm for one learner."""
    return SACFlow(config, spec, policy, feed)
