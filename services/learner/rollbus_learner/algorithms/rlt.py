"""RLT: reinforcement learning on a token of a frozen policy (Xu et al., 2604.23073).

A flow or diffusion policy, cloned before (``run.start_from``), decides; a small network behind it
(``policy.refine: true``) changes the decision. Two stages, each a run:

- ``stage: token``: from demonstrations a token learns to tell all that the policy's encoder sees;
- ``stage: actor``: the network learns by trial. It and twin critics read the token, the numbers among the
  observations and, the network alone, the decision of the policy, its reference. It maximises Q and stays
  near the reference: ``-q_weight Q1(s, pi) + bc_weight |pi - reference|^2``. In half of the samples it does
  not see the reference, so that it does not become a copy. While warming up the policy decides alone.

No byte of the policy changes, observation statistics included. Who decided is the last number of a stored
action; what an expert or a person did in between is its own reference, marked by the column ``source``.
Where it differs from the paper: the token's decoder tells all positions at once from the token alone, where
the paper's goes on from the positions before; the policy itself is not tuned along with the token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from rollbus_core.config.models import option
from rollbus_core.feed import TRAINING_TABLE, Feed, TableConfig
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Algorithm, Loss, Progress, Step
from rollbus_learner.algorithms._actor_critic import ActorCritic, ActorCriticConfig, values
from rollbus_learner.algorithms._replay import check_delay, observed
from rollbus_learner.algorithms._rl_token import RLToken, Stages, train_only
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import MAY_REFINE, ArraySpec, EnvSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
else:
    torch = lazy_import("torch")

needs = ("torch",)

#: The table of the demonstrations, and the column of what the network and its critics read.
DEMOS, STATE = "demos", "refinement_state"


class Config(Stages, ActorCriticConfig):
    """Settings of RLT."""

    requires: ClassVar[frozenset[str]] = frozenset({"refinement"})

    name: str = "rlt"
    stage: Literal["token", "actor"] = option(
        "actor", "token: learn from data what the network will read; actor: learn by trial what it does."
    )
    updates_per_step: float = option(5.0, "Gradient steps per collected step.", gt=0)
    policy_delay: int = option(2, "Gradient steps of the critics per one of the network.", ge=1)
    q_weight: float = option(1.0, "Weight of Q in the network's loss.", ge=0)
    bc_weight: float = option(1.0, "Weight of its squared distance from the reference.", ge=0)
    reference_dropout: float = option(
        0.5, "Part of the samples in which the network does not see the reference.", ge=0, le=1
    )
    exploration_noise: float = option(
        0.1, "Deviation of the noise on actions while collecting and in the target, in [-1, 1] units.", ge=0
    )

    @property
    def imitates(self) -> bool:
        """The first stage learns nothing from rewards."""
        return self.stage == "token"

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """As all replay; the first stage draws from data as much as the second does from the replay."""
        feed = super().feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        check_delay(self.policy_delay, feed.num_batches)
        if self.stage == "actor":
            return feed
        summary = f"one update = {feed.num_batches} gradient steps on {feed.batch_size} decisions of the data"
        table = TableConfig(sampler="replay", max_bytes=self.max_bytes)
        return feed.model_copy(update={"table": table, "summary": summary, "n_step": 1})

    def feeds(self, *, num_envs: int, num_slices: int, deterministic: bool) -> dict[str, Feed]:
        """Data in the first stage, what is collected in the second."""
        feed = self.feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        return {TRAINING_TABLE if self.stage == "actor" else DEMOS: feed}


class RLT(ActorCritic):
    """The second stage: the network behind the policy, and its critics."""

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        train_only(policy, "refine.actor.", "refine.output.")
        if config.critic_group != "policy":
            raise ConfigError(
                f"algorithm.critic_group {config.critic_group}: the critics of rlt read the token of what "
                "the policy sees; remove it"
            )
        super().__init__(config, spec, policy, feed)
        cast("Policy", policy).explore(config.exploration_noise)

    def try_policy(self, batch: Batch) -> None:
        """The width of the state."""
        self.num_state = self.policy(batch, (STATE,))[STATE].shape[-1]

    def make_critic(self) -> nn.Module:
        """Critics of the state and of the actions that are executed."""
        from rollbus_policies._critics import make_q

        config, execute = self.config, cast("Policy", self.policy).spec.execute
        seen = EnvSpec(self.spec.name, {STATE: ArraySpec("float32", (self.num_state,))}, self.spec.action)
        return make_q(
            config, seen, config.num_critics, layer_norm=config.critic_layer_norm, num_actions=execute
        )

    def steps(self) -> list[Step]:
        """Critics, and the network at every so many of them."""
        return [self.critic_step(), self.policy_step(every=self.config.policy_delay)]

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds what the frozen policy makes of both observations; which references are hidden; noise."""
        metrics = super().label(batch, roles, progress)
        policy, num = roles["policy"], len(batch["valid"])
        device, spec = batch["reward"].device, cast("Policy", policy).spec
        batch["next_noise"] = torch.randn((num, spec.noise), device=device)
        batch |= _by_parts(policy, batch, self.feed.batch_size)
        batch["reference"] = cast("Any", policy).reference(batch["action"])
        batch["shows_reference"] = torch.rand(num, device=device) >= self.config.reference_dropout
        batch["exploration"] = self.config.exploration_noise * torch.randn_like(batch["reference"])
        return metrics

    def following(self, roles: Roles, batch: Batch) -> Tensor:
        """``min Q'(s', a')`` of what is done next: by the network with its noise, or by the policy alone."""
        reference = batch["next_reference"]
        action = refined(roles["policy"], batch[f"next_obs/{STATE}"], reference) + batch["exploration"]
        acts = may_refine(batch, "next_").view(-1, 1, 1)
        action = torch.where(acts, action.clamp(-1.0, 1.0), reference)
        return values(roles, "target", batch, action, "next_obs/").amin(0)

    def policy_loss(self, roles: Roles, batch: Batch) -> Loss:
        """``-q_weight Q1(s, pi) + bc_weight mean |pi - reference|^2`` where the network may act."""
        from rollbus_learner import masked

        config, reference = self.config, batch["reference"]
        shown = reference * batch["shows_reference"].view(-1, 1, 1)
        action = refined(roles["policy"], batch[f"obs/{STATE}"], shown)
        q = values(roles, "critic", batch, action, "obs/")[0]
        distance = ((action - reference) ** 2).mean((1, 2))
        acts, valid = may_refine(batch, ""), masked.valid_mask(batch)
        counts = acts if valid is None else acts & valid
        return Loss(
            {"policy_loss": masked.total(config.bc_weight * distance - config.q_weight * q, counts)},
            {"reference_distance": masked.total(distance.detach(), counts)},
        )

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics are part of what is frozen."""


def refined(policy: nn.Module, state: Tensor, reference: Tensor) -> Tensor:
    """What the network does [B, k, A], with gradient."""
    found: Tensor = policy({STATE: state, "reference": reference}, ("refinement",))["refinement"]
    return found


def may_refine(batch: Batch, which: str) -> Tensor:
    """bool [B]: rows in which the network may act, by the column of the environment where there is one."""
    switch = batch.get(f"{which}obs/{MAY_REFINE}")
    if switch is None:
        return torch.ones(len(batch["reward"]), dtype=torch.bool, device=batch["reward"].device)
    return switch.flatten(1)[:, -1] > 0.5 if switch.ndim > 1 else switch > 0.5


def _by_parts(policy: nn.Module, batch: Batch, size: int) -> Batch:
    """The columns of the state now and next, and of the next reference; ``size`` rows at a time."""
    parts: list[Batch] = []
    for at in range(0, len(batch["valid"]), size):
        now, then = (
            {name: c[at : at + size] for name, c in observed(batch, w).items()} for w in ("", "next_")
        )
        noise = {"noise": batch["next_noise"][at : at + size]}
        found = policy({**then, **noise}, (STATE, "reference"))
        parts.append(
            {
                f"obs/{STATE}": policy(now, (STATE,))[STATE],
                f"next_obs/{STATE}": found[STATE],
                "next_reference": found["reference"],
            }
        )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> Algorithm:
    """The algorithm for one learner."""
    return (RLT if config.stage == "actor" else RLToken)(config, spec, policy, feed)
