"""DAgger (Ross, Gordon, Bagnell, 1011.0686): clone the expert where the policy itself goes.

Actors collect with the policy; in a part beta of the decisions, ``expert_share * expert_decay^round``, the
environment's expert acts instead. Every collected decision is relabelled with what the expert would have done
(the observation ``expert_action``) and learned from together with demonstrations. One update is one round:
so many steps are collected, then come so many gradient steps. Where it differs from the paper:
- a minibatch has a fixed part of demonstrations; the paper draws from the union of all data;
- the network goes on from the last round's weights instead of being trained anew;
- who acts is drawn per decision, and collecting goes on while the learner works (lag 1);
- policies with ``chunk`` > 1 must execute one action per decision: the expert is heard at decisions only. The
  chunk's label is what the expert said at this decision and at those that follow, as long as its own actions
  led there and as far as the table's chunk reaches (``num_steps``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from rollbus_core.columns import SOURCES
from rollbus_core.config.models import option
from rollbus_core.feed import TRAINING_TABLE, ExpertConfig, Feed, TableConfig
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Progress, of_stream
from rollbus_learner.algorithms import sft
from rollbus_learner.algorithms._cloning import join, with_state
from rollbus_learner.algorithms.sft import DEMOS
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import EXPERT_ACTION

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(sft.Config):
    """Settings of DAgger; those of supervised learning beside them."""

    name: str = "dagger"
    steps_per_round: int = option(500, "Environment steps collected per round.", "steps", ge=1)
    steps_per_update: int = option(100, "Gradient steps of one round.", ge=1)
    demonstrations: float = option(0.5, "Part of each minibatch that is demonstrations; 0: none.", ge=0, lt=1)
    expert_share: float = option(1.0, "Part of the decisions that the expert takes in round 0.", ge=0, le=1)
    expert_decay: float = option(0.99, "What that part is multiplied with each round.", ge=0, le=1)
    max_steps: int = option(1_000_000, "Decisions of the policy's own that are kept.", "steps", ge=1)
    validation: float = option(0.0, "Part of the demonstrations that is held back; 0: none.", ge=0, lt=1)
    num_steps: int = option(16, "Decisions per row of one chunk on its way to a table.", "decisions", ge=1)

    def expert(self) -> ExpertConfig:
        """When the expert acts."""
        return ExpertConfig(share=self.expert_share, decay=self.expert_decay)

    def feeds(self, *, num_envs: int, num_slices: int, deterministic: bool) -> dict[str, Feed]:
        """What is collected, and demonstrations beside it."""
        shown = super().feeds(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        num_demos = round(self.batch_size * self.demonstrations)
        table = TableConfig(
            sampler="replay", min_steps=self.steps_per_round, steps_per_update=self.steps_per_round,
            max_steps=max(self.max_steps, self.steps_per_round), max_bytes=self.max_bytes,
        )  # fmt: skip
        own = {
            "table": table, "batch_size": self.batch_size - num_demos, "expert": self.expert(),
            "part": (0.0, 1.0), "summary": f"one round = {self.steps_per_round} steps, then "
            f"{self.steps_per_update} gradient steps on {self.batch_size} decisions each, {num_demos} of "
            "them demonstrated",
        }  # fmt: skip
        found = {TRAINING_TABLE: shown[DEMOS].model_copy(update=own)}
        if num_demos:
            demos = {"batch_size": num_demos, "summary": ""}
            found |= {**shown, DEMOS: shown[DEMOS].model_copy(update=demos)}
        return found


class DAgger(sft.SFT):
    """Cloning of what the expert says about states that were visited."""

    #: Sources whose decisions are learned from; empty: all.
    learned_sources: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Any, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        spoken = cast("Policy", policy).spec
        self._chunked = spoken.chunk > 1
        if spoken.execute > 1 or (self._chunked and self.recurrent):
            raise ConfigError(
                f"algorithm.name: {config.name}: the expert is heard at decisions only, so of the actions "
                "between them there is no label; set policy.execute: 1 (recurrent policies: policy.chunk: 1)"
            )

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """The expert's actions in place of what was done, demonstrations beside them, then what SFT adds."""
        found = self._relabel(batch)
        if self.recurrent:
            with_state(batch, self.policy, self.config.burn_in)
        demos = of_stream(batch, DEMOS)
        if demos:
            for name in [name for name in batch if name.startswith(f"{DEMOS}/")]:
                del batch[name]
            if self.recurrent:
                with_state(demos, self.policy, self.config.burn_in)
            join(batch, demos, self.feed)
        return found | super().label(batch, roles, progress)

    def _relabel(self, batch: Batch) -> dict[str, float]:
        """Adds env_action; masks what nobody taught. The shares of decisions that the expert took."""
        expert = batch.get(f"obs/{EXPERT_ACTION}")
        if expert is None:
            raise ConfigError(
                f"{self.spec.name} observes no {EXPERT_ACTION}, which algorithm.name: {self.config.name} "
                "learns from; give the environment an expert (toys: env.expert=true)"
            )
        if cast("Policy", self.policy).spec.frame_stack > 1:
            expert = expert.select(batch["valid"].ndim, -1)
        if self._chunked:
            expert = batch.pop("expert_chunk")
        batch["env_action"] = expert
        batch["action"] = self._stored(expert, batch["valid"].ndim)
        acted = torch.isin(batch["source"].long(), _numbers(("expert", "human"), expert))
        share = float((acted & batch["valid"]).sum()) / max(1, int(batch["valid"].sum()))
        found = {"expert_share": share}
        if self.learned_sources:
            taught = torch.isin(batch["source"].long(), _numbers(self.learned_sources, expert))
            batch["valid"] = batch["valid"] & taught & self._chosen(batch, taught, found)
        return found

    def _chosen(self, batch: Batch, taught: Tensor, metrics: dict[str, float]) -> Tensor:
        """Bool, like ``valid``: decisions that are learned from if the expert took them."""
        return torch.ones_like(taught)

    def _stored(self, action: Tensor, num_lead: int) -> Tensor:
        """Executed ``action`` as the policy scores it."""
        lead = action.shape[:num_lead]
        flat = action.reshape(-1, *action.shape[num_lead:]).cpu().numpy()
        stored = torch.from_numpy(cast("Any", self.policy).from_env_action(flat))
        return stored.reshape(*lead, *stored.shape[1:]).to(action.device)


def _numbers(sources: tuple[str, ...], like: Tensor) -> Tensor:
    return torch.tensor([SOURCES.index(source) for source in sources], device=like.device)


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> DAgger:
    """The algorithm for one learner."""
    return DAgger(config, spec, policy, feed)
