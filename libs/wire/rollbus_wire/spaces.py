"""Gymnasium-style spaces as specs, and values between both forms, without importing gymnasium.

Spaces are told apart by their attributes: ``spaces`` (Dict, Tuple), ``nvec`` (MultiDiscrete),
``n`` (Discrete, MultiBinary), ``low`` and ``high`` (Box).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from .codec import DTYPES
from .errors import SpecError
from .spec import ActionSpec, ArraySpec

#: Key of an observation that is not a map.
FLAT_KEY = "obs"


class _Leaf:
    """One array of an observation: where it is in the value, and its spec."""

    def __init__(self, key: str, path: Tuple[Any, ...], spec: ArraySpec, first: Any) -> None:
        self.key, self.path, self.spec = key, path, spec
        self.dtype = np.dtype(spec.dtype)
        #: First value of a space of classes, which count from 0 on the wire.
        self.first = first
        self.shifted = bool(np.any(first))

    def gather(self, values: Sequence[Any]) -> np.ndarray:
        """[R, ...] from one observation per row, as a new array."""
        for step in self.path:
            values = [value[step] for value in values]
        shape = self.spec.shape
        out = np.empty((len(values),) + shape, self.dtype)
        for i, value in enumerate(values):
            if getattr(value, "shape", None) != shape:
                value = np.asarray(value)
                if value.shape != shape:
                    raise SpecError(
                        "observation %r has shape %s, its space says %s"
                        % (self.key, list(value.shape), list(shape))
                    )
            out[i] = value
        return out - self.first if self.shifted else out


class Observations:
    """The observation space of one environment as specs, and the way from values to arrays."""

    def __init__(self, space: Any) -> None:
        self._leaves: List[_Leaf] = []
        self._add(space, (), ())
        self.specs = {leaf.key: leaf.spec for leaf in self._leaves}

    def gather(self, values: Sequence[Any]) -> Dict[str, np.ndarray]:
        """One new array [R, ...] per key from one observation per row."""
        return {leaf.key: leaf.gather(values) for leaf in self._leaves}

    def convert(self, value: Any) -> Dict[str, np.ndarray]:
        """New arrays [R, ...] from an observation that is batched already."""
        out = {}
        for leaf in self._leaves:
            array = value
            for step in leaf.path:
                array = array[step]
            out[leaf.key] = np.array(array - leaf.first if leaf.shifted else array, leaf.dtype)
        return out

    def _add(self, space: Any, names: Tuple[str, ...], path: Tuple[Any, ...]) -> None:
        inner = getattr(space, "spaces", None)
        if inner is not None:
            items = inner.items() if hasattr(inner, "items") else enumerate(inner)
            for step, child in items:
                self._add(child, names + (str(step),), path + (step,))
            return
        key = "/".join(names) or FLAT_KEY
        spec, first = _array_spec(space, key)
        self._leaves.append(_Leaf(key, path, spec, first))


def _array_spec(space: Any, key: str) -> Tuple[ArraySpec, Any]:
    shape = tuple(getattr(space, "shape", None) or ())
    if hasattr(space, "low") and hasattr(space, "high"):
        return _box_spec(space, shape, key), 0
    if hasattr(space, "nvec"):
        starts = np.asarray(getattr(space, "start", 0), np.int64)
        high = float(np.asarray(space.nvec).max() - 1)
        return ArraySpec("int64", shape, low=0.0, high=high, layout="onehot"), starts
    if hasattr(space, "n"):
        if shape:
            return ArraySpec("int8", shape, low=0.0, high=1.0), 0
        first = int(getattr(space, "start", 0))
        return ArraySpec("int64", (), low=0.0, high=float(space.n - 1), layout="onehot"), first
    raise SpecError(
        "observation %r is in a %s; arrays come from Box, Discrete, MultiDiscrete, MultiBinary, "
        "Dict and Tuple" % (key, type(space).__name__)
    )


def _box_spec(space: Any, shape: Tuple[int, ...], key: str) -> ArraySpec:
    dtype = np.dtype(space.dtype).name
    dtype = "float32" if dtype == "float64" else dtype
    if dtype not in DTYPES:
        raise SpecError("observation %r is %s; one of %s" % (key, dtype, ", ".join(DTYPES)))
    low, high = float(np.min(space.low)), float(np.max(space.high))
    if dtype == "float32":
        low, high = float(np.float32(low)), float(np.float32(high))
    layout = channels = ""
    if dtype == "uint8" and len(shape) == 3:
        layout = "HWC" if shape[2] in (1, 3, 4) else "CHW" if shape[0] in (1, 3, 4) else ""
        count = shape[2] if layout == "HWC" else shape[0]
        channels = "RGB" if layout and count == 3 else ""
    return ArraySpec(
        dtype,
        shape,
        low=low if np.isfinite(low) else None,
        high=high if np.isfinite(high) else None,
        layout=layout,
        channels=channels,
    )


def action_spec(space: Any) -> Tuple[ActionSpec, Callable[[np.ndarray], Sequence[Any]]]:
    """The spec of an action space, and what turns validated actions [R, ...] into one per row."""
    shape = tuple(getattr(space, "shape", None) or ())
    if hasattr(space, "nvec"):
        return _multi_discrete(np.asarray(space.nvec), np.asarray(getattr(space, "start", 0)))
    if hasattr(space, "n"):
        if shape:
            return _multi_discrete(np.full(shape, 2), np.asarray(0))
        first = int(getattr(space, "start", 0))
        spec = ActionSpec("discrete", num=[int(space.n)])
        return spec, lambda actions: (actions + first if first else actions).tolist()
    if hasattr(space, "low") and hasattr(space, "high") and np.dtype(space.dtype).kind == "f":
        return _continuous(space, shape)
    raise SpecError(
        "the action is in a %s; possible are Discrete, MultiDiscrete, MultiBinary and Box of floats" % space
    )


def _multi_discrete(
    counts: np.ndarray, first: np.ndarray
) -> Tuple[ActionSpec, Callable[[np.ndarray], Sequence[Any]]]:
    shape = counts.shape
    spec = ActionSpec("multi_discrete", shape=(counts.size,), num=[int(n) for n in counts.flat])
    return spec, lambda actions: actions.reshape((len(actions),) + shape) + first


def _continuous(
    space: Any, shape: Tuple[int, ...]
) -> Tuple[ActionSpec, Callable[[np.ndarray], Sequence[Any]]]:
    low, high = np.broadcast_to(space.low, shape), np.broadcast_to(space.high, shape)
    spec = ActionSpec(
        "continuous",
        shape=shape,
        low=[float(x) for x in low.flat],
        high=[float(x) for x in high.flat],
    )
    dtype = np.dtype(space.dtype)
    rounds_out = (low.astype(np.float32) < low).any() or (high.astype(np.float32) > high).any()
    if rounds_out:
        # The float32 nearest to a float64 bound lies outside; the environment sees the bound.
        return spec, lambda actions: np.clip(actions.astype(dtype), low, high)
    return spec, lambda actions: actions.astype(dtype)
