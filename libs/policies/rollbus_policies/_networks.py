"""Networks: multilayer perceptron, initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollbus_policies.trunk import Trunk

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": functional.gelu,
}
HIDDEN_GAIN, OUTPUT_GAIN, VALUE_GAIN = math.sqrt(2.0), 0.01, 1.0


def initialise(layer: nn.Linear | nn.Conv2d, init: str, gain: float) -> None:
    """Orthogonal weights with ``gain`` and zero bias, or torch's own."""
    if init == "orthogonal":
        nn.init.orthogonal_(layer.weight, gain)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)


def linear(num_in: int, num_out: int, init: str, gain: float) -> nn.Linear:
    """An initialised layer."""
    layer = nn.Linear(num_in, num_out)
    initialise(layer, init, gain)
    return layer


def apply(layer: nn.Module, x: Tensor) -> Tensor:
    """``layer``, an `nn.Linear`, without the cost of a module call and of attribute look-ups.

    What was put in the place of one, with adapters around it, is called.
    """
    parameters = layer._parameters
    weight = parameters.get("weight")
    if weight is None:
        return layer(x)  # type: ignore[no-any-return]
    return functional.linear(x, weight, parameters["bias"])


def exact(layer: nn.Module, x: Tensor) -> Tensor:
    """`apply` in float32, also where autocast has hidden layers compute in less: for what is an output."""
    if not torch.is_autocast_enabled(x.device.type):
        return apply(layer, x)
    with torch.autocast(x.device.type, enabled=False):
        return apply(layer, x.float())


class Mlp(nn.Module):
    """Hidden layers, each followed by the activation: [..., size_in] -> [..., size]."""

    def __init__(self, size_in: int, hidden: Sequence[int], activation: str, init: str) -> None:
        super().__init__()
        sizes = [size_in, *hidden]
        self.layers = nn.ModuleList(linear(a, b, init, HIDDEN_GAIN) for a, b in zip(sizes, sizes[1:]))
        self.size = sizes[-1]
        self._activation, self._activation_name = ACTIVATIONS[activation], activation

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self._activation(apply(layer, x))
        return x

    def describe(self, trunk: Trunk, x: str) -> str:
        """The same as operations of ``trunk`` on value ``x``."""
        for layer in self.layers:
            x = trunk.add(self._activation_name, trunk.add("linear", x, layer.weight, layer.bias))
        return x
