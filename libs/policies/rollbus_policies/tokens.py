"""A small causal transformer (Vaswani et al., 1706.03762) that completes prompts of token ids.

One decision is one completion: tokens are drawn one after the other, with keys and values of the earlier
ones kept, until the action's end token. The observation is one key with layout "tokens", padded with
token 0; the action is one with layout "tokens".
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from rollbus_core.config.models import MAX_WIDTH
from rollbus_policies.base import PolicyConfig
from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(PolicyConfig):
    """Settings of the token policy."""

    offers: ClassVar[frozenset[str]] = frozenset(
        {"log_prob", "entropy", "value", "token_log_prob", "cloning_loss"}
    )

    name: str = "tokens"
    width: int = Field(64, ge=1, le=MAX_WIDTH, description="Width of the residual stream.")
    depth: int = Field(2, ge=1, description="Transformer layers.")
    heads: int = Field(4, ge=1, description="Attention heads; they divide width.")

    @model_validator(mode="after")
    def _divisible(self) -> Config:
        if self.width % self.heads:
            raise ValueError(f"policy.width {self.width} cannot be divided over policy.heads {self.heads}")
        return self


def make(config: Config, spec: EnvSpec, *, critic: bool, frame_stack: int = 1) -> Any:
    """The policy module for environment ``spec``, with or without its value function."""
    from rollbus_policies._tokens import TokenPolicy

    return TokenPolicy(config, spec, critic=critic, frame_stack=frame_stack)
