"""What the ``cases.py`` of an op holds, for the contract tests and for the suite that runs on a GPU.

Module attributes: ``CASES`` (list of `Case`), ``TOLERANCE`` (dtype to relative and absolute error),
``IDENTITIES`` (functions that raise AssertionError unless something holds that does not depend on the
reference; they call the public function under the flavour of the moment) and ``REFUSED`` (`Case`s whose
arguments the op must refuse with ValueError).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Arguments of an op's public function ``function``, made on the CPU and always the same.

    ``make(dtype)`` gives them with their floating point tensors in ``dtype``. ``gradients`` names the
    arguments whose gradients are compared. ``poison`` puts NaN, in place, wherever the answer must not
    look; ``dtypes`` are those worth a test.
    """

    name: str
    make: Callable[[torch.dtype], Arguments]
    gradients: tuple[str, ...] = ()
    poison: Callable[[Arguments], None] | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    function: str = ""


#: Of cases whose size is the point, which an interpreter takes its time over.
SINGLE = (torch.float32,)


def generator(seed: int) -> torch.Generator:
    """A generator of its own for every case."""
    return torch.Generator().manual_seed(seed)
