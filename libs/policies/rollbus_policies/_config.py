"""Settings that the actor-critic families share. Importing this needs no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rollbus_policies.base import PolicyConfig

Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]


class ActorCriticConfig(PolicyConfig):
    """A stochastic policy with an optional value function."""

    offers: ClassVar[frozenset[str]] = frozenset({"log_prob", "entropy", "value", "sample"})

    hidden: list[int] = Field([64, 64], description="Widths of the hidden layers.")
    activation: Activation = Field("tanh", description="Activation of the hidden layers.")
    init: Literal["orthogonal", "torch"] = Field(
        "orthogonal",
        description="Initial weights: orthogonal (gain sqrt 2, outputs 0.01, values 1) or torch's own.",
    )
    head: Literal["auto", "gaussian", "tanh_gaussian"] = Field(
        "auto",
        description="Distribution of continuous actions: gaussian clips (PPO), tanh_gaussian squashes "
        "and can be sampled with gradient (SAC); auto: gaussian.",
    )
    log_std_init: float = Field(0.0, description="Initial log standard deviation of continuous actions.")
    normalise_obs: bool = Field(
        False, description="Normalise observations by running statistics; images are divided by 255 always."
    )
    critic: Literal["own", "shared"] = Field(
        "own",
        description="Whether the value function has networks of its own or reads the policy's features.",
    )
    critic_hidden: list[int] = Field([], description="Hidden layers of an own critic; empty: as hidden.")
    critic_group: str = Field(
        "policy", description="Observation group that an own critic reads: policy, privileged, ..."
    )

    recompute: bool = Field(
        False,
        description="Run the encoder again in the backward pass instead of keeping its activations: less "
        "memory for a third more time.",
    )

    @property
    def critic_widths(self) -> list[int]:
        """Widths of the hidden layers of an own critic."""
        return self.critic_hidden or self.hidden
