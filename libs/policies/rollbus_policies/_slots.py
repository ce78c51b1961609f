"""Places for rows that come and go. Those in use are the first ones: who leaves is replaced by the last.

Symbols: S places, n of them in use, T positions of a sequence, H heads, D width of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollbus_policies._transformer import Keep


class Slots:
    """Numpy columns [S, ...] of which the first `num` rows are in use."""

    def __init__(self, **columns: tuple[Any, tuple[int, ...]]) -> None:
        """``columns``: name -> (dtype, shape of one row)."""
        self._columns = {name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in columns.items()}
        self.num = self.size = 0

    def __getitem__(self, name: str) -> np.ndarray:
        """The rows in use of a column, a view."""
        return self._columns[name][: self.num]

    def take(self, num: int) -> slice:
        """``num`` more rows, all zero; columns grow to twice their size where there is no room."""
        new = slice(self.num, self.num + num)
        if new.stop > self.size:
            self.size = max(new.stop, 2 * self.size)
            for name, column in self._columns.items():
                self._columns[name] = np.zeros((self.size, *column.shape[1:]), column.dtype)
                self._columns[name][: self.num] = column[: self.num]
        for column in self._columns.values():
            column[new] = 0
        self.num = new.stop
        return new

    def leave(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``rows`` are free; (to, from): which rows took their places."""
        stay = np.ones(self.num, np.bool_)
        stay[rows] = False
        self.num -= len(rows)
        to, source = np.flatnonzero(~stay[: self.num]), self.num + np.flatnonzero(stay[self.num :])
        if to.size:
            for column in self._columns.values():
                column[to] = column[source]
        return to, source


class KeptKeys:
    """Keys and values of all layers [layers, 2, S, H, T, D], written and seen in place."""

    def __init__(self, like: Tensor, layers: int, heads: int, longest: int, width: int) -> None:
        """``like``: a tensor of the dtype and device."""
        self.kept = like.new_empty((layers, 2, 0, heads, longest, width // heads))

    def grow(self, num: int) -> None:
        """Have room for ``num`` rows."""
        have = self.kept.shape[2]
        if num > have:
            grown = self.kept.new_empty((*self.kept.shape[:2], num, *self.kept.shape[3:]))
            grown[:, :, :have] = self.kept
            self.kept = grown

    def clear(self, rows: slice) -> None:
        """Nothing of who was there before is left: what is not seen must still be finite."""
        self.kept[:, :, rows] = 0.0

    def move(self, to: np.ndarray, source: np.ndarray) -> None:
        """Rows ``source`` to the places ``to``."""
        self.kept[:, :, to] = self.kept[:, :, source]

    def prompts(self, rows: slice, num: int) -> list[Keep]:
        """Per layer: write the first ``num`` positions of ``rows``, which see them."""
        return [_in_place(part, part) for part in self.kept[:, :, rows, :, :num]]

    def tokens(self, position: np.ndarray) -> list[Keep]:
        """Per layer: write one ``position`` [n] of each of the first rows, which see what is before it."""
        num, first, last = len(position), int(position.min()), int(position.max())
        seen = self.kept[:, :, :num, :, : last + 1]
        if first == last:
            return [_in_place(part[:, :, :, last:], part) for part in seen]
        at = torch.from_numpy(np.stack([np.arange(num), position])).to(self.kept.device)
        return [_scattered(layer, at, part) for layer, part in zip(self.kept, seen, strict=True)]


def _in_place(target: Tensor, seen: Tensor) -> Keep:
    def keep(both: Tensor) -> Tensor:
        target.copy_(both)
        return seen

    return keep


def _scattered(layer: Tensor, at: Tensor, seen: Tensor) -> Keep:
    def keep(both: Tensor) -> Tensor:
        layer[:, at[0], :, at[1]] = both[..., 0, :].transpose(0, 1)
        return seen

    return keep
