"""Supervised learning from demonstrations: behaviour cloning (Pomerleau 1989, ALVINN).

The loss is ``-log pi(a | o)`` of what was executed, or the policy's own ``cloning_loss`` where it has one
(flow matching, denoising, L1 of a chunk). Where it differs from common code:
- observation statistics come from the batches, as everywhere in Rollbus, not from the whole data set;
- the log-prob is in the units that the policy scores; actions at the bounds of a squashed Gaussian are
  moved inside a little (`from_env_action`), else their log-prob would be infinite;
- a recurrent policy learns from sequences of up to ``num_steps`` decisions; one that begins within an
  episode has state 0, and its first ``burn_in`` decisions do not count;
- a policy that decides several actions at once learns those that follow, up to the episode's end;
- a part of the episodes, whole ones, is held back; its loss is reported as ``validation_loss``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rollbus_core import extras
from rollbus_core.config.models import option
from rollbus_core.feed import Feed, TableConfig
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithm import Algorithm, AlgorithmConfig, Loss, Plan, Progress, Role, Step, of_stream
from rollbus_learner.algorithms._cloning import cloning_loss, labels_of, wanted_loss, with_state
from rollbus_learner.algorithms._lora import adapt, merged
from rollbus_learner.averaging import average_of, averaging_rate, follow
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_policies.base import Policy
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


def packages(config: Any) -> dict[str, str]:
    """Package -> what pip installs it by."""
    return {"peft": extras.requirement("peft")} if config.lora_rank else {}


#: The table of the demonstrations, and that of those held back.
DEMOS, VALIDATION = "demos", "validation"


class Config(AlgorithmConfig):
    """Settings of supervised learning."""

    requires_one_of: ClassVar[frozenset[str]] = frozenset({"log_prob", "cloning_loss"})
    masks_padding: ClassVar[bool] = True

    name: str = "sft"
    batch_size: int = option(256, "Decisions of one gradient step.", ge=1)
    steps_per_update: int = option(10, "Gradient steps of one update.", ge=1)
    learning_rate: float = option(1e-3, "Step size.", gt=0, le=1)
    max_grad_norm: float = option(1.0, "Gradient norm limit; 0: none.", ge=0)
    validation: float = option(0.1, "Part of the episodes that is held back; 0: none.", ge=0, lt=1)
    validation_every: int = option(10, "Updates between two validations.", "updates", ge=1)
    validation_size: int = option(1024, "Decisions of one validation.", ge=1)
    num_steps: int = option(64, "Decisions of one chunk on its way to the table.", "decisions", ge=1)
    max_bytes: int = option(4 << 30, "Bytes each table may take.", "bytes", ge=1 << 20)
    burn_in: int = option(
        8, "Recurrent policies: decisions that do not count where the state is not known.", "decisions", ge=0
    )
    ema: float = option(
        0.0, "Decay per gradient step of an average of the weights that acts, is evaluated and exported; "
        "0: none.", ge=0, lt=1,
    )  # fmt: skip
    lora_rank: int = option(
        0, "Train low-rank adapters of this rank and nothing else (peft); 0: all weights.", ge=0, le=1024
    )
    lora_modules: tuple[str, ...] = option(
        (), "Linear layers that get adapters, by name or its last part, as wide; empty: all of the policy."
    )
    only_good: bool = option(False, "Learn only from decisions that the data's labels call good.")

    @property
    def begins_with(self) -> str:
        """What adapters are for must have been trained."""
        return "the policy that is adapted (algorithm.lora_rank)" if self.lora_rank else ""

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """Uniform draws of demonstrated decisions."""
        return Feed(
            table=TableConfig(sampler="replay", max_bytes=self.max_bytes),
            num_decisions=self.num_steps, unit="step", or_sequences=True, num_batches=self.steps_per_update,
            batch_size=self.batch_size, part=(0.0, 1.0 - self.validation),
            summary=f"one update = {self.steps_per_update} gradient steps on {self.batch_size} demonstrated "
            f"decisions each; {self.validation:.0%} of the episodes are held back",
        )  # fmt: skip

    def feeds(self, *, num_envs: int, num_slices: int, deterministic: bool) -> dict[str, Feed]:
        """Demonstrations, and those held back."""
        demos = self.feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        if not self.validation:
            return {DEMOS: demos}
        held_back = {
            "num_batches": 1, "batch_size": self.validation_size, "every": self.validation_every,
            "part": (1.0 - self.validation, 1.0), "summary": "",
        }  # fmt: skip
        return {DEMOS: demos, VALIDATION: demos.model_copy(update=held_back)}


class SFT(Algorithm):
    """One network, one loss."""

    def __init__(self, config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        self.recurrent = policy.spec.state == "hub"  # type: ignore[union-attr]
        if self.recurrent != (feed.unit == "sequence"):
            raise ConfigError(
                f"algorithm.name: {config.name}: a policy with a recurrent state must offer 'recurrent' (its "
                "Config.offers), and no other may: it learns from sequences"
            )
        self._want = wanted_loss(policy)
        if config.lora_rank:
            adapt(policy, config.lora_rank, config.lora_modules)
        self._average: Role | None = None
        self._num_steps = 0

    def roles(self) -> dict[str, Role]:
        """The policy, and its moving average where one is kept."""
        if not self.config.ema:
            return {"policy": Role(self.policy)}
        self._average = self._average or average_of(self.policy)
        return {"policy": Role(self.policy), "average": self._average}

    def plan(self) -> Plan:
        """The drawn minibatches, one after the other."""
        return Plan(batch_size=self.feed.batch_size, ordered=True, whole_rows=self.recurrent)

    def steps(self) -> list[Step]:
        """Cloning."""
        config = self.config
        return [Step("policy", ("policy",), self.loss, config.learning_rate, clip=config.max_grad_norm)]

    def label(self, batch: Batch, roles: Roles, progress: Progress) -> dict[str, float]:
        """Observation statistics of the first batch, before it is learned from; the validation loss."""
        if self.recurrent:
            with_state(batch, self.policy, self.config.burn_in)
        if not progress.updates:
            self.after_update(batch, roles, {})
        held_back = of_stream(batch, VALIDATION)
        if not held_back:
            return {}
        for name in [name for name in batch if name.startswith(f"{VALIDATION}/")]:
            del batch[name]
        if self.recurrent:
            with_state(held_back, self.policy, self.config.burn_in)
        with torch.no_grad():
            terms = self.loss(roles, held_back).terms["cloning_loss"]
        return {"validation_loss": float(terms[0]) / max(1.0, float(terms[1]))}

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """Mean over valid decisions."""
        from rollbus_learner import masked

        if self.config.only_good:
            good = labels_of(batch, self.config.name) > 0
            batch = {**batch, "valid": good & batch["valid"] if "valid" in batch else good}
        loss = cloning_loss(roles["policy"], batch, self._want)
        return Loss({"cloning_loss": masked.total(loss, masked.valid_mask(batch))})

    def after_step(self, roles: Roles, step: str, metrics: Mapping[str, float]) -> bool:
        """The average follows."""
        if self.config.ema:
            self._num_steps += 1
            follow(roles["average"], roles["policy"], averaging_rate(self.config.ema, self._num_steps))
        return False

    def after_update(self, batch: Batch, roles: Roles, metrics: Mapping[str, float]) -> None:
        """Observation statistics, once per update."""
        seen = {name: column for name, column in batch.items() if name.startswith("obs/")}
        cast("Policy", roles["policy"]).update_normaliser(seen, batch["valid"])
        if self.config.ema:
            follow(roles["average"], roles["policy"], 0.0)

    def state(self) -> dict[str, Any]:
        """Steps of the average."""
        return {"num_steps": self._num_steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._num_steps = int(state.get("num_steps", 0))

    def publish(self, roles: Roles) -> dict[str, Tensor]:
        """The policy, or its average; actors need no critic."""
        acts = roles["average" if self.config.ema else "policy"]
        tensors = merged(acts) if self.config.lora_rank else acts.state_dict()
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("critic.")}


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> SFT:
    """The algorithm for one learner."""
    return SFT(config, spec, policy, feed)
