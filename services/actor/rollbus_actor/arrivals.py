"""What a hub in another process sends is checked before the actor acts on it, records it or indexes by it.

Symbols: N rows of the slice, R rows of the tick, C environment steps per decision, M finals.
"""

from __future__ import annotations

import numpy as np

from rollbus_core.all_rows import AllRows
from rollbus_wire.errors import SpecError, short
from rollbus_wire.limits import MAX_ACTION_CHUNK, MAX_ROWS
from rollbus_wire.messages import Arrays, Attached, Tick
from rollbus_wire.spec import EnvSpec

#: Fields [R] and [M] of a tick, with the kinds of dtype they may have.
_PER_ROW = {"num_steps": "iu", "terminated": "b", "truncated": "b", "interrupted": "b"}
_PER_FINAL = {
    "final_return": "f", "final_length": "iu", "final_success_once": "i", "final_success_at_end": "i",
}  # fmt: skip


def check_attached(message: Attached) -> EnvSpec:
    """The spec of a granted slice. Raises `SpecError` for a grant that cannot be."""
    spec = EnvSpec.from_data(message.spec)
    if not 1 <= message.num_rows <= MAX_ROWS:
        raise SpecError(f"a slice of {message.num_rows} rows; 1 to {MAX_ROWS}")
    for key, frames in (message.history or {}).items():
        item = spec.observation.get(key)
        shape = (message.num_rows, *item.shape) if item is not None else ()
        if item is None or frames.dtype != item.dtype or frames.shape[1:] != shape:
            raise SpecError(f"the frames before {short(key)} are {_said(frames)}")
    return spec


class TickCheck:
    """Called with each tick of a slice of N rows: what is wrong with it, or ""."""

    def __init__(self, spec: EnvSpec, num_rows: int) -> None:
        self._obs = {key: (np.dtype(item.dtype), item.shape) for key, item in spec.observation.items()}
        self._num_rows, self._all = num_rows, AllRows(num_rows)

    def __call__(self, tick: Tick) -> str:
        rows, num = tick.rows, tick.rows.size
        if not self._distinct(rows, self._num_rows) or not num:
            return f"rows {short(rows)} are no distinct rows of {self._num_rows}"
        for name, array in (("episode", tick.episode), ("step", tick.step)):
            if array.shape != (num,) or array.dtype.kind not in "iu":
                return f"{name} of {num} rows is {_said(array)}"
        if tick.seed is not None and tick.seed.shape != (num,):
            return f"seed of {num} rows is {_said(tick.seed)}"
        reward = tick.reward
        if reward.ndim != 2 or len(reward) != num or reward.dtype.kind != "f":
            return f"reward of {num} rows is {_said(reward)}"
        if not 1 <= reward.shape[1] <= MAX_ACTION_CHUNK:
            return f"reward of {reward.shape[1]} steps per decision"
        if problem := self._observations(tick.obs, num):
            return problem
        return "" if tick.plain else self._outcomes(tick, num)

    def _outcomes(self, tick: Tick, num: int) -> str:
        for name, kinds in _PER_ROW.items():
            array = getattr(tick, name)
            if array.shape != (num,) or array.dtype.kind not in kinds:
                return f"{name} of {num} rows is {_said(array)}"
        if tick.num_steps.min() < 0 or tick.num_steps.max() > tick.reward.shape[1]:
            return f"num_steps {short(tick.num_steps)} for {tick.reward.shape[1]} rewards"
        final = tick.final
        if not self._distinct(final, num):
            return f"final {short(final)} are no distinct places of {num}"
        for name, kinds in _PER_FINAL.items():
            array = getattr(tick, name)
            if array.shape != final.shape or array.dtype.kind not in kinds:
                return f"{name} of {final.size} ends is {_said(array)}"
        return self._observations(tick.final_obs, final.size, "final_obs") if final.size else ""

    def _observations(self, obs: Arrays, num: int, name: str = "obs") -> str:
        if obs.keys() != self._obs.keys():
            return f"{name} has {short(sorted(obs))}, the spec {short(sorted(self._obs))}"
        for key, (dtype, shape) in self._obs.items():
            array = obs[key]
            if array.dtype != dtype or array.shape != (num, *shape):
                return f"{name} {key!r} of {num} rows is {_said(array)}, the spec says {dtype} {list(shape)}"
        return ""

    def _distinct(self, places: np.ndarray, num: int) -> bool:
        """Whether ``places`` are distinct ones below ``num``."""
        if places.ndim != 1 or places.dtype.kind not in "iu" or places.size > num:
            return False
        if self._all.are(places):
            return True
        if not places.size:
            return True
        return bool(places.min() >= 0 and places.max() < num and len(np.unique(places)) == places.size)


def _said(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"
