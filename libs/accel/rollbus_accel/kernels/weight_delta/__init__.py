"""Which elements of a tensor changed, as indices and values: weight updates for slow links."""

from __future__ import annotations

import torch
from torch import Tensor

from rollbus_accel.kernels.base import Op, choose, implementation
from rollbus_accel.kernels.checks import same_device, same_shape
from rollbus_accel.kernels.weight_delta.packing import pack, unpack

__all__ = ["apply_delta", "pack", "unpack", "weight_delta"]

_OP = "weight_delta"
#: Integers of an element's size: bits are compared and moved, so NaN and -0.0 are values like others.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MAX_ELEMENTS = 2**31 - 1


def _fake(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    changed = torch.library.get_ctx().new_dynamic_size()
    return new.new_empty(changed, dtype=torch.int32), new.new_empty(changed)


_op = Op(_OP, schema="(Tensor old, Tensor new) -> (Tensor, Tensor)", fake=_fake)


def weight_delta(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """(indices int32 [K], values [K]) of the elements whose bits differ, in order. No gradients.

    ``old`` and ``new`` have one shape and dtype; an index counts in the flattened, contiguous tensor. On an
    accelerator the call waits for the device, which alone knows K.

    ValueError for tensors that do not match or have more than 2^31 - 1 elements: split those.
    """
    _check(old, "old", new, "new")
    same_shape(_OP, {"old": old, "new": new})
    bits = BITS[new.element_size()]
    indices, values = _op(_flat(old).view(bits), _flat(new).view(bits))
    return indices, values.view(new.dtype)


def apply_delta(target: Tensor, indices: Tensor, values: Tensor) -> None:
    """Write ``values`` [K] at ``indices`` int32 [K] of the contiguous ``target``, in place.

    The inverse of `weight_delta`: applied to what was ``old``, it makes ``new`` to the bit. Indices are
    distinct and exist: `unpack` checks what came over a link.

    ValueError for tensors that do not match, and for a target that is not contiguous.
    """
    _check(target, "target", values, "values")
    same_shape(_OP, {"indices": indices, "values": values}, ndim=1)
    same_device(_OP, {"target": target, "values": values})
    if indices.dtype != torch.int32:
        raise ValueError(f"{_OP}: indices are {indices.dtype}; give int32")
    if not target.is_contiguous():
        raise ValueError(f"{_OP}: target is not contiguous; apply to a contiguous copy and copy it back")
    bits = BITS[target.element_size()]
    run = implementation(_OP, choose(_OP, target.device.type), "apply_delta")
    with torch.no_grad():
        run(target.detach().view(-1).view(bits), indices, values.view(bits))


def _check(first: Tensor, first_name: str, second: Tensor, second_name: str) -> None:
    if first.dtype != second.dtype:
        raise ValueError(
            f"{_OP}: {first_name} is {first.dtype} and {second_name} {second.dtype}; give one dtype"
        )
    if first.dtype.is_complex or first.element_size() not in BITS:
        raise ValueError(f"{_OP}: {first.dtype} is not supported; view it as integers")
    if first.numel() > MAX_ELEMENTS:
        raise ValueError(f"{_OP}: {first.numel()} elements are more than {MAX_ELEMENTS}; split the tensor")


def _flat(x: Tensor) -> Tensor:
    return x.detach().contiguous().view(-1)
