"""Convolutional encoders of images: [L, C, H, W] -> [L, size]."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rollbus_policies._networks import HIDDEN_GAIN, initialise, linear
from rollbus_policies.trunk import Trunk
from rollbus_wire.errors import SpecError

#: Channels of IMPALA's stages and residual blocks of each.
_STAGES, _BLOCKS = (16, 32, 32), 2


class _Conv(nn.Conv2d):
    """A convolution and, with ``activate``, ReLU behind it."""

    def __init__(
        self, num_in: int, num_out: int, kernel: int, stride: int, padding: int, init: str,
        *, gain: float = HIDDEN_GAIN, activate: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_in, num_out, kernel, stride, padding)
        initialise(self, init, gain)
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return torch.relu(x) if self.activate else x

    def describe(self, trunk: Trunk, x: str) -> str:
        """The same as operations of ``trunk`` on value ``x``."""
        stride, padding = self.stride[0], int(self.padding[0])
        x = trunk.add("conv", x, self.weight, self.bias, stride=stride, padding=padding)
        return trunk.add("relu", x) if self.activate else x


class _Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3; orthogonal weights start small: a sum of six stays moderate."""

    def __init__(self, channels: int, init: str) -> None:
        super().__init__()
        self.first = _Conv(channels, channels, 3, 1, 1, init)
        gain = HIDDEN_GAIN / math.sqrt(_BLOCKS * len(_STAGES))
        self.second = _Conv(channels, channels, 3, 1, 1, init, gain=gain, activate=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(torch.relu(x)))

    def describe(self, trunk: Trunk, x: str) -> str:
        """The same as operations of ``trunk`` on value ``x``."""
        return trunk.add(
            "add", x, self.second.describe(trunk, self.first.describe(trunk, trunk.add("relu", x)))
        )


class _Stage(nn.Module):
    """Convolution, pooling to half the size and residual blocks; the last stage ends in ReLU."""

    def __init__(self, num_in: int, num_out: int, init: str, *, last: bool) -> None:
        super().__init__()
        self.conv = _Conv(num_in, num_out, 3, 1, 1, init, gain=1.0, activate=False)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.ModuleList(_Residual(num_out, init) for _ in range(_BLOCKS))
        self._last = last

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.conv(x))
        for block in self.blocks:
            x = block(x)
        return torch.relu(x) if self._last else x

    def describe(self, trunk: Trunk, x: str) -> str:
        """The same as operations of ``trunk`` on value ``x``."""
        x = trunk.add("max_pool", self.conv.describe(trunk, x), size=3, stride=2, padding=1)
        for block in self.blocks:
            x = block.describe(trunk, x)  # type: ignore[operator]
        return trunk.add("relu", x) if self._last else x


def _residual(channels: int, factor: int, init: str) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for number, width in enumerate(_STAGES, 1):
        layers.append(_Stage(channels, width * factor, init, last=number == len(_STAGES)))
        channels = width * factor
    return layers


def _plain(*shapes: tuple[int, int, int, int]) -> Callable[[int, int, str], list[nn.Module]]:
    """Layers of (channels, kernel, stride, padding)."""

    def make(channels: int, factor: int, init: str) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for width, kernel, stride, padding in shapes:
            layers.append(_Conv(channels, width * factor, kernel, stride, padding, init))
            channels = width * factor
        return layers

    return make


@dataclass(frozen=True)
class _Architecture:
    #: (channels of the images, factor of all others, initial weights) -> layers.
    make: Callable[[int, int, str], list[nn.Module]]
    #: Smallest side of an image, and width of the features.
    smallest: int
    size: int


ARCHITECTURES = {
    "nature": _Architecture(_plain((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)), 36, 512),
    "small": _Architecture(_plain((16, 3, 1, 1), (32, 3, 2, 1)), 3, 128),
    "impala": _Architecture(_residual, 2 ** len(_STAGES), 256),
}


class Convolutions(nn.Module):
    """ "nature" (Mnih et al. 2015), "impala" (the ResNet of Espeholt et al. 2018) or "small"; a linear layer
    and ReLU behind. Pooling is padded by one on all sides."""

    def __init__(
        self, kind: str, channels: int, height: int, width: int, size: int, init: str, factor: int = 1
    ) -> None:
        super().__init__()
        if kind == "auto":
            kind = "nature" if min(height, width) >= ARCHITECTURES["nature"].smallest else "small"
        chosen = ARCHITECTURES[kind]
        if min(height, width) < chosen.smallest:
            fits = min(height, width) >= ARCHITECTURES["small"].smallest
            raise SpecError(
                f"images of {height}x{width} are too small for {kind!r} convolutions, which need "
                f"{chosen.smallest}x{chosen.smallest}; "
                f"set {'policy.architecture: small' if fits else 'policy.name: mlp'}"
            )
        self.layers = nn.ModuleList(chosen.make(channels, factor, init))
        with torch.no_grad():
            num = self._features(torch.zeros(1, channels, height, width)).shape[1]
        self.size = size or chosen.size
        self.output = linear(num, self.size, init, HIDDEN_GAIN)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.output(self._features(x)))

    def _features(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.flatten(1)

    def describe(self, trunk: Trunk, x: str) -> str:
        """The same as operations of ``trunk`` on value ``x``."""
        for layer in self.layers:
            x = layer.describe(trunk, x)  # type: ignore[operator]
        x = trunk.add("reshape", x, shape=(self.output.in_features,))
        return trunk.add("relu", trunk.add("linear", x, self.output.weight, self.output.bias))
