"""Refuse actions that an environment must not execute. Nothing is ever clipped."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

from .errors import SpecError
from .spec import ActionSpec, EnvSpec


class ActionBounds:
    """Checks actions ``[R, ...]`` against an `ActionSpec`; built once, called at every step."""

    def __init__(self, spec: ActionSpec) -> None:
        self.spec = spec
        self.dtype = np.dtype(spec.dtype)
        self._continuous = spec.kind == "continuous"
        if self._continuous:
            # In float32, as actions travel: a bound such as 0.1 must admit its own rounding.
            self._low = np.array(spec.low, np.float32).reshape(spec.shape)
            self._high = np.array(spec.high, np.float32).reshape(spec.shape)
            self._bounded = bool(np.isfinite(self._low).all() and np.isfinite(self._high).all())
        else:
            self._num = np.array(spec.num, np.uint64).reshape(spec.shape)

    def __call__(self, actions: Any) -> np.ndarray:
        """``actions`` in the spec's dtype, or `SpecError` with the row, the value and the bound."""
        array = np.asarray(actions)
        if array.ndim == 0 or array.shape[1:] != self.spec.shape:
            raise SpecError(
                "actions have shape %s; %s needs [rows%s]"
                % (
                    list(array.shape),
                    self.spec.kind,
                    "".join(", %d" % n for n in self.spec.shape),
                )
            )
        if array.dtype.kind not in ("f" if self._continuous else "iu"):
            raise SpecError("actions are %s; %s needs %s" % (array.dtype, self.spec.kind, self.spec.dtype))
        if array.dtype != self.dtype:
            array = array.astype(self.dtype)
        if self._continuous:
            inside = (array >= self._low) & (array <= self._high)
            if not self._bounded:
                inside &= np.isfinite(array)
        else:
            # A negative number is a huge unsigned one.
            inside = array.view(np.uint64) < self._num
        if np.count_nonzero(inside) != inside.size:
            self._refuse(array, inside)
        return array

    def _refuse(self, array: np.ndarray, inside: np.ndarray) -> None:
        place = tuple(int(n) for n in np.argwhere(~inside)[0])
        element = place[1:]
        names = self.spec.names
        flat = int(np.ravel_multi_index(element, self.spec.shape)) if element else 0
        label = "element %s" % (list(element),) if element else "the action"
        if names:
            label += " (%s)" % names[flat]
        if self._continuous:
            bound = "[%g, %g]" % (self.spec.low[flat], self.spec.high[flat])
        else:
            bound = "0 to %d" % (self.spec.num[flat] - 1)
        raise SpecError(
            "row %d of the request: %s is %s, allowed is %s; actions are refused, never clipped: "
            "the policy must keep to the spec's bounds" % (place[0], label, array[place], bound)
        )


def validate_actions(spec: Union[EnvSpec, ActionSpec], actions: Any) -> np.ndarray:
    """Check ``actions`` [R, ...] once; loops keep an `ActionBounds` instead."""
    return ActionBounds(spec.action if isinstance(spec, EnvSpec) else spec)(actions)
