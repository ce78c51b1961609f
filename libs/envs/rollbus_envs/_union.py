"""One spec for several: what a policy that acts in all of them sees and does.

Elements meet by their names where all tasks name them, else by position; shorter ones are padded.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import (
    EXPERT_ACTION,
    INSTRUCTION,
    MAY_REFINE,
    TASK,
    ActionSpec,
    ArraySpec,
    EnvSpec,
    RotationSpec,
)

#: What an observation holds where a task does not have it; zeros for others.
_WHERE_ABSENT = {MAY_REFINE: 1}


class Actions:
    """From union actions to those of one task, and back."""

    def __init__(self, own: ActionSpec, union: ActionSpec, places: List[int]) -> None:
        self.own, self.places = own, places
        there = _bounds(union)
        self._scaled = own.kind == "continuous" and _bounds(own) != [there[p] for p in places]
        low, high = np.array(own.low, np.float64), np.array(own.high, np.float64)
        self._low, self._high = low.astype(np.float32), high.astype(np.float32)
        if self._scaled:
            self._centre, self._half = (low + high) / 2, (high - low) / 2
        self._union, self._num = union, np.array(own.num, np.int64)

    def to_own(self, actions: np.ndarray) -> np.ndarray:
        """[R, *own] of union actions [R, ...].

        A choice that the task does not have, which no policy makes but a random script may, is taken modulo
        those that it has: every action of the union's spec can be executed.
        """
        flat = actions.reshape(len(actions), -1)[:, self.places]
        if self._scaled:
            flat = np.clip((self._centre + self._half * flat).astype(np.float32), self._low, self._high)
        own = flat.reshape((len(flat),) + self.own.shape)
        return own if self.own.kind == "continuous" else own % self._num.reshape(self.own.shape)

    def to_union(self, actions: np.ndarray) -> np.ndarray:
        """The inverse, zeros where the task has no element."""
        flat = actions.reshape(len(actions), -1)
        if self._scaled:
            flat = np.clip((flat - self._centre) / self._half, -1.0, 1.0)
        out = np.zeros((len(flat), self._union.size), self._union.dtype)
        out[:, self.places] = flat
        return out.reshape((len(flat),) + self._union.shape)


class Union(NamedTuple):
    """The spec of all tasks together, and where each one's elements are in it."""

    observation: Dict[str, ArraySpec]
    action: ActionSpec
    groups: Dict[str, List[str]]
    #: Per task.
    actions: List[Actions]
    #: Per task, key -> places of its elements, flattened; None: it is as it is there.
    places: List[Dict[str, Optional[List[int]]]]
    #: Key -> what it holds where a task does not have it, where that is not 0.
    absent: Dict[str, int]


def unite(specs: Dict[str, EnvSpec]) -> Union:
    """The union of ``specs``, task name -> spec. Raises `ConfigError` with those that do not go together."""
    for name, spec in specs.items():
        taken = {TASK, INSTRUCTION} & set(spec.observation)
        if taken or spec.tasks:
            raise ConfigError(
                "task %s: %s observes %s already; a task is one thing"
                % (name, spec.name, ", ".join(sorted(taken)))
            )
    action, action_places = _action({name: spec.action for name, spec in specs.items()})
    observation: Dict[str, ArraySpec] = {}
    places: List[Dict[str, Optional[List[int]]]] = [{} for _ in specs]
    for key in sorted({key for spec in specs.values() for key in spec.observation}):
        having = {name: spec.observation[key] for name, spec in specs.items() if key in spec.observation}
        if key == EXPERT_ACTION:
            _check_expert(having, specs)
            observation[key] = ArraySpec(action.dtype, action.shape)
            for mine in places:
                mine[key] = None
            continue
        observation[key], found = _array(key, having, everywhere=len(having) == len(specs))
        for mine, name in zip(places, specs):
            mine[key] = found[name] if name in found else []
    actions = [Actions(spec.action, action, at) for spec, at in zip(specs.values(), action_places)]
    absent = {key: value for key, value in _WHERE_ABSENT.items() if key in observation}
    return Union(observation, action, _groups(list(specs.values())), actions, places, absent)


def _groups(specs: Sequence[EnvSpec]) -> Dict[str, List[str]]:
    names = {"policy"}.union(*[spec.groups for spec in specs])
    return {name: sorted({key for spec in specs for key in spec.group(name)}) for name in names}


def _check_expert(having: Dict[str, ArraySpec], specs: Dict[str, EnvSpec]) -> None:
    lacking = sorted(set(specs) - set(having))
    if lacking:
        raise ConfigError(
            "tasks %s have an expert, %s have none; give all of them one (env.expert), or none"
            % (", ".join(having), ", ".join(lacking))
        )


# --- arrays --------------------------------------------------------------------------------------


def _array(
    key: str, having: Dict[str, ArraySpec], everywhere: bool
) -> Tuple[ArraySpec, Dict[str, Optional[List[int]]]]:
    """The union of one key, and task -> places; None: all of it."""
    arrays = list(having.values())
    for label in ("dtype", "layout", "channels", "unit"):
        _same("observation %r has %s" % (key, label), {n: getattr(a, label) for n, a in having.items()})
    if any(a.max_age_s or a.frozen_after for a in arrays):
        raise ConfigError(
            "observation %r states max_age_s or frozen_after: robots dial in by themselves" % key
        )
    low, high = _least([a.low for a in arrays]), _least([None if a.high is None else -a.high for a in arrays])
    high = None if high is None else -high
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1 and any(len(shape) != 1 for shape in shapes):
        _same("observation %r has shape" % key, {n: list(a.shape) for n, a in having.items()})
    whole = len(shapes) == 1 and all(a.names == arrays[0].names for a in arrays)
    if whole:
        names, shape = arrays[0].names, arrays[0].shape
        _same("observation %r has rotations" % key, {n: _stated(a.rotations) for n, a in having.items()})
        found: Dict[str, Optional[List[int]]] = dict.fromkeys(having)
    else:
        size, names, by_task = _placed({name: (a.size, a.names) for name, a in having.items()})
        shape, found = (size,), {n: None if at == list(range(size)) else at for n, at in by_task.items()}
    if not everywhere or any(found.values()):
        low, high = (None if low is None else min(low, 0.0)), (None if high is None else max(high, 0.0))
    first = arrays[0]
    union = ArraySpec(first.dtype, shape, low, high, first.layout, first.channels, list(names), first.unit)
    union.rotations = list(first.rotations) if whole else []
    return union, found


def _stated(rotations: List[RotationSpec]) -> str:
    return ", ".join("%s at %d" % (each.type, each.start) for each in rotations)


def _least(values: List[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None


def _same(what: str, values: Dict[str, object]) -> None:
    first = next(iter(values.values()))
    if any(value != first for value in values.values()):
        said = ", ".join("%s %s" % (value or "none", name) for name, value in values.items())
        raise ConfigError("tasks differ: %s %s; make them alike, or train them apart" % (what, said))


def _placed(parts: Dict[str, Tuple[int, List[str]]]) -> Tuple[int, List[str], Dict[str, List[int]]]:
    """(size, names, task -> places) of vectors, task -> (size, names)."""
    if all(names for _, names in parts.values()):
        union = list(dict.fromkeys(name for _, names in parts.values() for name in names))
        return (
            len(union),
            union,
            {task: [union.index(n) for n in names] for task, (_, names) in parts.items()},
        )
    size = max(size for size, _ in parts.values())
    return size, [], {task: list(range(own)) for task, (own, _) in parts.items()}


# --- actions -------------------------------------------------------------------------------------


def _action(specs: Dict[str, ActionSpec]) -> Tuple[ActionSpec, List[List[int]]]:
    """The union of all actions, and the places of each task's elements in it."""
    kinds = list(specs.values())
    for label in ("kind", "layout", "end_token", "unit"):
        _same("actions have %s" % label, {name: getattr(a, label) for name, a in specs.items()})
    first = kinds[0]
    if first.layout:
        _same("completions have shape", {name: list(a.shape) for name, a in specs.items()})
    alike = all(a.shape == first.shape and a.names == first.names for a in kinds)
    if alike:
        _same("actions have rotations", {name: _stated(a.rotations) for name, a in specs.items()})
    size, names, by_task = _placed({name: (a.size, a.names) for name, a in specs.items()})
    places = list(by_task.values())
    shape = first.shape if alike else (size,)
    if first.kind != "continuous":
        num = [max(a.num[at.index(i)] for a, at in zip(kinds, places) if i in at) for i in range(size)]
        union = ActionSpec(first.kind, shape, num=num, names=names, unit=first.unit, layout=first.layout)
        union.end_token = first.end_token
        return union, places
    bounds = [_agreed(i, specs, places) for i in range(size)]
    low, high = [a for a, _ in bounds], [b for _, b in bounds]
    rotations = list(first.rotations) if alike else []
    return ActionSpec(
        "continuous", shape, low=low, high=high, names=names, unit=first.unit, rotations=rotations
    ), places  # fmt: skip


def _agreed(element: int, specs: Dict[str, ActionSpec], places: List[List[int]]) -> Tuple[float, float]:
    """The bounds of one element: what all tasks say that have it, else -1 to 1, which each scales."""
    having = {n: _bounds(a)[at.index(element)] for (n, a), at in zip(specs.items(), places) if element in at}
    if len(set(having.values())) == 1:
        return next(iter(having.values()))
    unbounded = [name for name, bounds in having.items() if not np.isfinite(bounds).all()]
    if unbounded:
        raise ConfigError(
            "action element %d has different bounds, and none in task %s; bound it, or make them alike"
            % (element, ", ".join(unbounded))
        )
    return -1.0, 1.0


def _bounds(spec: ActionSpec) -> List[Tuple[float, float]]:
    return list(zip(spec.low, spec.high))
