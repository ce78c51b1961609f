"""Acts are checked once, at the hub. What breaks the environment's spec is refused as a whole."""

from __future__ import annotations

import numpy as np

from rollbus_wire.actions import ActionBounds
from rollbus_wire.errors import SpecError
from rollbus_wire.limits import MAX_ACTION_CHUNK, MAX_CARRY_BYTES
from rollbus_wire.messages import Act
from rollbus_wire.spec import ActionSpec

#: Rows that a text names.
_NAMED_ROWS = 64


class ActCheck:
    """Checks the acts on one slice of N rows; every refusal is a `SpecError` that names the slice."""

    def __init__(self, name: str, num_rows: int, spec: ActionSpec) -> None:
        self._name, self._num_rows = name, num_rows
        self._bounds = ActionBounds(spec)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """``rows`` as int32 [R], distinct places in the slice."""
        good = rows.ndim == 1 and rows.dtype.kind in "iu" and 0 < len(rows) <= self._num_rows
        if not good or rows.min() < 0 or rows.max() >= self._num_rows or len(np.unique(rows)) < len(rows):
            raise SpecError(
                f"act on slice {self._name}: rows {_said(rows)} must be distinct places in "
                f"0..{self._num_rows - 1}"
            )
        return rows.astype(np.int32, copy=False)

    def action(self, act: Act, places: np.ndarray) -> np.ndarray:
        """[R, ...], or [R, C, ...] of an action chunk, in the spec's dtype and within its bounds."""
        action, lead = act.action, act.action.shape[: 1 + act.chunked]
        try:
            if len(lead) != 1 + act.chunked or lead[0] != len(places) or 0 in lead:
                raise SpecError(f"action has shape {list(action.shape)} for {len(places)} rows")
            if not act.chunked:
                return self._bounds(action)
            if lead[1] > MAX_ACTION_CHUNK:
                raise SpecError(f"at most {MAX_ACTION_CHUNK}")
            flat = action.reshape(lead[0] * lead[1], *action.shape[2:])
            return self._bounds(flat).reshape(action.shape)
        except SpecError as error:
            per_row = f", {lead[1]} actions per row" if len(lead) == 2 else ""
            raise SpecError(f"act on slice {self._name}, rows {_said(places)}{per_row}: {error}") from None

    def carry(self, carry: np.ndarray, num: int, known_bytes: int | None) -> int:
        """Bytes per row of ``carry``, uint8 [R, B]; B may not change once it is known."""
        size = carry.shape[1] if carry.ndim == 2 else -1
        expected = size if known_bytes is None else known_bytes
        right = 0 <= size == expected <= MAX_CARRY_BYTES and carry.dtype == np.uint8
        if not right or len(carry) != num:
            raise SpecError(
                f"act on slice {self._name}: carry is {carry.dtype} {list(carry.shape)}, not uint8 "
                f"{[num, expected]} (at most {MAX_CARRY_BYTES} per row)"
            )
        return size


def _said(rows: np.ndarray) -> str:
    """The first of ``rows`` for a text."""
    more = f" and {rows.size - _NAMED_ROWS} more" if rows.size > _NAMED_ROWS else ""
    return f"{rows.ravel()[:_NAMED_ROWS].tolist()}{more}"
