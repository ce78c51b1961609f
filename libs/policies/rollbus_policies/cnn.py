"""Convolutions over images (Mnih et al. 2015; the ResNet of IMPALA, Espeholt et al., 1802.01561); other
observations join behind them.

A shared critic, the default, is a layer on the policy's features; an own one has its own convolutions.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rollbus_core.config.models import Widths
from rollbus_policies._config import Activation, ActorCriticConfig
from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(ActorCriticConfig):
    """Settings of the cnn policy."""

    name: str = "cnn"
    architecture: Literal["auto", "nature", "small", "impala"] = Field(
        "auto",
        description="Convolutions; impala is a ResNet of 15 for images from 8x8 on; auto: nature for images "
        "from 36x36 on, small below.",
    )
    channel_factor: int = Field(1, ge=1, le=16, description="Multiplies the channels of all convolutions.")
    feature_size: int = Field(
        0,
        ge=0,
        description="Width behind the convolutions; 0: 512 for nature, 256 for impala, 128 for small.",
    )
    hidden: Widths = Field([], description="Widths of further layers.")
    activation: Activation = Field("relu", description="Activation of the further layers.")
    critic: Literal["own", "shared"] = Field(
        "shared", description="Whether the value function has convolutions of its own."
    )


def make(config: Config, spec: EnvSpec, *, critic: bool, frame_stack: int = 1) -> Any:
    """The policy module for environment ``spec``, with or without its value function."""
    from rollbus_policies._families import CnnPolicy

    return CnnPolicy(config, spec, critic=critic, frame_stack=frame_stack)
