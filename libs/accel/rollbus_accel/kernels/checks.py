"""What ops refuse: wrong shapes, dtypes and devices, named in words."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def same_shape(op: str, tensors: Mapping[str, Tensor], ndim: int | None = None) -> None:
    """ValueError unless all ``tensors`` have one shape, of ``ndim`` dimensions, and one device."""
    (first, lead), *others = tensors.items()
    if ndim is not None and lead.ndim != ndim:
        raise ValueError(f"{op}: {first} has the shape {list(lead.shape)}; give {ndim} dimensions")
    for name, tensor in others:
        if tensor.shape != lead.shape:
            raise ValueError(
                f"{op}: {name} {list(tensor.shape)} and {first} {list(lead.shape)} differ in shape; "
                "nothing is broadcast"
            )
    same_device(op, tensors)


def same_device(op: str, tensors: Mapping[str, Tensor]) -> None:
    """ValueError unless all ``tensors`` are on one device."""
    (first, lead), *others = tensors.items()
    for name, tensor in others:
        if tensor.device != lead.device:
            raise ValueError(f"{op}: {name} is on {tensor.device} and {first} on {lead.device}; move one")


def shape(op: str, name: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    """ValueError unless ``tensor`` has exactly the shape ``wanted``."""
    if tuple(tensor.shape) != wanted:
        raise ValueError(f"{op}: {name} has the shape {list(tensor.shape)}, not {list(wanted)}")


def floats(op: str, tensors: Mapping[str, Tensor]) -> None:
    """ValueError unless all ``tensors`` are of floating point."""
    for name, tensor in tensors.items():
        if not tensor.dtype.is_floating_point:
            raise ValueError(f"{op}: {name} is {tensor.dtype}; give floating point numbers")


def masks(op: str, tensors: Mapping[str, Tensor]) -> None:
    """ValueError unless all ``tensors`` are bool."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.bool:
            raise ValueError(f"{op}: {name} is {tensor.dtype}; a mask is torch.bool")


def seeds(op: str, tensor: Tensor, rows: int) -> None:
    """ValueError unless ``tensor`` holds one 64-bit integer per row."""
    if tensor.dtype not in (torch.int64, torch.uint64):
        raise ValueError(f"{op}: seeds are {tensor.dtype}; give int64 or uint64")
    shape(op, "seeds", tensor, (rows,))
