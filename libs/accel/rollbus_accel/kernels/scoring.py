"""What the ops that score tokens share: how their arguments are checked and filled in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rollbus_accel.kernels.checks import floats, masks, same_device, shape


def check_tokens(op: str, matrices: Mapping[str, Tensor], ids: Tensor, mask: Tensor | None) -> int:
    """Rows of the first of ``matrices``; ValueError unless everything fits it."""
    floats(op, matrices)
    for name, matrix in matrices.items():
        if matrix.ndim != 2:
            raise ValueError(f"{op}: {name} has the shape {list(matrix.shape)}; give 2 dimensions")
    (name, first), *_ = matrices.items()
    if ids.dtype != torch.int64:
        raise ValueError(f"{op}: ids are {ids.dtype}; give int64")
    shape(op, "ids", ids, (len(first),))
    if mask is not None:
        masks(op, {"mask": mask})
        shape(op, "mask", mask, (len(first),))
    others = {} if mask is None else {"mask": mask}
    same_device(op, {**matrices, "ids": ids, **others})
    return len(first)


def per_row(
    op: str, num_rows: int, device: torch.device, temperature: float | Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(temperature float32 [N], mask bool [N]); ValueError for a temperature that does not fit."""
    if isinstance(temperature, Tensor):
        shape(op, "temperature", temperature, (num_rows,))
        temperature = temperature.detach().to(device, torch.float32)
    elif temperature > 0:
        temperature = torch.full((num_rows,), float(temperature), device=device)
    else:
        raise ValueError(f"{op}: the temperature is {temperature}; give a number above 0")
    if mask is None:
        mask = torch.ones(num_rows, dtype=torch.bool, device=device)
    return temperature, mask
