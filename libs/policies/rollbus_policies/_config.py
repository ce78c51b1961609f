"""Settings that the actor-critic families share. Importing this needs no torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from rollbus_core.config.models import MAX_WIDTH, Widths
from rollbus_policies.base import PolicyConfig

HeadKind = Literal[
    "auto", "gaussian", "state_gaussian", "tanh_gaussian", "bins", "deterministic", "q_values",
    "dueling_q_values", "gsde", "tanh_gsde",
]  # fmt: skip
#: What a head is asked for -> the head to set for it; and what heads that differ from most give.
_HEAD_OF = {
    "sample": "tanh_gaussian", "deterministic": "deterministic", "q_values": "q_values", "log_prob": "auto",
    "entropy": "auto", "cloning_loss": "auto",
}  # fmt: skip
_OF_HEADS = {
    "tanh_gaussian": frozenset({"sample", "log_prob", "entropy", "cloning_loss"}),
    "tanh_gsde": frozenset({"sample", "log_prob", "entropy", "cloning_loss"}),
    "deterministic": frozenset({"deterministic"}),
    "q_values": frozenset({"q_values"}),
    "dueling_q_values": frozenset({"q_values"}),
}
Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]


def check_width(width: int, num_heads: int) -> None:
    """Raise ValueError unless heads can share ``width`` and sines and cosines halve it."""
    if width % num_heads or width % 2:
        raise ValueError(f"width {width} is no even multiple of num_heads {num_heads}; change one")


class ChunkConfig(PolicyConfig):
    """A policy whose decisions may hold several actions."""

    chunk: int = Field(1, ge=1, description="Actions of one decision.")
    execute: int = Field(
        0, ge=0, description="How many of them are executed before the next decision; 0: all."
    )

    @model_validator(mode="after")
    def _executes_what_there_is(self) -> Self:
        if self.execute > self.chunk:
            raise ValueError(
                f"execute {self.execute} is more than the {self.chunk} actions of a decision; raise chunk"
            )
        return self

    @property
    def num_executed(self) -> int:
        """Actions of one decision that are executed."""
        return self.execute or self.chunk


class CriticFields(BaseModel):
    """The value function of a policy."""

    value_head: Literal["scalar", "two_hot"] = Field(
        "scalar",
        description="What a value is: a number, or the mean of a distribution over value_atoms numbers up to "
        "value_limit, which is trained by cross-entropy (DreamerV3).",
    )
    value_atoms: int = Field(255, ge=2, description="Numbers that the distribution of two_hot is over.")
    value_limit: float = Field(
        10_000.0,
        gt=0,
        description="Largest of them, and least without its sign; they are dense around 0. Returns beyond "
        "count as this.",
    )
    critic: Literal["own", "shared"] = Field(
        "own",
        description="Whether the value function has networks of its own or reads the policy's features.",
    )
    critic_group: str = Field(
        "policy", description="Observation group that an own critic reads: policy, privileged, ..."
    )

    def value_lacks(self) -> dict[str, str]:
        """What the value does not give: name -> why, and what to set."""
        if self.value_head == "scalar":
            return {}
        why = "policy.value_head: two_hot has none; set it to scalar, or value_clip and huber_delta to 0"
        return {"value_error": why}


class ActorCriticConfig(CriticFields, ChunkConfig):
    """A stochastic policy with an optional value function."""

    offers: ClassVar[frozenset[str]] = frozenset(
        {"log_prob", "entropy", "value", "sample", "cloning_loss", "deterministic", "q_values"}
    )

    hidden: Widths = Field([64, 64], description="Widths of the hidden layers.")
    activation: Activation = Field("tanh", description="Activation of the hidden layers.")
    init: Literal["orthogonal", "torch"] = Field(
        "orthogonal",
        description="Initial weights: orthogonal (gain sqrt 2, outputs 0.01, values 1) or torch's own.",
    )
    head: HeadKind = Field(
        "auto",
        description="Distribution of continuous actions: gaussian clips (PPO), state_gaussian has a "
        "deviation that depends on the observation, tanh_gaussian squashes and can be sampled with gradient "
        "(SAC), gsde and tanh_gsde are the same with noise that depends on the features and is kept for a "
        "while, bins chooses one of num_bins values per dimension; auto: gaussian. Without a density, with "
        "exploration that the algorithm sets: deterministic (TD3), q_values and dueling_q_values of discrete "
        "actions (DQN).",
    )
    sde_sample_freq: int = Field(
        0, ge=0, description="Steps for which heads gsde and tanh_gsde keep their noise; 0: an episode."
    )
    num_bins: int = Field(11, ge=2, description="Values per action dimension of head bins.")
    log_std_init: float = Field(0.0, description="Initial log standard deviation of continuous actions.")
    normalise_obs: bool = Field(
        False, description="Normalise observations by running statistics; images are divided by 255 always."
    )
    critic_hidden: Widths = Field([], description="Hidden layers of an own critic; empty: as hidden.")
    recompute: bool = Field(
        False,
        description="Run the encoder again in the backward pass instead of keeping its activations: less "
        "memory for a third more time.",
    )

    def lacks(self) -> dict[str, str]:
        """What head and value do not give."""
        own = _OF_HEADS.get(self.head, frozenset({"log_prob", "entropy", "cloning_loss"}))
        missing = set(_HEAD_OF) - own
        only = {"sample": ", of continuous actions only", "deterministic": ", of continuous actions only"}
        lacks = {
            name: f"head {self.head} gives none; set policy.head: {_HEAD_OF[name]}{only.get(name, '')}"
            for name in missing
        }
        return lacks | self.value_lacks()

    @property
    def critic_widths(self) -> list[int]:
        """Widths of the hidden layers of an own critic."""
        return self.critic_hidden or self.hidden


class AttentionFields(BaseModel):
    """Sizes of a policy that encodes observations by attention and decides by an action expert."""

    width: int = Field(64, ge=2, le=MAX_WIDTH, description="Width of a position.")
    layers: int = Field(2, ge=1, description="Attention blocks over the observations.")
    expert_layers: int = Field(2, ge=1, description="Attention blocks of the action expert.")
    num_heads: int = Field(4, ge=1, description="Attention heads; they share the width.")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        check_width(self.width, self.num_heads)
        return self


class GenerativeConfig(AttentionFields, CriticFields, ChunkConfig):
    """A policy that makes actions out of noise in several steps."""

    offers: ClassVar[frozenset[str]] = frozenset(
        {"log_prob", "entropy", "value", "sample", "cloning_loss", "chain_log_prob", "steering",
         "refinement"}
    )  # fmt: skip

    chunk: int = Field(4, ge=1, description="Actions of one decision.")
    steps: int = Field(4, ge=1, description="Steps from noise to action.")
    stochastic_steps: Literal["all", "one"] = Field(
        "all",
        description="Which steps of a sampled chain add noise and are scored; one: a step drawn per row; "
        "what later steps owe to the parameters is then left out of the gradient.",
    )
    guidance: float = Field(
        1.0,
        ge=0,
        description="With condition: label: how far beyond the unconditional action to go when acting.",
    )
    normalise_obs: bool = Field(
        False, description="Normalise observations by running statistics; images are divided by 255 always."
    )
    critic_hidden: Widths = Field([64], description="Hidden layers of the critic behind its encoder.")
    steer: bool = Field(
        False,
        description="A small network chooses the noise that a decision begins with; the chain adds none.",
    )
    steer_hidden: Widths = Field([128, 128], description="Hidden layers of that network.")
    steer_bound: float = Field(2.0, gt=0, description="Largest noise that it chooses.")
    refine: bool = Field(
        False,
        description="A small network changes what was decided; it sees a token that sums up what the policy "
        "sees, the numbers among the observations and the decision. The chain adds no noise.",
    )
    refine_token: int = Field(32, ge=1, description="Width of that token.")
    refine_hidden: Widths = Field([128, 128], description="Hidden layers of that network.")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.steer and self.refine:
            raise ValueError(
                "steer and refine exclude each other: what begins a chain or what ends it; unset one"
            )
        return self

    def lacks(self) -> dict[str, str]:
        """What was not asked for, and what chains without noise have none of; densities of each step, where
        only one is scored."""
        others = {"steering": "steer", "refinement": "refine"}
        lacks = {name: f"set policy.{key}: true" for name, key in others.items() if not getattr(self, key)}
        lacks |= self.value_lacks()
        if self.steer or self.refine:
            why = f"its chain adds no noise; unset policy.{'steer' if self.steer else 'refine'}"
            return lacks | dict.fromkeys(("log_prob", "entropy", "sample", "chain_log_prob"), why)
        if self.stochastic_steps == "one":
            lacks["chain_log_prob"] = "only one step of a chain is scored; set policy.stochastic_steps: all"
        return lacks
