"""How the arithmetic of an update is run. It changes rounding and memory, not what is computed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch


@dataclass(frozen=True)
class Execution:
    """``bf16``: hidden layers compute in bfloat16. ``micro_batch``: samples per backward pass, 0: all."""

    device: str = "cpu"
    bf16: bool = False
    micro_batch: int = 0

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context of every forward pass."""
        if not self.bf16:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16)

    def parts(self, batch: Batch) -> list[Batch]:
        """``batch`` [B, ...] in parts whose sizes differ by one at most."""
        num = len(next(iter(batch.values())))
        if not self.micro_batch or num <= self.micro_batch:
            return [batch]
        num_parts = -(-num // self.micro_batch)
        cuts = {name: column.tensor_split(num_parts) for name, column in batch.items()}
        return [{name: cut[i] for name, cut in cuts.items()} for i in range(num_parts)]
