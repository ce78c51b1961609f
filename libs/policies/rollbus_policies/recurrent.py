"""Perceptron and GRU (Cho et al. 2014) or LSTM (Hochreiter and Schmidhuber 1997; with forget gates).

The state, of an LSTM hidden state and cells side by side, travels as carry between decisions. An own critic
reads observations and the detached hidden state, so that its gradient does not reach the memory; a shared
one is a layer on the hidden state, with gradient.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from rollbus_core.config.models import Widths
from rollbus_policies._config import ActorCriticConfig
from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(ActorCriticConfig):
    """Settings of the recurrent policy."""

    offers: ClassVar[frozenset[str]] = ActorCriticConfig.offers | {"recurrent"}

    name: str = "recurrent"
    hidden: Widths = Field([64], description="Widths of the layers before the memory.")
    cell: Literal["gru", "lstm"] = Field(
        "gru", description="Kind of memory; the state of an lstm is twice as large as its width."
    )
    state_size: int = Field(64, ge=1, description="Width of the memory.")


def make(config: Config, spec: EnvSpec, *, critic: bool, frame_stack: int = 1) -> Any:
    """The policy module for environment ``spec``, with or without its value function."""
    from rollbus_policies._families import RecurrentPolicy

    return RecurrentPolicy(config, spec, critic=critic, frame_stack=frame_stack)
