"""The policies that the suite acts and learns with: a multilayer perceptron and a convolutional one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rollbus_policies.base import make
from rollbus_wire import lookup
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

ACTION = ActionSpec("continuous", (6,), low=[-1.0] * 6, high=[1.0] * 6)
SPECS = {
    "mlp": EnvSpec("vectors", {"obs": ArraySpec("float32", (17,))}, ACTION),
    "cnn": EnvSpec(
        "pixels",
        {"obs": ArraySpec("uint8", (84, 84, 3), low=0, high=255, layout="HWC", channels="RGB")},
        ACTION,
    ),
}


def policy(name: str) -> Any:
    """The policy with its value function and default settings, always the same weights."""
    torch.manual_seed(0)
    config = lookup.find("rollbus_policies", name).Config()
    return make(config, SPECS[name], critic=True)


def observations(name: str, rows: int) -> np.ndarray:
    """Random observations [rows, ...]."""
    array = SPECS[name].observation["obs"]
    generator = np.random.default_rng(0)
    if array.dtype == "uint8":
        return generator.integers(0, 256, (rows, *array.shape), np.uint8)
    return generator.normal(size=(rows, *array.shape)).astype(np.float32)
