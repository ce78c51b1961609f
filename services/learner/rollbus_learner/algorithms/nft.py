"""Negative-aware fine-tuning of flow policies (DiffusionNFT, Zheng et al., 2509.16117).

No log-probs and any sampler: actions are drawn by slowly following weights v_old; each one is noised again,
``x_t = (1 - t) x + t eps``, and with dv = v - v_old the policies ``v+- = v_old +- beta dv`` predict it,
``x_t - t v+-``. The loss is ``(p E+ + (1 - p) E-) M / beta`` with E+- the squared error to x and p the
preference ``(clip(A, -M, M) + M) / (2 M)``, A the episode's return relative to its group. Where it differs:
- E is divided by the mean absolute error of its prediction (``weight: adaptive``, as in the authors' code) or
  not at all (``constant``);
- a policy that decides several actions at once counts those that were executed;
- actors get v_old, so that is what evaluations and exports show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Algorithm, Loss, Plan, Progress, Role, Step
from rollbus_learner.algorithms._group_config import MOST_LOSSES, EpisodesConfig
from rollbus_learner.averaging import average_of, follow

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(EpisodesConfig):
    """Settings of NFT."""

    requires: ClassVar[frozenset[str]] = frozenset({"velocity"})

    name: str = "nft"
    beta: float = option(0.1, "How far the two policies stand from v_old, in units of dv.", gt=0)
    advantage_limit: float = option(5.0, "M: advantages beyond it count as it.", gt=0)
    old_rate: float = option(
        0.1, "How far v_old moves towards v after an update; 1: the newest policy acts.", gt=0, le=1
    )
    times: int = option(2, "Noise levels that each action is seen at.", ge=1)
    weight: Literal["adaptive", "constant"] = option(
        "adaptive", "What an error is divided by; adaptive: its own mean absolute value."
    )


class NFT(Algorithm):
    """The roles "policy", which learns, and "old", which acts."""

    config: Config

    def roles(self) -> dict[str, Role]:
        """The same ones at each call."""
        if not hasattr(self, "_roles"):
            self._roles = {"policy": Role(self.policy), "old": average_of(self.policy)}
        return self._roles

    #: Decisions of the update that was labelled last.
    _num_valid = 1

    def plan(self) -> Plan:
        """Epochs over shuffled decisions."""
        return Plan(self.config.epochs, max(1, self._num_valid // self.config.minibatches))

    def steps(self) -> list[Step]:
        """One step on the policy."""
        config = self.config
        return [Step("policy", ("policy",), self.loss, config.learning_rate, clip=config.max_grad_norm)]

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds advantage and preference [T, N]; noised, old_velocity [T, N, K, C, A] and time [T, N, K]."""
        from rollbus_accel.kernels.group_normalise import group_normalise
        from rollbus_learner import masked
        from rollbus_learner.algorithms import _episodes, _ppo_label

        limit, size = self.config.advantage_limit, self.config.group_size
        with torch.no_grad():
            episodes = _episodes.whole(batch, size, MOST_LOSSES)
            batch["valid"] = episodes.mask & episodes.complete & _ppo_label.own(batch)
            score, complete = episodes.score.reshape(-1, size), episodes.complete.reshape(-1, size)
            advantage = group_normalise(score, complete).reshape(-1).expand(batch["valid"].shape)
            batch["advantage"] = advantage.contiguous()
            batch["preference"] = (advantage.clamp(-limit, limit) + limit) / (2 * limit)
            self._noise(batch, roles["old"])
        self._num_valid = int(batch["valid"].sum())
        whole = complete.all(1)
        return {
            "groups": float(whole.sum()),
            "groups_dropped": float((~whole).sum()),
            "score_mean": float(score[whole].mean()) if bool(whole.any()) else 0.0,
            "preference_std": float(masked.variance(batch["preference"], batch["valid"]).sqrt()),
        }

    def _noise(self, batch: Batch, old: Any) -> None:
        """Noised actions, their times, and what the policy that acts says of them."""
        clean, length = old.clean(batch["action"]), len(batch["valid"])
        shape = (*clean.shape[:2], self.config.times)
        time = torch.rand(shape, device=clean.device).clamp(min=1e-3)
        noise = torch.randn((*shape, *clean.shape[2:]), device=clean.device)
        noised = torch.lerp(clean.unsqueeze(2).expand_as(noise), noise, time[..., None, None])
        batch |= {"clean": clean, "time": time, "noised": noised}
        seen = {name: column[:length] for name, column in batch.items() if name.startswith("obs/")}
        batch["old_velocity"] = velocities(old, seen | {"time": time, "noised": noised})

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """``(p E+ + (1 - p) E-) M / beta``, a mean over decisions."""
        from rollbus_learner import masked

        config, valid = self.config, masked.valid_mask(batch)
        old = batch["old_velocity"]
        moved = config.beta * (velocities(roles["policy"], batch) - old)
        liked, disliked = self.error(batch, old + moved), self.error(batch, old - moved)
        p = batch["preference"]
        loss = (p * liked + (1 - p) * disliked) * (config.advantage_limit / config.beta)
        step = (moved.detach() / config.beta).square().flatten(1).mean(1)
        return Loss(
            terms={"policy_loss": masked.total(loss, valid)},
            metrics={"moved": masked.total(step, valid)},
        )

    def error(self, batch: Batch, velocity: Tensor) -> Tensor:
        """Error [B] of the actions that ``velocity`` [B, K, C, A] predicts, over the executed ones."""
        predicted = batch["noised"] - batch["time"][..., None, None] * velocity
        apart = predicted - batch["clean"].unsqueeze(1)
        place = torch.arange(apart.shape[2], device=apart.device)
        executed = (place < batch["num_steps"][:, None]).to(apart.dtype)[:, None]
        share = executed / executed.sum(-1, keepdim=True).clamp(min=1)
        squared = (apart.square().mean(-1) * share).sum(-1)
        if self.config.weight == "adaptive":
            size = (apart.detach().abs().mean(-1) * share).sum(-1)
            squared = squared / size.clamp(min=1e-5)
        return squared.mean(-1)

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """v_old follows; observation statistics, of both."""
        length = len(batch["valid"])
        seen = {name: column[:length] for name, column in batch.items() if name.startswith("obs/")}
        cast("Any", roles["policy"]).update_normaliser(seen, batch["valid"])
        follow(roles["old"], roles["policy"], self.config.old_rate)

    def publish(self, roles: Roles) -> dict[str, Tensor]:
        """v_old; actors need no critic."""
        tensors = roles["old"].state_dict()
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("critic.")}


def velocities(policy: nn.Module, batch: Batch) -> Tensor:
    """The policy's velocity [..., K, C, A] at ``noised`` [..., K, C, A] and ``time`` [..., K]."""
    seen = {name: column for name, column in batch.items() if name.startswith("obs/")}
    found = []
    for k in range(batch["time"].shape[-1]):
        at = {"time": batch["time"][..., k], "x": batch["noised"][..., k, :, :]}
        found.append(policy(seen | at, ("velocity",))["velocity"])
    return torch.stack(found, -3)


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> NFT:
    """The algorithm for one learner."""
    return NFT(config, spec, policy, feed)
