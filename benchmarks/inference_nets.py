"""The policies of bench_inference: a perceptron of HalfCheetah's size and the Nature CNN; fixed weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

NETS = {
    "mlp": (
        "mlp", {}, ArraySpec("float32", (17,)),
        ActionSpec("continuous", (6,), low=[-1.0] * 6, high=[1.0] * 6),
    ),
    "cnn": (
        "cnn", {}, ArraySpec("uint8", (84, 84, 3), low=0, high=255, layout="HWC", channels="RGB"),
        ActionSpec("discrete", num=[6]),
    ),
}  # fmt: skip


def policy(net: str) -> Any:
    """The policy with its critic."""
    import torch

    from rollbus_policies import base
    from rollbus_wire import lookup

    torch.set_num_threads(1)
    torch.manual_seed(0)
    family, settings, _, _ = NETS[net]
    config = lookup.find("rollbus_policies", family).Config(name=family, **settings)
    return base.make(config, spec(net), critic=True)


def spec(net: str) -> EnvSpec:
    """What the policy sees and does."""
    _, _, observation, action = NETS[net]
    return EnvSpec(net, {"obs": observation}, action)


def rows(net: str, num: int) -> dict[str, np.ndarray]:
    """Random observations [num, ...]."""
    observation = NETS[net][2]
    generator = np.random.default_rng(num)
    if observation.dtype == "uint8":
        return {"obs": generator.integers(0, 256, (num, *observation.shape), dtype=np.uint8)}
    return {"obs": generator.standard_normal((num, *observation.shape)).astype(np.float32)}
