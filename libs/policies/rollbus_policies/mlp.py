"""Multilayer perceptron over vectors; the observation group "policy" concatenated in key order."""

from __future__ import annotations

from typing import Any

from rollbus_policies._config import ActorCriticConfig
from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(ActorCriticConfig):
    """Settings of the mlp policy."""

    name: str = "mlp"


def make(config: Config, spec: EnvSpec, *, critic: bool, frame_stack: int = 1) -> Any:
    """The policy module for environment ``spec``, with or without its value function."""
    from rollbus_policies._families import MlpPolicy

    return MlpPolicy(config, spec, critic=critic, frame_stack=frame_stack)
