"""On-policy distillation (Agarwal et al., 2306.13649; in the sampled form of Thinking Machines, 2025).

The student acts, a frozen teacher scores what it did: ``A = log pi_teacher - log mu_student`` per token (or
decision), whose mean is minus the reverse KL; the loss is ``-log pi(a) sg(A)``, without ratio and without
normalisation. Where it differs from common code:
- log mu is what was recorded while acting, so samples that are some updates old need no further pass;
- the KL is estimated from the sampled token alone (unbiased), never from the k likeliest;
- a teacher that observes or acts otherwise, such as with another tokenizer, is refused;
- a recurrent teacher judges only episodes that began within the update.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from rollbus_core.config.models import option
from rollbus_core.feed import Feed, TableConfig
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Algorithm, AlgorithmConfig, Loss, Plan, Progress, Role, Step

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(AlgorithmConfig):
    """Settings of on-policy distillation."""

    requires: ClassVar[frozenset[str]] = frozenset({"log_prob"})

    name: str = "opd"
    teacher: str = option(
        "", "Run folder or checkpoint of the teacher; empty: the policy that the run begins with."
    )
    num_steps: int = option(8, "Decisions per row of one update.", "decisions", ge=1)
    minibatches: int = option(1, "Minibatches of one update.", ge=1)
    max_lag: int = option(
        1, "Updates between the version that acted and the one that learns.", "updates", ge=0
    )
    learning_rate: float = option(1e-3, "Step size of Adam.", gt=0, le=1)
    max_grad_norm: float = option(1.0, "Gradient norm limit; 0: none.", ge=0)

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """Whole chunks from a queue; one update is num_envs x num_steps decisions."""
        samples, lag = num_envs * self.num_steps, 0 if deterministic else self.max_lag
        return Feed(
            table=TableConfig(batch_steps=samples, max_lag=lag, one_chunk_per_slice=deterministic),
            num_decisions=self.num_steps,
            extras=("log_prob",),
            extras_if_offered=("token_log_prob",),
            summary=f"one update = {num_envs} rows x {self.num_steps} steps = {samples} samples in "
            f"{self.minibatches} minibatches, lag <= {lag}",
        )


class OPD(Algorithm):
    """The roles "policy", the student, and "teacher"."""

    config: Config

    def roles(self) -> dict[str, Role]:
        """The same ones at each call."""
        if not hasattr(self, "_roles"):
            self._roles = {"policy": Role(self.policy), "teacher": self._teacher()}
        return self._roles

    def _teacher(self) -> Role:
        from rollbus_learner.algorithms._teacher import load_teacher

        path = self.config.teacher
        teacher = load_teacher(Path(path), self.spec) if path else copy.deepcopy(self.policy)
        return Role(teacher.requires_grad_(False), trainable=False, saved=not path)

    def plan(self) -> Plan:
        """One pass; whole rows where the student has a state."""
        size = max(1, self.feed.table.batch_steps // self.config.minibatches)
        state = getattr(self.policy.spec, "state", "none")
        return Plan(batch_size=size, whole_rows=state == "hub")

    def steps(self) -> list[Step]:
        """One step on the student."""
        config = self.config
        return [Step("policy", ("policy",), self.loss, config.learning_rate, clip=config.max_grad_norm)]

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Adds advantage, token_mask and old_log_prob [T, N, L]; ``valid`` is what the teacher can judge."""
        from rollbus_learner import masked
        from rollbus_learner.algorithms import _episodes, _ppo_label, _teacher

        teacher = roles["teacher"]
        with torch.no_grad():
            acted = batch["valid"] & ~batch["interrupted"] & _ppo_label.own(batch)
            batch["valid"] = acted & _teacher.known(teacher, batch)
            _episodes.add_tokens(roles["policy"], batch)
            thought = _episodes.token_log_prob(teacher, _teacher.seen_by(teacher, batch))
            mask = batch["token_mask"]
            batch["advantage"] = masked.select(thought - batch["old_log_prob"], mask)
            return {
                "reverse_kl": float(-masked.mean(batch["advantage"], mask)),
                "tokens": float(mask.sum()),
                "unjudged": float((acted & ~batch["valid"]).sum()),
            }

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """``-log pi(a) sg(log pi_teacher - log mu)``, a mean over tokens."""
        from rollbus_learner import masked
        from rollbus_learner.algorithms import _episodes

        mask = batch["token_mask"]
        log_prob = _episodes.token_log_prob(roles["policy"], batch)
        return Loss(
            terms={"policy_loss": masked.total(-batch["advantage"] * log_prob, mask)},
            metrics={"entropy": masked.total(-log_prob.detach(), mask)},
        )

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics, once per update."""
        length = len(batch["valid"])
        seen = {name: column[:length] for name, column in batch.items() if name.startswith("obs/")}
        cast("Policy", roles["policy"]).update_normaliser(seen, batch["valid"])

    def publish(self, roles: Roles) -> dict[str, Tensor]:
        """The student; actors need no critic."""
        tensors = roles["policy"].state_dict()
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("critic.")}


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> OPD:
    """The algorithm for one learner."""
    return OPD(config, spec, policy, feed)
