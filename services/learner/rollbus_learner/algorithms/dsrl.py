"""DSRL: steer a frozen generative policy by its initial noise (Wagenmaker et al., 2506.15799).

SAC whose action is the noise that a flow or diffusion policy begins with: one bounded vector for all actions
of a decision. The policy itself, cloned before (``run.start_from``), is frozen; its chain adds no noise. Only
the small network that chooses the noise (``policy.steer: true``) is trained, no byte of the rest changes,
observation statistics included. Where it differs from the paper: the critics value noise directly
(DSRL-SAC), there is no second critic of actions; while warming up noise is normal, cut at its bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_learner.algorithms import sac
from rollbus_learner.algorithms._replay import observed
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(sac.Config):
    """Settings of DSRL; those of SAC."""

    requires: ClassVar[frozenset[str]] = frozenset({"steering"})
    masks_padding: ClassVar[bool] = False

    name: str = "dsrl"
    updates_per_step: float = option(1.0, "Gradient steps per collected step.", gt=0)

    @property
    def begins_with(self) -> str:
        """What is frozen must have been trained."""
        return "a cloned flow or diffusion policy"


class DSRL(sac.SAC):
    """SAC on the initial noise."""

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        if "steering" not in getattr(policy, "wants", ()):
            raise ConfigError(f"algorithm.name: {config.name} needs policy.steer: true")
        for name, parameter in policy.named_parameters():
            parameter.requires_grad_(name.startswith("steer."))
        super().__init__(config, spec, policy, feed)

    @property
    def num_elements(self) -> int:
        """Elements of the noise."""
        return self.spec.action.size

    @property
    def num_noise(self) -> int:
        """What the noise is made from is as wide."""
        return self.spec.action.size

    def make_critic(self) -> nn.Module:
        """Critics of observation and noise over its bound."""
        from rollbus_policies._critics import make_q

        config, stack = self.config, cast("Policy", self.policy).spec.frame_stack
        return make_q(config, self.spec, config.num_critics, stack, layer_norm=config.critic_layer_norm)

    def sample(self, policy: nn.Module, batch: Batch, which: str) -> tuple[Tensor, Tensor]:
        """Noise over its bound and its log-prob."""
        drawn = policy({**observed(batch, which), "noise": batch[f"{which}noise"]}, ("steering",))
        return drawn["steering"], drawn["steering_log_prob"]

    def taken(self, roles: Roles, batch: Batch) -> Tensor:
        """The stored chain begins with the noise, once per action."""
        bound = cast("nn.Module", roles["policy"].steer).bound
        return batch["action"][..., : self.spec.action.size] / bound  # type: ignore[operator]

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics are part of what is frozen."""


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> DSRL:
    """The algorithm for one learner."""
    return DSRL(config, spec, policy, feed)
