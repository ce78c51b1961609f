"""What the toy environments share: rows as arrays, random numbers from seeds, saved states."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from rollbus_wire.env import Arrays, Env, StepResult
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import EXPERT_ACTION, ArraySpec

_GOLDEN = 0x9E3779B97F4A7C15


def draws(seeds: np.ndarray, num: int, salt: Any = 0) -> np.ndarray:
    """float64 [R, num] in [0, 1): a function of (seeds [R], salt [R] or number, place) alone.

    SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
    """
    with np.errstate(over="ignore"):
        key = _mix(np.asarray(seeds).astype(np.uint64) + np.uint64(_GOLDEN))
        key = _mix(key + np.asarray(salt).astype(np.uint64) * np.uint64(_GOLDEN))
        counters = np.arange(1, num + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        bits = _mix(key[:, None] + counters)
    return (bits >> np.uint64(11)).astype(np.float64) * (1.0 / (1 << 53))


def _mix(value: np.ndarray) -> np.ndarray:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


#: Reward, terminated and success of R rows.
Advance = Tuple[np.ndarray, np.ndarray, Optional[np.ndarray]]


class Toy(Env):
    """Rows as arrays ``state[name]`` [num_rows, ...]; the observation is a function of them."""

    #: Names of the options that a reset takes.
    OPTIONS: Tuple[str, ...] = ()

    def __init__(self, num_rows: int) -> None:
        if num_rows < 1:
            raise SpecError("%d rows; at least 1" % num_rows)
        self.num_rows = num_rows
        self.state: Dict[str, np.ndarray] = {}
        self._shows_expert = False
        self.seed = self.array("seed", (), np.int64)
        self.time = self.array("time", (), np.int64)

    def array(self, name: str, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """A new state array [num_rows, *shape]."""
        self.state[name] = np.zeros((self.num_rows,) + shape, dtype)
        return self.state[name]

    def begin(self, rows: np.ndarray, options: Sequence[Any]) -> None:
        """Set the state of ``rows``; seed and time are set already."""

    def chosen(self, rows: np.ndarray, options: Sequence[Any], **usual: Tuple[float, float, float]) -> Any:
        """float64 [R] per name of ``usual``, (value, low, high): the row's option, else the value."""
        found = {name: np.full(len(rows), value, np.float64) for name, (value, _, _) in usual.items()}
        for place, option in enumerate(options):
            for name, value in (option or {}).items():
                _, low, high = usual[name]
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                    raise SpecError(
                        "%s: option %s is %r, not between %s and %s"
                        % (self.spec.name, name, value, low, high)
                    )
                found[name][place] = value
        return found

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        """One step of ``rows``; time is advanced already, so the first step has time 1."""
        raise NotImplementedError

    def look(self, rows: np.ndarray) -> Arrays:
        """What is seen of ``rows``, [R, ...] per key."""
        raise NotImplementedError

    def expert(self, rows: np.ndarray) -> np.ndarray:
        """The best actions [R, ...] for ``rows`` as they are."""
        raise NotImplementedError

    def show_expert(self) -> None:
        """From here on observations hold what the expert would do."""
        action = self.spec.action
        self.spec.observation[EXPERT_ACTION] = ArraySpec(action.dtype, action.shape)
        self._shows_expert = True

    def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Sequence[Any]) -> Arrays:
        for name in {name for option in options for name in option or ()} - set(self.OPTIONS):
            known = ", ".join(self.OPTIONS) or "none"
            raise SpecError("%s has no option %r; it has %s" % (self.spec.name, name, known))
        self.seed[rows] = seeds
        self.time[rows] = 0
        self.begin(rows, options)
        return self.observe(rows)

    def observe(self, rows: np.ndarray) -> Arrays:
        obs = self.look(rows)
        if self._shows_expert:
            obs[EXPERT_ACTION] = self.expert(rows).astype(self.spec.action.dtype)
        return obs

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        self.time[rows] += 1
        reward, terminated, success = self.advance(rows, actions)
        obs = self.observe(rows) if observe else None
        truncated = np.zeros(len(rows), np.bool_)
        return StepResult(obs, reward.astype(np.float32), terminated, truncated, success)

    def get_state(self, rows: np.ndarray) -> List[bytes]:
        return [b"".join(a[row].tobytes() for a in self.state.values()) for row in rows.tolist()]

    def set_state(self, rows: np.ndarray, states: Sequence[bytes]) -> Arrays:
        size = sum(a[0].nbytes for a in self.state.values())
        for row, state in zip(rows.tolist(), states):
            if len(state) != size:
                raise SpecError("a state of %d bytes, %d are needed" % (len(state), size))
            offset = 0
            for array in self.state.values():
                one = array[row : row + 1]
                one[...] = np.frombuffer(state, array.dtype, one.size, offset).reshape(one.shape)
                offset += one.nbytes
        return self.observe(rows)


def one_hot(values: np.ndarray, num: int) -> np.ndarray:
    """float32 [..., num]."""
    return (np.asarray(values)[..., None] == np.arange(num)).astype(np.float32)
