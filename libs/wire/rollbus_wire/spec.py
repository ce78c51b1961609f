"""What an environment states about itself. Travels in `Hello` as plain data.

Conventions are data here (layout, range, units, names), so that each pair of environment and
policy is converted by computation and never by a hand-written adapter.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .codec import DTYPES
from .errors import SpecError, short
from .limits import MAX_DIMENSIONS, MAX_NAME, MAX_ROW_BYTES

ACTION_KINDS = ("discrete", "multi_discrete", "continuous")
#: How elements can state a rotation -> their names. Quaternions say where w is; angles are radians; the axes
#: of extrinsic Euler angles stay, those of intrinsic ones turn along; a matrix is row after row; rot6d is its
#: first column and then its second one (Zhou et al., 1812.07035).
ROTATIONS = {
    "quat_xyzw": ("x", "y", "z", "w"),
    "quat_wxyz": ("w", "x", "y", "z"),
    "rotvec": ("rx", "ry", "rz"),
    "euler_xyz_extrinsic": ("x", "y", "z"),
    "euler_xyz_intrinsic": ("x", "y", "z"),
    "matrix": ("xx", "xy", "xz", "yx", "yy", "yz", "zx", "zy", "zz"),
    "rot6d": ("xx", "yx", "zx", "xy", "yy", "zy"),
}
#: An observation of this name is what an expert would do now, as an action. It is in no group unless one
#: names it, so that no policy sees it; it is recorded for imitation.
EXPERT_ACTION = "expert_action"
#: An observation of this name, above 0.5, says in which rows a network that refines a policy's actions may
#: act; without it in all. It is in no group unless one names it.
MAY_REFINE = "may_refine"
#: An observation of this name says which of the spec's tasks a row runs, by its index.
TASK = "task"
#: An observation of this name is what a row's task is in words, as UTF-8 bytes with zeros behind.
INSTRUCTION = "instruction"


@dataclass
class RotationSpec:
    """Some elements of an array, flattened, that together are one rotation: ``start`` and those behind it."""

    #: One of `ROTATIONS`.
    type: str
    start: int = 0

    def __post_init__(self) -> None:
        if self.type not in ROTATIONS:
            raise SpecError(
                "rotation type %s; one of %s (four numbers alone do not say which one is w)"
                % (short(self.type), ", ".join(ROTATIONS))
            )

    @property
    def end(self) -> int:
        """Place behind its last element."""
        return self.start + len(ROTATIONS[self.type])


@dataclass
class ArraySpec:
    """One array of an observation, for one row: ``shape`` has no row dimension."""

    dtype: str
    shape: Tuple[int, ...]
    low: Optional[float] = None
    high: Optional[float] = None
    #: "" for a plain vector, "HWC" or "CHW" for an image, "onehot", "tokens".
    layout: str = ""
    #: "RGB" or "BGR" for images.
    channels: str = ""
    #: One name per element, for vectors whose order matters (joints).
    names: List[str] = field(default_factory=list)
    #: SI unit, or "" where none is meant.
    unit: str = ""
    #: Age in seconds at which a frame must not be acted on; 0: of no matter (`rollbus_wire.freshness`).
    max_age_s: float = 0.0
    #: Equal frames in a row that mean a stuck source; 0: any number is in order.
    frozen_after: int = 0
    #: Which elements are rotations, and how they state them, in the order of their places.
    rotations: List[RotationSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shape = tuple(int(n) for n in self.shape)
        if not self.max_age_s >= 0 or self.frozen_after < 0 or self.frozen_after == 1:
            raise SpecError(
                "max_age_s %r and frozen_after %r: 0, or a time and at least two frames"
                % (self.max_age_s, self.frozen_after)
            )
        if self.dtype not in DTYPES:
            raise SpecError("dtype %s; one of %s" % (short(self.dtype), ", ".join(DTYPES)))
        _check_shape(self.shape, np.dtype(self.dtype).itemsize)
        if self.names and len(self.names) != self.size:
            raise SpecError("%d names for %d elements" % (len(self.names), self.size))
        _check_rotations(self.rotations, self.dtype, self.size)

    @property
    def size(self) -> int:
        """Number of elements of one row."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass
class ActionSpec:
    """The action of one row.

    discrete: int64 scalar in ``[0, num[0])``; multi_discrete: int64 ``[len(num)]``;
    continuous: float32 ``shape`` within ``[low, high]`` (flat lists, one per element).
    """

    kind: str
    shape: Tuple[int, ...] = ()
    num: List[int] = field(default_factory=list)
    low: List[float] = field(default_factory=list)
    high: List[float] = field(default_factory=list)
    names: List[str] = field(default_factory=list)
    unit: str = ""
    #: "tokens": the elements are one completion of token ids, read up to the first ``end_token``.
    layout: str = ""
    end_token: int = 0
    #: As in `ArraySpec`.
    rotations: List[RotationSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shape = tuple(int(n) for n in self.shape)
        if self.kind not in ACTION_KINDS:
            raise SpecError("action kind %s; one of %s" % (short(self.kind), ", ".join(ACTION_KINDS)))
        _check_shape(self.shape, 8)
        _check_rotations(self.rotations, self.dtype, self.size)
        if self.kind == "continuous":
            if len(self.low) != self.size or len(self.high) != self.size:
                raise SpecError(
                    "continuous action of %d elements needs as many low and high, not %d and %d"
                    % (self.size, len(self.low), len(self.high))
                )
            if not all(a < b for a, b in zip(self.low, self.high)):
                raise SpecError(
                    "action bounds: low %s is not below high %s" % (short(self.low), short(self.high))
                )
        elif len(self.num) != max(1, self.size) or min(self.num) < 1 or max(self.num) > 1 << 62:
            raise SpecError("%s action needs positive counts, got %s" % (self.kind, short(self.num)))

    @property
    def size(self) -> int:
        """Number of elements of one row's action (1 for a scalar)."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> str:
        return "float32" if self.kind == "continuous" else "int64"


@dataclass
class TaskSpec:
    """One task of an environment that has several, and which elements of the spec are its own.

    Others are padding in its rows: zeros in observations, dropped from actions.
    """

    name: str
    #: In words; "" where nobody says it.
    instruction: str = ""
    #: Place of each of its action elements among all of the spec's, flattened.
    action: List[int] = field(default_factory=list)
    #: Choices that it has at each of these places; empty for continuous actions.
    num: List[int] = field(default_factory=list)
    #: Places that are its own, flattened, of each observation that is not wholly so.
    observation: Dict[str, List[int]] = field(default_factory=dict)
    #: Whether it reports success.
    has_success: bool = False


@dataclass
class EnvSpec:
    """One environment, as its hub and its policy see it."""

    name: str
    observation: Dict[str, ArraySpec]
    action: ActionSpec
    #: Which observations each reader gets: "policy" acts on its group, a critic may use
    #: "privileged". A group that is absent means all observations.
    groups: Dict[str, List[str]] = field(default_factory=dict)
    #: Steps after which the hub truncates an episode; 0: no limit of its own.
    time_limit: int = 0
    #: Whether `step` may set ``truncated`` by itself, unknown to the hub beforehand.
    internal_truncation: bool = False
    #: Whether `observe` after an unobserved step equals the observation that step would give.
    late_observe: str = "exact"
    #: "row": a seed fixes a row's episode; "scene": only all rows together; "none".
    seeding: str = "row"
    #: Whether a seed and an action sequence give identical numbers again.
    deterministic: bool = True
    #: Whether the environment reports success as a signal of its own.
    has_success: bool = False
    #: "once": an episode succeeds if success was ever reported; "at_end": at its last step.
    success: str = "once"
    #: Seconds per step where the environment runs in real time, else 0.
    control_period_s: float = 0.0
    #: Undiscounted return of the optimal policy where it is known (toys), else None.
    optimal_return: Optional[float] = None
    #: What its rows may run, each row one of them (`Env.row_tasks`); empty: one thing, without a name.
    tasks: List[TaskSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.observation:
            raise SpecError("%s: no observation" % self.name)
        for group, keys in self.groups.items():
            unknown = set(keys) - set(self.observation)
            if unknown or not keys:
                raise SpecError("%s: group %r names %s" % (self.name, group, sorted(unknown)))
        expert = self.observation.get(EXPERT_ACTION)
        if expert is not None and (expert.dtype, expert.shape) != (self.action.dtype, self.action.shape):
            raise SpecError(
                "%s: observation %s is %s %s; an action is %s %s"
                % (self.name, EXPERT_ACTION, expert.dtype, list(expert.shape), self.action.dtype,
                   list(self.action.shape))
            )  # fmt: skip
        for label, value, allowed in (
            ("late_observe", self.late_observe, ("exact", "stale", "none")),
            ("seeding", self.seeding, ("row", "scene", "none")),
            ("success", self.success, ("once", "at_end")),
        ):
            if value not in allowed:
                raise SpecError("%s: %s %r; one of %s" % (self.name, label, value, allowed))
        if self.tasks:
            _check_tasks(self)

    def group(self, name: str) -> List[str]:
        """Sorted observation keys of group ``name``."""
        return sorted(self.groups.get(name) or set(self.observation) - {EXPERT_ACTION, MAY_REFINE})

    @property
    def reports(self) -> List[bool]:
        """Whether each task reports success; without tasks one entry."""
        return [task.has_success for task in self.tasks] or [self.has_success]

    @property
    def padded(self) -> bool:
        """Whether some elements of actions or observations are padding in some rows."""
        num = list(self.action.num) or None
        return any(
            task.observation or len(task.action) != self.action.size or (num and task.num != num)
            for task in self.tasks
        )

    def to_data(self) -> Dict[str, Any]:
        """Plain maps, lists and numbers."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Dict[str, Any]) -> EnvSpec:
        """The inverse of `to_data`; unknown fields are ignored (a newer minor version)."""
        try:
            known = _known(cls, data)
            known["observation"] = {
                str(key): ArraySpec(**_with_rotations(ArraySpec, value))
                for key, value in data["observation"].items()
            }
            known["action"] = ActionSpec(**_with_rotations(ActionSpec, data["action"]))
            known["tasks"] = [TaskSpec(**_known(TaskSpec, task)) for task in data.get("tasks", [])]
            return cls(**known)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise SpecError("spec is not readable: %s" % short(error)) from None


def with_rotations(spec: EnvSpec, stated: Mapping[str, Sequence[Tuple[str, int]]]) -> EnvSpec:
    """``spec`` that states these rotations: observation, or "action", -> (type, first element) of each.

    Raises `SpecError` for other keys, types and places.
    """
    observation, action = dict(spec.observation), spec.action
    for key, pairs in stated.items():
        rotations = [RotationSpec(type, start) for type, start in pairs]
        if key == "action":
            action = replace(action, rotations=rotations)
        elif key in observation:
            observation[key] = replace(observation[key], rotations=rotations)
        else:
            raise SpecError(
                "%s: rotations of %s; it has %s, action"
                % (spec.name, short(key), ", ".join(sorted(observation)))
            )
    return replace(spec, observation=observation, action=action)


def _check_tasks(spec: EnvSpec) -> None:
    names = [task.name for task in spec.tasks]
    if len(set(names)) != len(names) or not all(names):
        raise SpecError("%s: tasks %s; each needs a name of its own" % (spec.name, short(names)))
    told = spec.observation.get(TASK)
    if told is None or (told.dtype, told.shape, told.high) != ("int64", (), len(names) - 1):
        raise SpecError(
            "%s: its tasks need an observation %s, int64 [], up to %d" % (spec.name, TASK, len(names) - 1)
        )
    for task in spec.tasks:
        sizes = {key: spec.observation[key].size for key in task.observation if key in spec.observation}
        if len(sizes) != len(task.observation):
            raise SpecError(
                "%s: task %s: observations %s" % (spec.name, task.name, short(sorted(task.observation)))
            )
        wanted = [(task.action, spec.action.size)] + [(task.observation[key], sizes[key]) for key in sizes]
        if not all(_are_places(places, size) for places, size in wanted) or not task.action:
            raise SpecError("%s: task %s has places beyond the spec's, or twice" % (spec.name, task.name))
        if spec.action.kind != "continuous":
            known = [spec.action.num[place] for place in task.action]
            if len(task.num) != len(known) or not all(1 <= n <= most for n, most in zip(task.num, known)):
                raise SpecError(
                    "%s: task %s has choices %s of %s" % (spec.name, task.name, short(task.num), short(known))
                )


def _check_rotations(rotations: List[RotationSpec], dtype: str, size: int) -> None:
    """They are numbers within the array, in order, and none shares an element."""
    free = 0
    for each in rotations:
        if not free <= each.start <= each.end <= size or not dtype.startswith("float"):
            raise SpecError(
                "rotation %s at %d of %s [%d]: it needs elements %d to %d, floats of its own, behind those "
                "of the rotation before it" % (each.type, each.start, dtype, size, each.start, each.end - 1)
            )
        free = each.end


def _are_places(places: List[int], size: int) -> bool:
    return len(set(places)) == len(places) and all(0 <= place < size for place in places)


def _check_shape(shape: Tuple[int, ...], itemsize: int) -> None:
    # Time and rows come before these dimensions.
    if len(shape) > MAX_DIMENSIONS - 2 or not all(0 <= size <= MAX_ROW_BYTES for size in shape):
        raise SpecError(
            "shape %s; at most %d sizes of 0 to %d" % (short(shape), MAX_DIMENSIONS - 2, MAX_ROW_BYTES)
        )
    num_bytes = itemsize
    for size in shape:
        num_bytes *= size
    if num_bytes > MAX_ROW_BYTES:
        raise SpecError("shape %s is %d bytes per row; at most %d" % (shape, num_bytes, MAX_ROW_BYTES))


#: Annotation -> test of what came for it.
_TESTS: Dict[str, Callable[[Any], bool]] = {
    "str": lambda v: type(v) is str and len(v) <= MAX_NAME,
    "bool": lambda v: type(v) is bool,
    "int": lambda v: type(v) is int and 0 <= v < 1 << 31,
    "float": lambda v: type(v) in (int, float),
    "Optional[float]": lambda v: v is None or type(v) in (int, float),
    "Tuple[int, ...]": lambda v: all(type(n) is int for n in v),
    "List[int]": lambda v: type(v) is list and all(type(n) is int for n in v),
    "List[float]": lambda v: type(v) is list and all(type(n) in (int, float) for n in v),
    "List[str]": lambda v: type(v) is list and all(type(n) is str for n in v),
    "Dict[str, List[str]]": lambda v: type(v) is dict and all(_TESTS["List[str]"](n) for n in v.values()),
    "Dict[str, ArraySpec]": lambda v: type(v) is dict,
    "Dict[str, List[int]]": lambda v: type(v) is dict and all(_TESTS["List[int]"](n) for n in v.values()),
    "List[RotationSpec]": lambda v: type(v) is list and all(type(n) is dict for n in v),
    "List[TaskSpec]": lambda v: type(v) is list and all(type(n) is dict for n in v),
    "ActionSpec": lambda v: type(v) is dict,
}


def _known(cls: type, data: Dict[str, Any]) -> Dict[str, Any]:
    """The fields of ``cls`` in ``data``, each of the type that it is declared with."""
    known = {}
    for item in fields(cls):
        if item.name in data:
            known[item.name] = value = data[item.name]
            if not _TESTS[str(item.type)](value):
                raise ValueError("%s.%s is %s, not %s" % (cls.__name__, item.name, short(value), item.type))
    return known


def _with_rotations(cls: type, data: Dict[str, Any]) -> Dict[str, Any]:
    known = _known(cls, data)
    known["rotations"] = [RotationSpec(**_known(RotationSpec, each)) for each in data.get("rotations", [])]
    return known
