"""RLPD: reinforcement learning with prior data (Ball et al., 2302.02948), on top of `sac`.

Each minibatch is half demonstrations, half what was collected; many critics with layer normalisation, of
which a random few make the target; many gradient steps per environment step. As in the paper the policy
maximises the mean over all critics. Where it differs: a minibatch has one subset of critics, as in the
authors' code; the target's entropy term is a switch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbus_core.config.models import option
from rollbus_core.feed import TRAINING_TABLE, Feed, TableConfig
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Progress, of_stream
from rollbus_learner.algorithms import sac

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)

#: The table of the demonstrations.
DEMOS = "demos"


class Config(sac.Config):
    """Settings of RLPD; those of SAC with other defaults."""

    name: str = "rlpd"
    demonstrations: float = option(0.5, "Part of each minibatch that is demonstrations; 0: none.", ge=0, lt=1)
    updates_per_step: float = option(10.0, "Gradient steps per collected step.", gt=0)
    num_critics: int = option(10, "Q functions.", ge=1)
    num_target_critics: int = option(2, "Q functions, drawn anew each time, whose smallest counts.", ge=1)
    critic_layer_norm: bool = option(True, "Layer normalisation in the Q functions.")
    entropy_backup: bool = option(True, "Entropy counts in the value of the next state.")

    def feeds(self, *, num_envs: int, num_slices: int, deterministic: bool) -> dict[str, Feed]:
        """What is collected, and demonstrations beside it."""
        train = self.feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        demos = round(self.batch_size * self.demonstrations)
        if self.num_target_critics > self.num_critics:
            raise ValueError(
                f"algorithm.num_target_critics {self.num_target_critics} exceeds algorithm.num_critics "
                f"{self.num_critics}"
            )
        if self.priority:
            raise ValueError(
                f"algorithm.priority {self.priority} has no effect, because half of every minibatch is "
                "demonstrations; remove it"
            )
        if not demos:
            return {TRAINING_TABLE: train}
        table = TableConfig(sampler="replay", max_bytes=self.max_bytes)
        beside = {"table": table, "batch_size": demos, "summary": f"{demos} of them are demonstrations"}
        own = train.model_copy(update={"batch_size": self.batch_size - demos})
        return {TRAINING_TABLE: own, DEMOS: train.model_copy(update=beside)}


class RLPD(sac.SAC):
    """SAC on collected and demonstrated transitions."""

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Joins the demonstrations to each minibatch, then what SAC adds."""
        demos = of_stream(batch, DEMOS)
        if demos:
            for name in [name for name in batch if name.startswith(f"{DEMOS}/")]:
                del batch[name]
            self._join(batch, demos)
        return super().label(batch, roles, progress)

    def _join(self, batch: Batch, demos: Batch) -> None:
        """Minibatch k of ``batch`` becomes minibatch k of both."""
        num, further = len(batch["valid"]), len(demos["valid"])
        groups = self.feed.num_batches
        for name in list(batch):
            column, other = batch[name], demos.get(name)
            if other is None or len(column) != num or len(other) != further:
                del batch[name]
                continue
            parts = [part.reshape(groups, -1, *part.shape[1:]) for part in (column, other)]
            batch[name] = torch.cat(parts, 1).flatten(0, 1)

    def next_value(self, heads: Tensor, entropy_cost: Tensor) -> Tensor:
        """The smallest of a few heads."""
        chosen = torch.randperm(len(heads), device=heads.device)[: self.config.num_target_critics]
        value = heads.index_select(0, chosen).amin(0)
        return value - entropy_cost if self.config.entropy_backup else value

    def policy_value(self, heads: Tensor) -> Tensor:
        """The mean of all heads."""
        return heads.mean(0)


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> RLPD:
    """The algorithm for one learner."""
    return RLPD(config, spec, policy, feed)
