"""Networks: multilayer perceptron, convolutional encoder, initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollbus_policies.trunk import Trunk
from rollbus_wire.errors import SpecError

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


#: (channels, kernel, stride, padding) per layer, smallest side, width of the features.
CONVOLUTIONS: dict[str, tuple[list[tuple[int, int, int, int]], int, int]] = {
    "nature": ([(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)], 36, 512),
    "small": ([(16, 3, 1, 1), (32, 3, 2, 1)], 3, 128),
}


class Convolutions(nn.Module):
    """Mnih et al. (2015), "nature", or two layers for small images; [L, C, H, W] -> [L, size]."""

    def __init__(self, kind: str, channels: int, height: int, width: int, size: int, init: str) -> None:
        super().__init__()
        if kind == "auto":
            kind = "nature" if min(height, width) >= CONVOLUTIONS["nature"][1] else "small"
        shapes, smallest, default_size = CONVOLUTIONS[kind]
        if min(height, width) < smallest:
            raise SpecError(
                f"images of {height}x{width} are too small for {kind!r} convolutions, which need "
                f"{smallest}x{smallest}; set policy.architecture: small"
            )
        self.layers = nn.ModuleList()
        for out, kernel, stride, padding in shapes:
            layer = nn.Conv2d(channels, out, kernel, stride, padding)
            initialise(layer, init, HIDDEN_GAIN)
            self.layers.append(layer)
            channels = out
            height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
        self.size = size or default_size
        self.output = linear(channels * height * width, self.size, init, HIDDEN_GAIN)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return torch.relu(self.output(x.flatten(1)))

    def describe(self, trunk: Trunk, x: str) -> str:
        """The same as operations of ``trunk`` on value ``x``."""
        for layer in self.layers:
            assert isinstance(layer, nn.Conv2d)
            stride, padding = layer.stride[0], int(layer.padding[0])
            x = trunk.add("conv", x, layer.weight, layer.bias, stride=stride, padding=padding)
            x = trunk.add("relu", x)
        x = trunk.add("reshape", x, shape=(self.output.in_features,))
        return trunk.add("relu", trunk.add("linear", x, self.output.weight, self.output.bias))
