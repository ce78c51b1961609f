"""HG-DAgger (Kelly et al., 1810.02890): learn from the moments in which a person took over.

The policy acts; where it strays the expert takes over, and only those decisions, marked by their source, join
the demonstrations. Here the expert is the environment's, which takes over where an element of the policy's
action is further than ``gate`` (of half the bounds' width) from its own; a person at a robot does the same
through the ``source`` of actions. With ``successful_only`` what was done in vain teaches nothing.
Differences: those of `dagger`; the paper's doubt estimate, which sets a threshold for the time after
training, is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rollbus_core.config.models import option
from rollbus_core.feed import TRAINING_TABLE, ExpertConfig, Feed
from rollbus_learner.algorithms import dagger
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch
    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(dagger.Config):
    """Settings of HG-DAgger; those of DAgger with a gate in place of a schedule."""

    #: The gate looks at all elements.
    masks_padding: ClassVar[bool] = False

    name: str = "hg_dagger"
    expert_share: float = option(0.0, "Part of the decisions that the expert takes anyway.", ge=0, le=1)
    gate: float = option(
        0.25,
        "Distance of the actions at which the expert takes over, in parts of half the bounds' width.",
        gt=0,
    )

    successful_only: bool = option(
        False,
        "Learn only from interventions in episodes that succeeded, as far as their end is in the same chunk: "
        "num_steps at least an episode's.",
    )

    def expert(self) -> ExpertConfig:
        """When the expert acts."""
        return ExpertConfig(share=self.expert_share, decay=self.expert_decay, gate=self.gate)

    def feeds(self, *, num_envs: int, num_slices: int, deterministic: bool) -> dict[str, Feed]:
        """Those of DAgger; with ``successful_only`` draws tell how episodes ended."""
        found = super().feeds(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        told = {"episode_success": self.successful_only}
        return found | {TRAINING_TABLE: found[TRAINING_TABLE].model_copy(update=told)}


class HGDAgger(dagger.DAgger):
    """Demonstrations and interventions."""

    learned_sources: ClassVar[tuple[str, ...]] = ("expert", "human")

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        if config.successful_only and (self.recurrent or not spec.has_success):
            why = f"{spec.name} has no success signal"
            if spec.has_success:
                why = "sequences of a recurrent policy do not tell how their episodes ended"
            raise ConfigError(f"algorithm.successful_only: {why}; leave it out")

    def _chosen(self, batch: Batch, taught: Tensor, metrics: dict[str, float]) -> Tensor:
        """With ``successful_only`` those of episodes that are known to have succeeded."""
        if not self.config.successful_only:
            return super()._chosen(batch, taught, metrics)
        success = batch[f"episode_success_{self.spec.success}"]
        counted = taught & batch["valid"]
        for name, flag in (("taught_successful", 1), ("taught_unknown", -1)):
            share = (counted & (success == flag)).sum() / counted.sum().clamp(min=1)
            metrics[name] = float(share)
        return success == 1


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> HGDAgger:
    """The algorithm for one learner."""
    return HGDAgger(config, spec, policy, feed)
