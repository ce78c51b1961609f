"""Nested state (optimisers, algorithms) as plain tensors and one JSON text, and back. Nothing is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rollbus_wire.errors import CheckpointError

Tensors = dict[str, torch.Tensor]


def flatten(value: Any, tensors: Tensors, name: str = "") -> Any:
    """``value`` as JSON data; its tensors go to ``tensors`` under the path where they stood.

    Maps may have str or int keys. Raises `CheckpointError` for anything but maps, lists, tuples,
    tensors, numpy numbers and plain values.
    """
    if isinstance(value, torch.Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"map": [[key, flatten(item, tensors, f"{name}/{key}")] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [flatten(item, tensors, f"{name}/{i}") for i, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    if hasattr(value, "dtype"):
        tensors[name] = torch.from_numpy(value)
        return {"array": name}
    raise CheckpointError(f"state {name} is a {type(value).__name__}, which a checkpoint cannot hold")


def unflatten(data: Any, tensors: Tensors) -> Any:
    """The inverse of `flatten`."""
    if not isinstance(data, dict):
        return data
    ((kind, inner),) = data.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "array":
        return tensors[inner].numpy()
    if kind == "map":
        return {key: unflatten(item, tensors) for key, item in inner}
    items = [unflatten(item, tensors) for item in inner]
    return items if kind == "list" else tuple(items)


def storable(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """CPU, contiguous, none sharing memory with another: what safetensors writes."""
    result: Tensors = {}
    used: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().to("cpu").contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in used or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        used.add(tensor.untyped_storage().data_ptr())
        result[name] = tensor
    return result
