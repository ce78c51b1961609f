"""Outcomes are checked against the environment's spec before the hub uses them."""

from __future__ import annotations

import math

import numpy as np

from rollbus_core.rotations import Conventions
from rollbus_wire.errors import SpecError, short
from rollbus_wire.messages import Arrays, Outcome

_FLAGS, _FLAG_KINDS = ("reward", "terminated", "truncated"), ("fiub", "b", "b")


class OutcomeCheck:
    """Refuses an outcome whose arrays are not what the spec states."""

    def __init__(self, conventions: Conventions) -> None:
        own = conventions.own.observation
        self._obs = {key: (np.dtype(item.dtype), item.shape) for key, item in own.items()}
        self._observed = conventions.observed
        self._floats = [key for key, (dtype, _) in self._obs.items() if dtype.kind == "f"]

    def rows(self, message: Outcome, expected: np.ndarray) -> None:
        """Raise `SpecError` unless ``message`` is of the rows ``expected``, int32 [R]."""
        rows = message.rows
        if rows.nbytes != expected.nbytes or rows.tobytes() != expected.tobytes():
            raise SpecError(f"the outcome is of rows {short(rows)}, not of those asked for")

    def obs(self, message: Outcome, num_rows: int) -> Arrays:
        """The spec's observations of ``message``, each [R, ...], as they are seen. Raises `SpecError`."""
        given = message.obs
        if given is None:
            raise SpecError(f"no observation for {num_rows} rows, but one was asked for")
        checked = {}
        for key, (dtype, shape) in self._obs.items():
            array = given.get(key)
            if not isinstance(array, np.ndarray):
                raise SpecError(f"observation {key!r} is missing; there are {short(sorted(given))}")
            if array.dtype != dtype or array.shape != (num_rows, *shape):
                raise SpecError(
                    f"observation {key!r} is {array.dtype} {list(array.shape)}; the spec says "
                    f"{dtype} {[num_rows, *shape]}"
                )
            checked[key] = array
        return self._observed(checked)

    def flags(self, message: Outcome, num_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward float32 [R], terminated and truncated bool [R]. Raises `SpecError`."""
        flags = message.reward, message.terminated, message.truncated
        for name, array, kinds in zip(_FLAGS, flags, _FLAG_KINDS, strict=True):
            if array is None or array.shape != (num_rows,) or array.dtype.kind not in kinds:
                what = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
                raise SpecError(f"{name} of {num_rows} rows is {what}")
        reward, terminated, truncated = flags
        assert reward is not None and terminated is not None and truncated is not None
        return reward.astype(np.float32, copy=False), terminated, truncated

    def success(self, message: Outcome, num_rows: int) -> np.ndarray | None:
        """Success bool [R], None where the peer gave none. Raises `SpecError`."""
        success = message.success
        if success is not None and (success.shape != (num_rows,) or success.dtype.kind not in "biu"):
            raise SpecError(f"success of {num_rows} rows is {success.dtype} {list(success.shape)}")
        return success

    def finite(self, reward: np.ndarray | None, obs: Arrays | None) -> np.ndarray | None:
        """bool [R], or None where all rows are finite."""
        parts = [] if reward is None else [reward]
        parts += [obs[key] for key in self._floats] if obs is not None else []
        good = None
        for part in parts:
            # One pass for the usual case; a sum of squares may overflow, so it only acquits.
            flat = part.ravel()
            if math.isfinite(flat.dot(flat)):
                continue
            finite = np.isfinite(part)
            if not finite.all():
                rows = finite.reshape(len(part), -1).all(axis=1)
                good = rows if good is None else good & rows
        return good

    def non_finite(self, reward: np.ndarray | None, obs: Arrays | None, row: int) -> str:
        """The first number of ``row`` that is not finite, by name, place and value."""
        named = [] if reward is None else [("reward", reward)]
        named += [(f"observation {key!r}", obs[key]) for key in self._floats] if obs is not None else []
        for name, array in named:
            bad = np.argwhere(~np.isfinite(array[row : row + 1]))
            if len(bad):
                place = [int(i) for i in bad[0][1:]]
                at = f" at {place}" if place else ""
                return f"{name}{at} is {float(array[(row, *place)])}"
        raise ValueError(f"all numbers of row {row} are finite")


def subset(message: Outcome, keep: np.ndarray) -> Outcome:
    """Some rows of ``message``; ``keep`` is bool [R]."""

    def part(array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else array[keep]

    return Outcome(
        rows=message.rows[keep],
        obs=None if message.obs is None else {k: v[keep] for k, v in message.obs.items()},
        reward=part(message.reward),
        terminated=part(message.terminated),
        truncated=part(message.truncated),
        success=part(message.success),
    )
