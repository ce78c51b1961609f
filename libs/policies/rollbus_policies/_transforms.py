"""Observations of a spec -> network inputs, computed from what the spec states.

``obs`` maps keys to tensors [..., *shape], with frame stacks [..., K, *shape], oldest frame first.
Integer "onehot" and "tokens" are one-hot encoded, uint8 images divided by 255, the rest is float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rollbus_policies._normaliser import Normalisers
from rollbus_policies.trunk import Trunk, TrunkInput
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ArraySpec, EnvSpec

IMAGE_LAYOUTS = ("HWC", "CHW")


def is_image(array: ArraySpec) -> bool:
    """Whether ``array`` is an image with channels."""
    return array.layout in IMAGE_LAYOUTS and len(array.shape) == 3


def is_classes(array: ArraySpec) -> bool:
    """Whether the elements of ``array`` are class numbers."""
    return array.layout in ("onehot", "tokens") and not array.dtype.startswith("float")


def is_vector(array: ArraySpec) -> bool:
    """Whether ``array`` holds numbers that running statistics make sense for."""
    return not is_classes(array) and not (is_image(array) and array.dtype == "uint8")


def group_keys(spec: EnvSpec, group: str) -> list[str]:
    """Sorted keys of ``group``; "policy" defaults to all, another group must exist."""
    if group != "policy" and group not in spec.groups:
        raise SpecError(
            f"{spec.name} has no observation group {group!r}, only "
            f"{', '.join(sorted(spec.groups)) or 'none'}; set policy.critic_group"
        )
    return spec.group(group)


def to_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """A tensor on ``device``; shares memory on the CPU if ``array`` may be written."""
    if not array.flags.writeable:
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device)


def trunk_input(array: ArraySpec, frame_stack: int) -> TrunkInput:
    """``array`` as an input of a trunk."""
    shape = (*([frame_stack] if frame_stack > 1 else []), *array.shape)
    if np.dtype(array.dtype).kind in "fb":
        return TrunkInput(array.dtype, shape)
    low = 0 if array.low is None else int(np.min(array.low))
    high = low + 1 if array.high is None else int(np.max(array.high))
    return TrunkInput(array.dtype, shape, low, high)


class VectorInput:
    """Several keys concatenated to one vector [..., size], in sorted key order."""

    def __init__(self, spec: EnvSpec, keys: Iterable[str], frame_stack: int) -> None:
        self.keys = sorted(keys)
        self._parts = [(key, _Part(key, spec.observation[key], frame_stack)) for key in self.keys]
        self.size = sum(part.size for _, part in self._parts)

    def __call__(self, obs: Mapping[str, Tensor], normalisers: Normalisers | None) -> Tensor:
        parts = [part(obs[key], normalisers) for key, part in self._parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def describe(self, trunk: Trunk, obs: Mapping[str, str], normalisers: Normalisers | None) -> str:
        """The same as operations of ``trunk`` on the values ``obs``."""
        return trunk.concat([part.describe(trunk, obs[key], normalisers) for key, part in self._parts])


class _Part:
    """One key as a vector."""

    def __init__(self, key: str, array: ArraySpec, frame_stack: int) -> None:
        self._key, self._image = key, is_image(array) and array.dtype == "uint8"
        self._event_dims = len(array.shape) + (frame_stack > 1)
        self.size = array.size * frame_stack
        self._low = int(array.low or 0)
        self._num = 0
        if is_classes(array):
            if array.high is None:
                raise SpecError(f"observation {key!r}: layout {array.layout!r} needs high, the largest class")
            self._num = int(array.high) - self._low + 1
            self.size *= self._num

    def __call__(self, x: Tensor, normalisers: Normalisers | None) -> Tensor:
        event_dims = self._event_dims
        if self._num:
            x = functional.one_hot(x.long() - self._low, self._num)
            event_dims += 1
        if x.dtype != torch.float32:
            x = x.float()
        if self._image:
            x = x * (1.0 / 255.0)
        normaliser = None if normalisers is None else normalisers.of(self._key)
        if normaliser is not None:
            x = normaliser(x)
        if event_dims == 1:
            return x
        return x.unsqueeze(-1) if event_dims == 0 else x.flatten(x.ndim - event_dims)

    def describe(self, trunk: Trunk, x: str, normalisers: Normalisers | None) -> str:
        if self._num:
            x = trunk.add("one_hot", x, low=self._low, num=self._num)
        elif trunk.inputs[x].dtype != "float32":
            x = trunk.add("float", x)
        if self._image:
            x = trunk.add("multiply", x, factor=1.0 / 255.0)
        normaliser = None if normalisers is None else normalisers.of(self._key)
        if normaliser is not None:
            x = normaliser.describe(trunk, x)
        if self._event_dims == 1 and not self._num:
            return x
        return trunk.add("reshape", x, shape=(self.size,))


class ImageInput:
    """All image keys of equal height and width as one [L, channels, H, W], frames along channels."""

    def __init__(self, spec: EnvSpec, keys: Iterable[str], frame_stack: int) -> None:
        self.keys, self._stacked = sorted(keys), frame_stack > 1
        arrays = [spec.observation[key] for key in self.keys]
        self._layouts = [a.layout for a in arrays]
        sizes = [a.shape[:2] if a.layout == "HWC" else a.shape[1:] for a in arrays]
        self._bytes = [a.dtype == "uint8" for a in arrays]
        if len(set(sizes)) != 1:
            raise SpecError(f"images {self.keys} have sizes {sizes}; one size is needed")
        self.height, self.width = sizes[0]
        self.channels = frame_stack * sum(a.shape[2 if a.layout == "HWC" else 0] for a in arrays)

    def __call__(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, torch.Size]:
        """([L, channels, H, W], the leading dimensions whose product L is)."""
        images, lead = [], torch.Size()
        for key, layout, scaled in zip(self.keys, self._layouts, self._bytes):
            x = obs[key] if self._stacked else obs[key].unsqueeze(-4)
            lead = x.shape[:-4]
            x = x.reshape(-1, *x.shape[-4:])
            if layout == "HWC":
                x = x.permute(0, 1, 4, 2, 3)
            images.append(x.flatten(1, 2).float() * (1.0 / 255.0 if scaled else 1.0))
        return (images[0] if len(images) == 1 else torch.cat(images, 1)), lead

    def describe(self, trunk: Trunk, obs: Mapping[str, str]) -> str:
        """The same as operations of ``trunk`` on the values ``obs``."""
        images = []
        for key, layout, scaled in zip(self.keys, self._layouts, self._bytes):
            x, shape = obs[key], trunk.inputs[obs[key]].shape
            frames = shape[0] if self._stacked else 1
            if not self._stacked:
                x = trunk.add("reshape", x, shape=(1, *shape))
            if layout == "HWC":
                x = trunk.add("permute", x, axes=(0, 1, 4, 2, 3))
            channels = shape[-1 if layout == "HWC" else -3]
            x = trunk.add("reshape", x, shape=(frames * channels, self.height, self.width))
            x = trunk.add("float", x)
            images.append(trunk.add("multiply", x, factor=1.0 / 255.0) if scaled else x)
        return trunk.concat(images)
