"""Decoupled PPO for asynchronous runs (Hilton et al., 2110.00641; A-3PO, 2512.06547).

The ratio is clipped against a proximal policy near the one that learns, and what acted only weighs the
sample: with lp_mu of the version that acted and lp_prox of the proximal policy the loss is PPO's on
``exp(lp - lp_prox)`` times ``w = exp(lp_prox - lp_mu)``, both without gradient. The proximal policy is

- ``interpolated`` (A-3PO): ``lp_prox = lp_mu + d / (d + 1) (lp - lp_mu)`` for a sample that is d updates
  old, without a further forward pass; at d = 0 this is PPO, and at d its gradient is that of PPO with the
  clip widened to ``(1 + clip) ** (d + 1) - 1``, so several epochs ask for a small ``clip``;
- ``recomputed`` (2110.00641): the learner's own at the start of the update.

A sample whose w exceeds ``weight_limit`` leaves the update: numerator and count, the value loss with it.
Where it differs from the papers: no averaging of weights for the proximal policy; the rest is `ppo`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import ppo

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(ppo.Config):
    """Settings of decoupled PPO."""

    name: str = "decoupled_ppo"
    max_lag: int = option(4, "Updates that actors may run ahead of the learner.", "updates", ge=0)
    proximal: Literal["interpolated", "recomputed"] = option(
        "interpolated", "The policy that the ratio is clipped against; recomputed: one more forward pass."
    )
    weight_limit: float = option(
        5.0, "Samples with a larger weight of proximal over acting policy leave the update.", gt=1
    )


class DecoupledPPO(ppo.PPO):
    """PPO against a proximal policy."""

    config: Config

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds to PPO's labels ``alpha`` or ``proximal_log_prob`` [T, N]."""
        from rollbus_learner.algorithms import _ppo_label as labels

        metrics = super().label(batch, roles, progress)
        with torch.no_grad():
            if self.config.proximal == "recomputed":
                batch["proximal_log_prob"] = labels.log_probs(roles["policy"], batch, self.recurrent)
            else:
                age = labels.lag(batch, progress.updates).clamp(min=0).to(batch["log_prob"].dtype)
                batch["alpha"] = age / (age + 1)
        return metrics

    def behaviour(self, batch: Batch, log_prob: Tensor, valid: Tensor | None) -> ppo.Behaviour:
        """The proximal policy; advantages times w. ``weights_cut`` is the share of samples that leave."""
        acted = batch["log_prob"]
        if "alpha" in batch:
            proximal = acted + batch["alpha"] * (log_prob - acted)
        else:
            proximal = batch["proximal_log_prob"]
        counts = torch.ones_like(acted, dtype=torch.bool) if valid is None else valid
        log_weight = torch.where(counts, proximal - acted, torch.zeros_like(acted))
        stays = log_weight <= math.log(self.config.weight_limit)
        weight = torch.where(stays, log_weight, torch.zeros_like(acted)).exp()
        cut = ((~stays).to(acted.dtype).sum(), counts.sum())
        return ppo.Behaviour(proximal, batch["advantage"] * weight, counts & stays, {"weights_cut": cut})


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> DecoupledPPO:
    """The algorithm for one learner."""
    return DecoupledPPO(config, spec, policy, feed)
