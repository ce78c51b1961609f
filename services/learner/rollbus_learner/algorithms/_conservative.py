"""The conservative term of CQL and Cal-QL: critics value what the policy would do no higher than the data.

Symbols: B transitions of a minibatch, M critics, n actions per proposal.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Self, cast

from pydantic import model_validator

from rollbus_core.config.models import option
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Loss, Role, Step
from rollbus_learner.algorithms import sac
from rollbus_learner.algorithms._actor_critic import CriticConfig, values
from rollbus_learner.algorithms._offline import Offline, OfflineConfig
from rollbus_learner.algorithms._replay import observed

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
else:
    torch = lazy_import("torch")


#: A gap that cannot be held would raise the weight for ever.
LARGEST_WEIGHT = 1e6


class ConservativeConfig(sac.Entropy, CriticConfig, OfflineConfig):
    """Settings of the conservative term."""

    requires: ClassVar[frozenset[str]] = frozenset({"sample", "log_prob"})

    conservative: float = option(5.0, "Weight of the conservative term; with target_gap its start.", ge=0)
    target_gap: float = option(
        0.0,
        "Mean gap of each critic, what is proposed over what the data shows, that the weight is learned to "
        "hold (a Lagrange multiplier); 0: the weight is fixed.",
        ge=0,
    )
    entropy_backup: bool = option(False, "Entropy counts in the value of the next state.")
    num_proposals: int = option(10, "Actions of each kind: uniform, of the policy now, and next.", ge=1)
    importance: bool = option(
        True,
        "Proposals are weighed by their densities; false: they count as they are and the data's action is "
        "among them, which bounds the term from below: for data with many actions at their bounds.",
    )

    @model_validator(mode="after")
    def _starts_above_zero(self) -> Self:
        if self.target_gap and not self.conservative:
            raise ValueError("conservative 0 cannot be the start of a weight that is learned; raise it")
        return self


class Conservative(Offline, sac.SAC):
    """SAC on data whose critics have the conservative term."""

    def further_roles(self) -> dict[str, Role]:
        """The term's weight, as its logarithm, where it is learned."""
        if not self.config.target_gap:
            return super().further_roles()
        multiplier, start = torch.nn.Module(), math.log(self.config.conservative)
        multiplier.register_parameter("log_weight", torch.nn.Parameter(torch.tensor(start)))
        return super().further_roles() | {"multiplier": Role(multiplier)}

    def next_value(self, heads: Tensor, entropy_cost: Tensor) -> Tensor:
        """The smallest, as in the authors' code without the entropy."""
        return super().next_value(heads, entropy_cost if self.config.entropy_backup else 0.0 * entropy_cost)

    def critic_step(self) -> Step:
        """All critics at once, and the term's weight."""
        step = super().critic_step()
        return replace(step, trains=(*step.trains, "multiplier")) if self.config.target_gap else step

    def critic_loss(self, roles: Roles, batch: Batch) -> Loss:
        """SAC's, and ``conservative (log mean exp Q(s, .) - Q(s, a))`` summed over critics.

        A learned weight descends ``-weight (gap - target_gap)``, gap the mean over critics.
        """
        from rollbus_learner import masked

        loss, valid = super().critic_loss(roles, batch), masked.valid_mask(batch)
        q = values(roles, "critic", batch, self.taken(roles, batch), "obs/")
        gap = (self.log_mean_exp(roles, batch, q) - q).sum(0)
        weight = self.weight(roles)
        loss.terms["conservative_loss"] = masked.total(weight.detach() * gap, valid)
        loss.metrics["conservative_gap"] = masked.total(gap.detach(), valid)
        if self.config.target_gap:
            above = gap.detach() / len(q) - self.config.target_gap
            loss.terms["multiplier_loss"] = masked.total(-weight * above, valid)
            loss.metrics["conservative_weight"] = masked.total(weight.detach().expand_as(gap), valid)
        return loss

    def weight(self, roles: Roles) -> Tensor:
        """Of the conservative term, a scalar."""
        if not self.config.target_gap:
            return torch.tensor(self.config.conservative)
        learned = cast("Tensor", roles["multiplier"].log_weight)
        return learned.exp().clamp(max=LARGEST_WEIGHT)

    def log_mean_exp(self, roles: Roles, batch: Batch, shown: Tensor) -> Tensor:
        """[M, B]: log of the integral of exp Q over actions, by importance sampling from three proposals.

        Without importance: log of the mean of exp Q over them and ``shown`` [M, B], Q of the data's action.
        """
        num, size = self.config.num_proposals, self.num_elements
        uniform = 2.0 * torch.rand(num, len(batch["reward"]), size, device=batch["reward"].device) - 1.0
        found = [self.corrected(roles, batch, uniform, torch.tensor(-size * math.log(2.0)))]
        for which in ("", "next_"):
            with torch.no_grad():
                action, log_prob = self.proposed(roles["policy"], batch, which, num)
            found.append(self.corrected(roles, batch, action, log_prob, of_policy=True))
        if not self.config.importance:
            found.append(shown.unsqueeze(0))
        every = torch.cat(found)
        return torch.logsumexp(every, 0) - math.log(len(every))

    def corrected(
        self, roles: Roles, batch: Batch, action: Tensor, log_prob: Tensor, *, of_policy: bool = False
    ) -> Tensor:
        """``Q(s, action) - log_prob`` [n, M, B] of actions [n, B, ...] with density ``log_prob`` [n, B].

        Without importance Q alone.
        """
        num = len(action)
        wide = {
            name: column.unsqueeze(0).expand(num, *column.shape)
            for name, column in observed(batch, "").items()
        }
        heads = values(roles, "critic", wide, action, "obs/")
        if of_policy:
            heads = self.bounded(heads, batch)
        weighed = heads - log_prob if self.config.importance else heads
        return weighed.transpose(0, 1)

    def bounded(self, heads: Tensor, batch: Batch) -> Tensor:
        """Q [M, n, B] of what the policy would do."""
        return heads

    def proposed(self, policy: nn.Module, batch: Batch, which: str, num: int) -> tuple[Tensor, Tensor]:
        """``num`` samples [n, B, ...] and their log-probs [n, B], on this or the next observation."""
        obs = observed(batch, which)
        wide = {name: column.repeat(num, *[1] * (column.ndim - 1)) for name, column in obs.items()}
        rows = num * len(batch["reward"])
        wide["noise"] = torch.randn(rows, self.num_noise, device=batch["reward"].device)
        drawn = policy(wide, ("sample",))
        action = cast("Policy", policy).squash(drawn["sample"]).unflatten(0, (num, -1))
        return action, drawn["sample_log_prob"].unflatten(0, (num, -1))
