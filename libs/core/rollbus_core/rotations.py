"""Rotations stated one way, for a reader who wants them stated another way.

What holds rotations says in its spec how it states them (`rollbus_wire.spec.ROTATIONS`). Each way is
converted to and from one form, so that no pair of them needs code of its own. A vector without length, of
which no rotation can be read, counts as none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rollbus_core import extras
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import EXPERT_ACTION, ROTATIONS, ActionSpec, ArraySpec, EnvSpec, RotationSpec

if TYPE_CHECKING:
    from scipy.spatial.transform import Rotation

Arrays = dict[str, np.ndarray]
Spec = TypeVar("Spec", ArraySpec, ActionSpec)
#: The name that an environment's action has among its arrays.
ACTION = "action"
_EULER = {"euler_xyz_extrinsic": "xyz", "euler_xyz_intrinsic": "XYZ"}
#: Shorter vectors have no direction.
_TINY = 1e-8


def convert(values: np.ndarray, given: str, wanted: str) -> np.ndarray:
    """Rotations float [..., size of ``given``] of one type of `ROTATIONS` as another type, same dtype.

    Rows with a number that is not finite become NaN. Raises `SpecError` for other types and sizes.
    """
    for type in (given, wanted):
        RotationSpec(type)
    values = np.asarray(values)
    if values.ndim == 0 or values.shape[-1] != len(ROTATIONS[given]):
        raise SpecError(f"{given} has {len(ROTATIONS[given])} numbers, not an array {list(values.shape)}")
    if given == wanted:
        return values
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    finite = np.isfinite(flat).all(axis=1)
    flat[~finite] = 0.0
    out = _write(_read(flat, given), wanted)
    out[~finite] = np.nan
    return out.reshape(*values.shape[:-1], out.shape[1]).astype(values.dtype)


def restated(array: Spec, types: Sequence[str]) -> Spec:
    """``array`` with each of its rotations stated as the one of ``types`` at its place.

    What changes has the bounds and names of its type; an observation loses its range. Raises `SpecError`.
    """
    changes: list[tuple[RotationSpec, RotationSpec]] = []
    shift = 0
    for old, type in zip(array.rotations, types, strict=True):
        new = RotationSpec(type, old.start + shift)
        changes.append((old, new))
        shift = new.end - old.end
    if shift and len(array.shape) != 1:
        raise SpecError(f"an array {list(array.shape)} has no place for {', '.join(types)}; make it a vector")
    made: dict[str, Any] = {
        "rotations": [new for _, new in changes],
        "shape": (array.size + shift,) if shift else array.shape,
        "names": _changed(array.names, changes, lambda type: [*ROTATIONS[type]]) if array.names else [],
    }
    if isinstance(array, ActionSpec):
        made["low"] = _changed(array.low, changes, lambda type: [-b for b in _bounds(type)])
        made["high"] = _changed(array.high, changes, _bounds)
    elif any(old.type != new.type for old, new in changes):
        made |= {"low": None, "high": None}
    return replace(array, **made)


def _changed(
    values: Sequence[Any],
    changes: Sequence[tuple[RotationSpec, RotationSpec]],
    of: Callable[[str], list[Any]],
) -> list[Any]:
    """``values``, one per element, with those ``of`` the new type where it is another one."""
    found: list[Any] = []
    end = 0
    for old, new in changes:
        found += [*values[end : old.start]]
        found += values[old.start : old.end] if old.type == new.type else of(new.type)
        end = old.end
    return [*found, *values[end:]]


@dataclass(frozen=True)
class Restated:
    """Arrays of ``given`` as arrays of ``wanted``, which differ in how their rotations are stated."""

    given: ArraySpec | ActionSpec
    wanted: ArraySpec | ActionSpec

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """float [R, ...] as a new array [R, ...]; actions end within their bounds to the last digit."""
        flat = values.reshape(len(values), -1)
        parts, at = [], 0
        for old, new in zip(self.given.rotations, self.wanted.rotations, strict=True):
            parts += [flat[:, at : old.start], convert(flat[:, old.start : old.end], old.type, new.type)]
            at = old.end
        out = np.concatenate([*parts, flat[:, at:]], axis=1)
        if isinstance(self.wanted, ActionSpec):
            out = np.clip(out, *(np.array(b, out.dtype) for b in (self.wanted.low, self.wanted.high)))
        return out.reshape(len(values), *self.wanted.shape)


class Conventions:
    """An environment's spec, and as those see it who want its rotations stated another way.

    ``wanted``: observation, or "action", -> type of `ROTATIONS`. Raises `SpecError`, `MissingPackage`.
    """

    def __init__(self, spec: EnvSpec, wanted: Mapping[str, str]) -> None:
        #: As the environment states it, and as everybody else sees it.
        self.own = self.seen = spec
        self._observed: dict[str, Restated] = {}
        self._executed: Restated | None = None
        if not wanted:
            return
        extras.require("env.rotations", ("scipy",))
        if spec.tasks:
            raise SpecError(f"{spec.name} has several tasks; env.rotations is for environments of one")
        arrays: dict[str, ArraySpec | ActionSpec] = {**spec.observation, ACTION: spec.action}
        for name in wanted:
            if name not in arrays or not arrays[name].rotations:
                having = ", ".join(key for key, array in arrays.items() if array.rotations)
                raise SpecError(
                    f"env.rotations names {name!r}, of which {spec.name} states no rotation; it states "
                    f"those of {having or 'nothing (rollbus_wire.spec.RotationSpec)'}"
                )
        seen, action = dict(spec.observation), spec.action
        for name in wanted.keys() - {ACTION}:
            seen[name] = self._see(name, spec.observation[name], wanted[name])
        if ACTION in wanted:
            _check_range(spec)
            action = restated(spec.action, [wanted[ACTION]] * len(spec.action.rotations))
            self._executed = Restated(action, spec.action)
            if EXPERT_ACTION in seen:
                own = replace(seen[EXPERT_ACTION], rotations=spec.action.rotations)
                seen[EXPERT_ACTION] = self._see(EXPERT_ACTION, own, wanted[ACTION])
        self.seen = replace(spec, observation=seen, action=action)

    def _see(self, name: str, own: ArraySpec, type: str) -> ArraySpec:
        array = restated(own, [type] * len(own.rotations))
        self._observed[name] = Restated(own, array)
        return array

    def observed(self, obs: Arrays) -> Arrays:
        """The environment's observations [R, ...] as they are seen."""
        for name, restate in self._observed.items():
            obs[name] = restate(obs[name])
        return obs

    def executed(self, actions: np.ndarray) -> np.ndarray:
        """Actions [R, ...] of the seen spec as the environment takes them."""
        return actions if self._executed is None else self._executed(actions)


def _check_range(spec: EnvSpec) -> None:
    """The environment takes every rotation: a part of them is no box in another type."""
    for each in spec.action.rotations:
        for place, bound in zip(range(each.start, each.end), _bounds(each.type), strict=True):
            low, high = spec.action.low[place], spec.action.high[place]
            if np.float32(low) > -np.float32(bound) or np.float32(high) < np.float32(bound):
                raise SpecError(
                    f"{spec.name}: element {place} of the action, of a rotation {each.type}, is bounded to "
                    f"[{low:g}, {high:g}]; every rotation needs [{-bound:g}, {bound:g}], and a part of them "
                    "cannot be stated another way; leave action out of env.rotations"
                )


def _bounds(type: str) -> list[float]:
    """The largest that each element of a rotation can be; the least is its negative."""
    if type == "rotvec":
        return [np.pi] * 3
    if type in _EULER:
        return [np.pi, np.pi / 2, np.pi]
    return [1.0] * len(ROTATIONS[type])


def _read(values: np.ndarray, type: str) -> Rotation:
    """``values`` float64 [R, size]."""
    from scipy.spatial.transform import Rotation

    if type == "rotvec":
        return Rotation.from_rotvec(values)
    if type in _EULER:
        return Rotation.from_euler(_EULER[type], values)
    if type == "quat_wxyz":
        values = values[:, [1, 2, 3, 0]]
    if type in ("quat_xyzw", "quat_wxyz"):
        values[np.linalg.norm(values, axis=1) < _TINY] = (0.0, 0.0, 0.0, 1.0)
        return Rotation.from_quat(values)
    first, second = (values[:, :3], values[:, 3:]) if type == "rot6d" else (values[:, 0::3], values[:, 1::3])
    return Rotation.from_matrix(_orthonormal(first, second))


def _orthonormal(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[R, 3, 3] whose first columns have the directions of two vectors [R, 3] (Gram and Schmidt)."""
    lengths = np.linalg.norm(first, axis=1, keepdims=True)
    x = first / np.maximum(lengths, _TINY)
    y = second - (x * second).sum(1, keepdims=True) * x
    height = np.linalg.norm(y, axis=1, keepdims=True)
    y = y / np.maximum(height, _TINY)
    matrix = np.stack([x, y, np.cross(x, y)], axis=2)
    matrix[(np.minimum(lengths, height) < _TINY)[:, 0]] = np.eye(3)
    return matrix


def _write(rotation: Rotation, type: str) -> np.ndarray:
    """float64 [R, size]; of the two quaternions of a rotation the one with w >= 0."""
    if type == "rotvec":
        return rotation.as_rotvec()
    if type in _EULER:
        with warnings.catch_warnings():
            # At +-90 degrees only the sum of two angles counts; one of them is 0 then.
            warnings.simplefilter("ignore")
            return rotation.as_euler(_EULER[type])
    if type in ("quat_xyzw", "quat_wxyz"):
        quaternion = rotation.as_quat(canonical=True)
        return quaternion if type == "quat_xyzw" else quaternion[:, [3, 0, 1, 2]]
    matrix = rotation.as_matrix()
    return matrix.reshape(-1, 9) if type == "matrix" else matrix[:, :, :2].swapaxes(1, 2).reshape(-1, 6)
