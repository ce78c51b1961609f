"""A cloning term beside another algorithm's loss, so that what was shown is not forgotten.

Each minibatch has ``demo_batch`` demonstrated decisions beside its own samples; the loss is the algorithm's
plus ``sft_weight`` times the cloning loss on them (DAPG, 1709.10087, but with a constant weight).
Demonstrations are a stream of their own and enter no ratio, advantage or group. The cloning loss is the
policy's own where it has one, as in `sft`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rollbus_core.config.models import option
from rollbus_core.feed import Feed, TableConfig
from rollbus_learner.algorithm import Algorithm, AlgorithmConfig, Loss, of_stream
from rollbus_learner.algorithms._cloning import cloning_loss, wanted_loss
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec

#: The table of the demonstrations.
DEMOS = "demos"


class CoTrainingConfig(AlgorithmConfig):
    """Settings of the term, for algorithms with ``minibatches``."""

    sft_weight: float = option(
        0.0, "Weight of cloning demonstrations (data.sources) beside the algorithm's own loss; 0: none.", ge=0
    )
    demo_batch: int = option(256, "Demonstrated decisions beside one minibatch.", ge=1)
    demo_bytes: int = option(4 << 30, "Bytes that the table of demonstrations may take.", "bytes", ge=1 << 20)

    def feeds(self, *, num_envs: int, num_slices: int, deterministic: bool) -> dict[str, Feed]:
        """What is collected, and demonstrations for each of its minibatches."""
        found = super().feeds(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        if not self.sft_weight:
            return found
        demos = Feed(
            table=TableConfig(sampler="replay", max_bytes=self.demo_bytes), num_decisions=64, unit="step",
            num_batches=cast("Any", self).minibatches, batch_size=self.demo_batch,
            summary=f"{self.demo_batch} demonstrated decisions beside each minibatch",
        )  # fmt: skip
        return {**found, DEMOS: demos}


class CoTraining(Algorithm):
    """An algorithm whose step "policy" is on `joint_loss`."""

    config: CoTrainingConfig

    def __init__(self, config: Any, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        if config.sft_weight and cast("Policy", policy).spec.state == "hub":
            raise ConfigError(
                f"algorithm.sft_weight of {config.name}: single demonstrated decisions teach nothing to a "
                "recurrent policy; use transformer with env.frame_stack"
            )

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """The algorithm's own, of one minibatch."""
        raise NotImplementedError

    def joint_loss(self, roles: Roles, batch: Batch) -> Loss:
        """`loss`, and the weighted mean over demonstrations."""
        from rollbus_learner import masked

        weight, demos = self.config.sft_weight, of_stream(batch, DEMOS)
        if not weight or not demos:
            return self.loss(roles, batch)
        found = self.loss(roles, {n: c for n, c in batch.items() if not n.startswith(f"{DEMOS}/")})
        shown = cloning_loss(roles["policy"], demos, wanted_loss(roles["policy"]))
        total, count = masked.total(shown, masked.valid_mask(demos))
        found.terms["sft_loss"] = (weight * total, count)
        return found
