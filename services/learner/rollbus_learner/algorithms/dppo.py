"""Diffusion policy policy optimisation (Ren et al., 2409.00588), for policies that denoise their actions.

PPO in the two-layer decision process: every denoising step is an action of its own. Steps share the
decision's advantage, those further from the action discounted by ``step_discount``, and each has a ratio
and a clip of its own, which grows from ``clip_first`` at the noisiest step to ``clip`` at the last. As in
the authors' code a step's ratio is of its mean log-prob per element, which is clamped to [-5, 2] before.
The deviation of the steps is bounded below by the policy's ``min_std``. Where it differs:
- ratios are against the learner's own log-probs at the start of the update, which are the actor's only if
  nobody ran ahead, so ``max_lag`` is 0;
- all steps are fine-tuned, not the last ones only;
- advantages are normalised over the update.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import model_validator

from rollbus_core.config.models import option
from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Loss, Progress
from rollbus_learner.algorithms import ppo

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles, Term
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)

#: Log-probs of elements are held within these, so that one outlier does not decide a ratio.
CLAMP = (-5.0, 2.0)
#: How fast the clip grows over the steps.
GROWTH = 3.0


class Config(ppo.Config):
    """Settings of DPPO."""

    requires: ClassVar[frozenset[str]] = ppo.Config.requires | {"chain_log_prob"}
    masks_padding: ClassVar[bool] = False

    name: str = "dppo"
    max_lag: int = option(0, "Must be 0: ratios are against the learner's own log-probs.", "updates", ge=0)
    clip: float = option(0.01, "The last step's ratio is clipped at 1 -+ clip.", gt=0, lt=1)
    clip_first: float = option(0.001, "The first, noisiest step's ratio is clipped at 1 -+ this.", gt=0, lt=1)
    step_discount: float = option(
        0.99, "Factor of the advantage per denoising step that is still to come.", gt=0, le=1
    )

    @model_validator(mode="after")
    def _acts_with_what_it_learns(self) -> Config:
        if self.max_lag:
            raise ValueError(f"max_lag {self.max_lag} would make the ratios wrong; leave it at 0")
        return self


class DPPO(ppo.PPO):
    """PPO whose ratios are of denoising steps."""

    config: Config

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds ``old_steps`` [T, N, n] to PPO's labels: log-prob of each noisy step."""
        metrics = super().label(batch, roles, progress)
        length = len(batch["valid"])
        seen = {n: c[:length] for n, c in batch.items() if n.startswith("obs/")}
        seen |= {name: batch[name] for name in ("action", "num_steps")}
        with torch.no_grad():
            batch["old_steps"] = self.steps_log_prob(roles, seen)
        return metrics

    def steps_log_prob(self, roles: Roles, batch: Batch) -> Tensor:
        """Mean over the executed elements of their clamped log-probs, [..., n]."""
        elements = roles["policy"](batch, ("chain_log_prob",))["chain_log_prob"].clamp(*CLAMP)
        place = torch.arange(elements.shape[-2], device=elements.device)
        executed = (place < batch["num_steps"][..., None]).to(elements.dtype)[..., None, :]
        share = executed / executed.sum(-1, keepdim=True).clamp(min=1)
        return (elements.mean(-1) * share).sum(-1)

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """A clipped surrogate per step, the value loss, the entropy bonus."""
        from rollbus_learner import masked

        policy, valid = roles["policy"], masked.valid_mask(batch)
        new = policy(batch, ("entropy", *self.values))
        moved = self.steps_log_prob(roles, batch) - batch["old_steps"]
        ratio, limit = moved.exp(), self.limits(moved)
        advantage = batch["advantage"][..., None] * self.discounts(moved)
        surrogate = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - limit, 1 + limit))
        terms: dict[str, Term] = {
            "policy_loss": masked.total(surrogate.mean(-1), valid),
            "value_loss": self.value_term(new, batch, valid),
        }
        if self.entropy_coef:
            terms["entropy_loss"] = masked.total(-self.entropy_coef * new["entropy"], valid)
        outside = ((ratio - 1).abs() > limit).to(moved.dtype).mean(-1)
        kl = (ratio - 1 - moved).mean(-1)
        statistics = {
            "entropy": new["entropy"],
            "approx_kl": kl,
            "clip_fraction": outside,
            "value": new["value"],
        }
        metrics = {name: masked.total(value.detach(), valid) for name, value in statistics.items()}
        return Loss(terms, metrics)

    def limits(self, steps: Tensor) -> Tensor:
        """How far the ratio of each of the n steps may go, [n]."""
        first, last = self.config.clip_first, self.clips[0]
        done = torch.linspace(0.0, 1.0, steps.shape[-1], device=steps.device)
        grown = torch.expm1(GROWTH * done) / math.expm1(GROWTH)
        return first + (last - first) * grown if steps.shape[-1] > 1 else torch.full_like(done, last)

    def discounts(self, steps: Tensor) -> Tensor:
        """Factor of the advantage of each of the n steps, [n]; the last one's is 1."""
        left = torch.arange(steps.shape[-1] - 1, -1, -1, device=steps.device)
        return self.config.step_discount**left


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> DPPO:
    """The algorithm for one learner."""
    return DPPO(config, spec, policy, feed)
