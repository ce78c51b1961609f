"""Causal attention over the last K observations (``env.frame_stack``), for tasks that need a memory.

The features of a decision are those of the newest observation's position. Nothing is kept between
decisions: actors, hub and learner carry frames anyway. A critic of its own reads the K observations side by
side.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from rollbus_core.config.models import MAX_WIDTH
from rollbus_policies._config import ActorCriticConfig, check_width
from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(ActorCriticConfig):
    """Settings of the transformer policy."""

    name: str = "transformer"
    width: int = Field(64, ge=2, le=MAX_WIDTH, description="Width of a position.")
    layers: int = Field(2, ge=1, description="Attention blocks.")
    num_heads: int = Field(4, ge=1, description="Attention heads; they share the width.")

    @model_validator(mode="after")
    def _divides(self) -> Config:
        check_width(self.width, self.num_heads)
        return self


def make(config: Config, spec: EnvSpec, *, critic: bool, frame_stack: int = 1) -> Any:
    """The policy module for environment ``spec``, with or without its value function."""
    from rollbus_policies._transformer_family import TransformerPolicy

    return TransformerPolicy(config, spec, critic=critic, frame_stack=frame_stack)
