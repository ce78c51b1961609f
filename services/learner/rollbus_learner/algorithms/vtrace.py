"""IMPALA's actor-critic with V-trace (Espeholt et al., 1802.01561).

The policy gradient ``-A_t log pi`` with ``A_t = rho_t (r_t + g X_t - V_t)``, X the next decision's target,
and a value that follows V-trace's targets vs; both correct for actors that run ahead of the learner, by
ratios of learner and actor that are clipped at ``rho_clip`` and ``c_clip``. Where it differs from the paper:
- the targets of an update are computed once, with the weights it begins with, not per minibatch;
- Adam in place of RMSProp; ``normalise_advantage``, off, divides by the deviation over the update;
- where an episode was truncated, the value of its final observation is the bootstrap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Loss, Progress
from rollbus_learner.algorithms._on_policy import GAP_SAMPLES, OnPolicy
from rollbus_learner.algorithms._on_policy_config import OnPolicyConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rollbus_learner.algorithm import Batch, Roles, Term
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(OnPolicyConfig):
    """Settings of V-trace."""

    name: str = "vtrace"
    num_steps: int = option(20, "Decisions per row of one update.", "decisions", ge=1)
    epochs: int = option(1, "Passes over the samples of one update.", ge=1)
    minibatches: int = option(1, "Minibatches of one epoch.", ge=1)
    max_lag: int = option(4, "Updates that actors may run ahead of the learner.", "updates", ge=0)
    gae_lambda: float = option(1.0, "Trace decay, a factor of c.", ge=0, le=1)
    normalise_advantage: bool = option(False, "Advantages of an update get mean 0 and deviation 1.")
    rho_clip: float = option(1.0, "Limit of the ratio in the targets and in the gradient.", gt=0)
    c_clip: float = option(1.0, "Limit of the ratio that carries targets back in time.", gt=0)


class VTrace(OnPolicy):
    """Policy gradient and value targets with clipped importance ratios."""

    config: Config

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds advantage and target [T, N]; takes what does not count out of valid."""
        from rollbus_learner import estimators, masked
        from rollbus_learner.algorithms import _ppo_label as labels
        from rollbus_learner.losses import explained_variance

        config, policy = self.config, roles["policy"]
        with torch.no_grad():
            batch["valid"] = valid = labels.usable(batch)
            value, final_value = labels.values(policy, batch, config.value_source, self.recurrent)
            moved = labels.log_probs(policy, batch, self.recurrent) - batch["log_prob"]
            moved = masked.select(moved, valid)
            reward, discount = self.rewards(batch, roles)
            found = estimators.vtrace(
                reward=reward, discount=discount, value=value.float().cpu().numpy(),
                final_value=final_value.float().cpu().numpy(),
                terminated=batch["terminated"].cpu().numpy(), truncated=batch["truncated"].cpu().numpy(),
                valid=valid.cpu().numpy(), log_ratio=moved.float().cpu().numpy(), lam=config.gae_lambda,
                rho_clip=config.rho_clip, c_clip=config.c_clip,
            )  # fmt: skip
            advantage, target = (torch.from_numpy(column).to(value.device) for column in found)
            ratio = moved.exp()
            metrics = {
                "explained_variance": float(explained_variance(value[:-1], target, valid)),
                "advantage_std": float(masked.variance(advantage, valid).sqrt()),
                "reward_scale": self.reward_factor,
                "ratio_mean": float(masked.mean(ratio, valid)),
                "clip_fraction": float(masked.mean((ratio > config.rho_clip).to(ratio.dtype), valid)),
            }
            if config.normalise_advantage:
                advantage = labels.normalised(advantage, batch, config.normalise_per_task)
            batch |= {"advantage": advantage, "target": target}
            gap = labels.log_prob_gap(policy, batch, progress.updates, self.recurrent, GAP_SAMPLES)
        return metrics | gap

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """``-A log pi``, the value loss, and the entropy bonus on one minibatch."""
        from rollbus_learner import masked

        valid = masked.valid_mask(batch)
        new = roles["policy"](batch, ("log_prob", "entropy", *self.values))
        terms: dict[str, Term] = {
            "policy_loss": masked.total(-batch["advantage"] * new["log_prob"], valid),
            "value_loss": self.value_term(new, batch, valid),
        }
        if self.entropy_coef:
            terms["entropy_loss"] = masked.total(-self.entropy_coef * new["entropy"], valid)
        moved = (new["log_prob"] - batch["log_prob"]).detach()
        return Loss(
            terms=terms,
            metrics={
                "entropy": masked.total(new["entropy"].detach(), valid),
                "approx_kl": masked.total(moved.exp() - 1 - moved, valid),
                "value": masked.total(new["value"].detach(), valid),
            },
        )


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> VTrace:
    """The algorithm for one learner."""
    return VTrace(config, spec, policy, feed)
