"""A user's own policy around a plain torch module, as docs/policies.md shows it."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from rollbus_policies.base import PolicyConfig

needs = ("torch",)


class Config(PolicyConfig):
    """Settings of the policy."""

    offers: ClassVar[frozenset[str]] = frozenset({"log_prob", "entropy", "value", "cloning_loss"})

    name: str = "own_policy"
    width: int = Field(8, ge=1, description="Width of the hidden layer.")


def make(config: Config, spec: Any, *, critic: bool, frame_stack: int = 1) -> Any:
    """A policy whose features are those of a module of one's own."""
    import torch

    from rollbus_policies.wrap import num_inputs, wrap

    size = num_inputs(spec, frame_stack)
    body = torch.nn.Sequential(torch.nn.Linear(size, config.width), torch.nn.ReLU())
    return wrap(body, config.width, spec, critic=critic, frame_stack=frame_stack)
