"""Co-training: PPO and cloning of demonstrations at once, on the same network.

The loss of each minibatch is PPO's plus ``sft_weight`` times that of cloning as many demonstrated decisions
as ``demo_batch`` says, so that what was shown is not forgotten where rewards are rare (DAPG, 1709.10087, but
with a constant weight). Demonstrations are a stream of their own and enter no ratio. The cloning loss is the
policy's own where it has one, as in `sft`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rollbus_core.config.models import option
from rollbus_core.feed import TRAINING_TABLE, Feed, TableConfig
from rollbus_learner.algorithm import Loss, of_stream
from rollbus_learner.algorithms import ppo
from rollbus_learner.algorithms._cloning import cloning_loss, wanted_loss
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec

needs = ("torch",)

#: The table of the demonstrations.
DEMOS = "demos"


class Config(ppo.Config):
    """Settings of co-training; those of PPO beside them."""

    requires_one_of: ClassVar[frozenset[str]] = frozenset({"log_prob", "cloning_loss"})

    name: str = "cotrain"
    sft_weight: float = option(0.1, "Weight of the cloning loss.", ge=0)
    demo_batch: int = option(256, "Demonstrated decisions of one minibatch.", ge=1)
    demo_bytes: int = option(4 << 30, "Bytes that the table of demonstrations may take.", "bytes", ge=1 << 20)

    def feeds(self, *, num_envs: int, num_slices: int, deterministic: bool) -> dict[str, Feed]:
        """What is collected, and demonstrations for each of its minibatches."""
        train = self.feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        demos = Feed(
            table=TableConfig(sampler="replay", max_bytes=self.demo_bytes), num_decisions=64, unit="step",
            num_batches=self.minibatches, batch_size=self.demo_batch,
            summary=f"{self.demo_batch} demonstrated decisions beside each minibatch",
        )  # fmt: skip
        return {TRAINING_TABLE: train, DEMOS: demos}


class CoTraining(ppo.PPO):
    """PPO with a second term."""

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        if cast("Policy", policy).spec.state == "hub":
            raise ConfigError(
                f"algorithm.name: {config.name}: single demonstrated decisions teach nothing to a recurrent "
                "policy; use transformer with env.frame_stack"
            )
        self._want = wanted_loss(policy)

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """PPO's terms, and the weighted mean over demonstrations."""
        from rollbus_learner import masked

        demos = of_stream(batch, DEMOS)
        found = super().loss(roles, {n: c for n, c in batch.items() if not n.startswith(f"{DEMOS}/")})
        if demos:
            shown = cloning_loss(roles["policy"], demos, self._want)
            total, count = masked.total(shown, masked.valid_mask(demos))
            found.terms["sft_loss"] = (cast("Config", self.config).sft_weight * total, count)
        return found


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> CoTraining:
    """The algorithm for one learner."""
    return CoTraining(config, spec, policy, feed)
