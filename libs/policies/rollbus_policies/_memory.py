"""Recurrent layers whose whole state is one vector per row, so that it can travel as carry.

Their weights are those of torch's own layer, by name too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rollbus_policies.trunk import Trunk


class Gru(nn.GRU):
    """The state [n, size] is what it gives out."""

    def __init__(self, size_in: int, size: int, init: str) -> None:
        super().__init__(size_in, size)
        self.state_size = size
        _initialise(self, init)

    def advance(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(outputs [T, n, size], state after them) of ``x`` [T, n, size_in] from ``state`` [n, size]."""
        out, after = self(x, state.unsqueeze(0))
        return out, after.squeeze(0)

    def describe(self, trunk: Trunk, x: str, state: str) -> tuple[str, str]:
        """(output, state) of one decision as operations of ``trunk``."""
        after = trunk.add("gru", x, state, *self.all_weights[0])
        return after, after


class Lstm(nn.LSTM):
    """The state [n, 2 size] is what it gives out and, behind it, its cells.

    On a CPU oneDNN computes it by another kernel where there is a gradient: acting and learning agree
    within rounding (3e-7), not to the last bit.
    """

    def __init__(self, size_in: int, size: int, init: str) -> None:
        super().__init__(size_in, size)
        self.state_size = 2 * size
        _initialise(self, init)

    def advance(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(outputs [T, n, size], state after them) of ``x`` [T, n, size_in] from ``state`` [n, 2 size]."""
        hidden, cells = (half.contiguous().unsqueeze(0) for half in state.chunk(2, -1))
        out, after = self(x, (hidden, cells))
        return out, torch.cat(after, -1).squeeze(0)

    def describe(self, trunk: Trunk, x: str, state: str) -> tuple[str, str]:
        """(output, state) of one decision as operations of ``trunk``."""
        after = trunk.add("lstm", x, state, *self.all_weights[0])
        return trunk.add("columns", after, end=self.hidden_size), after


CELLS: dict[str, type[Gru | Lstm]] = {"gru": Gru, "lstm": Lstm}


def _initialise(layer: nn.RNNBase, init: str) -> None:
    """Orthogonal weights and zero biases, or torch's own."""
    if init == "orthogonal":
        for name, parameter in layer.named_parameters():
            (nn.init.orthogonal_ if name.startswith("weight") else nn.init.zeros_)(parameter)
