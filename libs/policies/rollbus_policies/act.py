"""Action chunking transformer (Zhao et al., 2304.13705): one pass of an expert gives C actions.

Cloned by the L1 distance of the mean, with ``latent`` also by a variational encoder whose latent is 0 when
acting (weight ``kl_weight``). Where it differs from the paper: one encoder with joint attention for images,
instructions and proprioception, no pretrained backbone; and the mean is that of the ``head`` of other
policies, so that it can be improved by reinforcement learning. Ensembling: ``actor.temporal_ensemble``.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rollbus_policies._config import ActorCriticConfig, AttentionFields
from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(AttentionFields, ActorCriticConfig):
    """Settings of the act policy."""

    name: str = "act"
    chunk: int = Field(4, ge=1, description="Actions of one decision.")
    log_std_init: float = Field(-1.0, description="Initial log standard deviation of continuous actions.")
    latent: int = Field(0, ge=0, description="Width of the latent of the variational encoder; 0: none.")
    kl_weight: float = Field(10.0, ge=0, description="Weight of the latent's divergence in the cloning loss.")


def make(config: Config, spec: EnvSpec, *, critic: bool, frame_stack: int = 1) -> Any:
    """The policy module for environment ``spec``, with or without its value function."""
    from rollbus_policies._act_family import ActPolicy

    return ActPolicy(config, spec, critic=critic, frame_stack=frame_stack)
