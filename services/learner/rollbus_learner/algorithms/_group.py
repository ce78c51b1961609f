"""What the algorithms have in common that compare episodes which began alike.

A member is one whole episode, its score the undiscounted return. Each algorithm states its advantage, its
ratio and its weights; what this file does is in the order of an update. Symbols as in `_episodes`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import OUTCOMES, Loss, Plan, Progress, Role, Step
from rollbus_learner.algorithms._cotraining import CoTraining
from rollbus_learner.algorithms._group_config import MOST_LOSSES, GroupConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rollbus_learner.algorithm import Batch, Roles, Term
    from rollbus_learner.algorithms._episodes import Episodes
else:
    torch = lazy_import("torch")

#: Samples on which the log-probs of actor and learner are compared at most.
GAP_SAMPLES = 512


class GroupAlgorithm(CoTraining):
    """The roles "policy" and, with ``kl_coef``, "reference"."""

    config: GroupConfig

    # --- what an algorithm gives -------------------------------------------------------------------

    def advantage(self, score: Tensor, complete: Tensor) -> Tensor:
        """[M, G] of the scores [M, G] of M groups; ``complete`` bool [M, G] (whole groups)."""
        raise NotImplementedError

    def scored(self, batch: Batch, episodes: Episodes) -> Tensor:
        """The scores float32 [N] that are compared."""
        return episodes.score

    def keeps(self, score: Tensor) -> Tensor:
        """Bool [M]: groups that are learned from, of complete ones with returns [M, G]."""
        return torch.ones(len(score), dtype=torch.bool, device=score.device)

    @property
    def compares(self) -> bool:
        """Whether the policy is compared with the one that the run began with."""
        return self.config.kl_coef > 0

    # --- the contract ------------------------------------------------------------------------------

    def roles(self) -> dict[str, Role]:
        """The policy, and as it was at the start."""
        if not hasattr(self, "_roles"):
            self._roles = {"policy": Role(self.policy)}
            if self.compares:
                frozen = copy.deepcopy(self.policy).requires_grad_(False)
                self._roles["reference"] = Role(frozen, trainable=False)
        return self._roles

    def plan(self) -> Plan:
        """Whole rows, which are whole episodes."""
        size = max(1, self._num_valid // self.config.minibatches)
        return Plan(self.config.epochs, size, whole_rows=True, unread=OUTCOMES)

    #: Decisions of the update that was labelled last.
    _num_valid = 1

    def steps(self) -> list[Step]:
        """One step on the policy."""
        config = self.config
        return [Step("policy", ("policy",), self.joint_loss, config.learning_rate, clip=config.max_grad_norm)]

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds advantage, token_mask, old_log_prob; ``valid`` are then decisions that are learned from."""
        from rollbus_learner.algorithms import _episodes, _ppo_label

        with torch.no_grad():
            gap = _ppo_label.log_prob_gap(
                roles["policy"], batch, progress.updates, self._recurrent, GAP_SAMPLES
            )
            episodes = _episodes.whole(batch, self.config.group_size, MOST_LOSSES)
            batch["valid"] = episodes.mask & episodes.complete & _ppo_label.own(batch)
            _episodes.add_tokens(roles["policy"], batch)
            if "reference" in roles:
                batch["reference_log_prob"] = _episodes.token_log_prob(
                    roles["reference"], self._decisions(batch)
                )
            metrics = self._compare(batch, episodes)
            self._num_valid = int(batch["valid"].sum())
        return metrics | gap

    @property
    def _recurrent(self) -> bool:
        return getattr(self.policy.spec, "state", "none") == "hub"

    @staticmethod
    def _decisions(batch: Batch) -> Batch:
        """``batch`` with as many observations as decisions."""
        length = len(batch["valid"])
        return {n: c[:length] if n.startswith("obs/") else c for n, c in batch.items()}

    def _compare(self, batch: Batch, episodes: Episodes) -> dict[str, float]:
        """The advantage column, and which groups are learned from."""
        size = self.config.group_size
        returns = episodes.score.reshape(-1, size)
        complete = episodes.complete.reshape(-1, size)
        whole = complete.all(1)
        kept = whole & self.keeps(returns)
        batch["valid"] = batch["valid"] & kept.repeat_interleave(size)
        batch["token_mask"] = batch["token_mask"] & batch["valid"][..., None]
        score = self.scored(batch, episodes).reshape(-1, size)
        advantage = self.advantage(score, complete).reshape(-1)
        batch["advantage"] = self.spread(batch, advantage.to(batch["old_log_prob"].dtype))
        spread = returns.amax(1) - returns.amin(1)
        return {
            "groups": float(whole.sum()),
            "groups_dropped": float((~whole).sum()),
            "groups_learned": float(kept.sum()),
            "groups_uniform": float((whole & (spread <= 0)).sum()),
            "score_mean": float(score[whole].mean()) if bool(whole.any()) else 0.0,
            "tokens": float(batch["token_mask"].sum()),
        }

    def spread(self, batch: Batch, advantage: Tensor) -> Tensor:
        """The advantage [T, N, L] of every token, from that of every row [N]."""
        return advantage[:, None].expand_as(batch["old_log_prob"]) * batch["token_mask"]

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """The clipped surrogate, the KL to the reference (k3), and the entropy bonus."""
        from rollbus_learner import masked
        from rollbus_learner.algorithms import _episodes

        config, mask = self.config, batch["token_mask"]
        found = _episodes.scores(roles["policy"], batch, *(["entropy"] if config.entropy_coef else []))
        log_prob = found["token_log_prob"]
        moved = masked.select(log_prob - batch["old_log_prob"], mask)
        length = mask.sum((0, 2)).clamp(min=1)
        ratio = self._log_ratio(moved, length).exp()
        low, high = 1 - config.clip, 1 + (config.clip_high or config.clip)
        loss = torch.maximum(-batch["advantage"] * ratio, -batch["advantage"] * ratio.clamp(low, high))
        weight, count = self._weight(mask, length)
        terms: dict[str, Term] = {"policy_loss": (masked.select(loss * weight, mask).sum(), count)}
        if config.kl_coef:
            apart = masked.select(batch["reference_log_prob"] - log_prob, mask)
            kl = apart.exp() - apart - 1
            # Where the episode is one action its KL is that of all its tokens together.
            each = weight * length[:, None] if config.ratio == "sequence" else weight
            terms["kl_loss"] = (config.kl_coef * (kl * each).sum(), count)
        if config.entropy_coef:
            entropy = masked.select(found["entropy"], mask.any(-1)).sum()
            terms["entropy_loss"] = (-config.entropy_coef * entropy, mask.sum())
        clipped = ((ratio < low) | (ratio > high)).to(moved.dtype)
        return Loss(
            terms=terms,
            metrics={
                "approx_kl": masked.total((moved.exp() - 1 - moved).detach(), mask),
                "clip_fraction": masked.total(clipped, mask),
                "entropy": masked.total(-log_prob.detach(), mask),
            },
        )

    def _log_ratio(self, moved: Tensor, length: Tensor) -> Tensor:
        """[T, n, L], from the log-ratio of each token and the tokens of each row [n]."""
        if self.config.ratio == "token":
            return moved
        total = moved.sum((0, 2))
        if self.config.ratio == "sequence_mean":
            total = total / length
        return total[:, None].expand_as(moved)

    def _weight(self, mask: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """(weight of each token [T, n, L], what the sum is divided by)."""
        rows = mask.any(2).any(0).sum()
        if self.config.mean == "token":
            return torch.ones_like(mask, dtype=torch.float32), mask.sum()
        if self.config.mean == "constant":
            longest = mask.shape[0] * mask.shape[2]
            return torch.full(mask.shape, 1.0 / longest, device=mask.device), rows
        return (1.0 / length.float())[:, None].expand(mask.shape), rows

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics."""
        self.policy.update_normaliser(  # type: ignore[operator]
            {n: c for n, c in self._decisions(batch).items() if n.startswith("obs/")}, batch["valid"]
        )

    def publish(self, roles: Roles) -> dict[str, Tensor]:
        """The policy; actors need no critic."""
        tensors = roles["policy"].state_dict()
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("critic.")}
