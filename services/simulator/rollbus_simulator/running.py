"""Per row of a slice: the running episode, and what became of the last decision.

Symbols: N rows, R selected rows, M of them just ended, C environment steps per decision.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollbus_simulator.episodes import Ended
from rollbus_simulator.frames import Rows
from rollbus_wire.messages import Arrays
from rollbus_wire.spec import EnvSpec

_A = np.ndarray
#: Fields of a `Tick` in its order: ``final`` to ``final_success_at_end``, and these behind ``num_steps`` to
#: ``interrupted``.
Finals = tuple[_A, Arrays, _A, _A, _A, _A]
Told = tuple[_A, _A, _A, _A, _A, _A, Arrays, _A, _A, _A, _A]


class Running:
    """The episode each row is in; ``reports``: whether each task has a success signal."""

    def __init__(self, num_rows: int, reports: Sequence[bool]) -> None:
        self.episode = np.zeros(num_rows, np.int64)
        self.seed = np.zeros(num_rows, np.int64)
        #: Steps taken in the episode.
        self.step = np.zeros(num_rows, np.int32)
        self.ret = np.zeros(num_rows, np.float64)
        self._reports, self._has_success = reports, any(reports)
        self._once = np.zeros(num_rows, bool)
        self._at_end = np.zeros(num_rows, bool)

    def begin(self, place: int, episode: int, seed: int) -> None:
        """``episode`` starts in ``place``."""
        self.episode[place], self.seed[place] = episode, seed
        self.step[place], self.ret[place] = 0, 0.0
        self._once[place] = self._at_end[place] = False

    def advance(self, rows: Rows, reward: np.ndarray, success: np.ndarray | None) -> None:
        """One environment step on ``rows`` gave ``reward`` [R]."""
        if isinstance(rows, slice):
            self.step += 1
            self.ret += reward
        else:
            self.step[rows] += 1
            self.ret[rows] += reward
        if self._has_success and success is not None:
            success = success.astype(bool, copy=False)
            self._once[rows] |= success
            self._at_end[rows] = success

    def ended(self, place: int, task: int) -> Ended:
        """What became of the episode in ``place``, whose row runs ``task``."""
        known = self._reports[task]
        return Ended(
            int(self.episode[place]),
            int(self.seed[place]),
            float(self.ret[place]),
            int(self.step[place]),
            bool(self._once[place]) if known else None,
            bool(self._at_end[place]) if known else None,
            task,
        )


class Decided:
    """The outcome of each row's last decision, until a tick has told it.

    The usual case costs nothing: one step of all rows and no end is kept as ``plain``, the reward
    [N] alone, while all arrays stay cleared.
    """

    def __init__(self, spec: EnvSpec, num_rows: int) -> None:
        n = num_rows
        self.num_steps = np.zeros(n, np.int32)
        #: Steps the decision asked for.
        self.count = np.ones(n, np.int32)
        self.reward = np.zeros((n, 1), np.float32)
        self._queue = np.zeros((n, 1, *spec.action.shape), spec.action.dtype)
        self.terminated, self.truncated, self.interrupted = (np.zeros(n, bool) for _ in range(3))
        self.final = np.zeros(n, bool)
        self.final_obs: Arrays = {
            key: np.zeros((n, *item.shape), item.dtype) for key, item in spec.observation.items()
        }
        self.final_return = np.zeros(n, np.float32)
        self.final_length = np.zeros(n, np.int32)
        self.final_once = np.full(n, -1, np.int8)
        self.final_at_end = np.full(n, -1, np.int8)
        self.plain: np.ndarray | None = None
        #: Whether any array may hold something.
        self._dirty = False
        self._no_final = self._finals(np.zeros(0, np.int64), np.zeros(0, np.int32))
        self._all_one, no = _constant(np.ones(n, np.int32)), _constant(np.zeros(n, bool))
        self._plain_fields = (no, no, no, *self._no_final)

    def begin(self, rows: Rows, queue: np.ndarray) -> None:
        """A decision is being executed on ``rows``: its actions [R, C, ...], one per step."""
        num_actions, width = queue.shape[1], self.reward.shape[1]
        if width != num_actions and (width < num_actions or isinstance(rows, slice)):
            self.reward = _widened(self.reward, num_actions, keep=not isinstance(rows, slice))
            self._queue = _widened(self._queue, num_actions, keep=not isinstance(rows, slice))
        self.clear(rows)
        self.count[rows] = num_actions
        if num_actions > 1:
            self._queue[rows, :num_actions] = queue

    def next_actions(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The action that is due in each of ``places``, and whether it is the decision's last."""
        done = self.num_steps[places]
        return self._queue[places, done], done + 1 >= self.count[places]

    def settle(self) -> None:
        """Write ``plain`` into the arrays, before some rows of it change; they may change now."""
        if self.plain is not None:
            self.num_steps[:] = 1
            self.reward[:, 0] = self.plain
            self.plain = None
        self._dirty = True

    def clear(self, rows: Rows) -> None:
        """``rows`` have no outcome to tell."""
        if isinstance(rows, slice):
            self.plain = None
            if not self._dirty:
                return
            self._dirty = False
        else:
            self.settle()
        self.num_steps[rows] = 0
        self.reward[rows] = 0
        self.terminated[rows] = self.truncated[rows] = self.interrupted[rows] = False
        self.final[rows] = False

    def step(self, rows: Rows, places: np.ndarray, reward: np.ndarray) -> np.ndarray:
        """One more step of a decision gave ``reward`` [R]; bool [R]: whether it has more."""
        self.settle()
        position = self.num_steps[places]
        self.reward[places, position] = reward
        self.num_steps[rows] = position + 1
        return position + 1 < self.count[rows]

    def end(self, places: np.ndarray, final_obs: Arrays, episodes: list[Ended]) -> None:
        """Episodes ended in ``places``; ``final_obs`` [M, ...] is what they ended with."""
        self.final[places] = True
        for key, array in self.final_obs.items():
            array[places] = final_obs[key]
        self.final_return[places] = [e.ret for e in episodes]
        self.final_length[places] = [e.length for e in episodes]
        self.final_once[places] = [_flag(e.success_once) for e in episodes]
        self.final_at_end[places] = [_flag(e.success_at_end) for e in episodes]

    def interrupt(self, place: int) -> None:
        """The episode in ``place`` was cut."""
        self.interrupted[place] = True
        self.terminated[place] = self.truncated[place] = False

    def fields(self, rows: Rows) -> Told:
        """The outcomes of ``rows`` in the order of `Tick`, ``num_steps`` to ``final_success_at_end``.

        None of the arrays is changed afterwards.
        """
        if self.plain is not None:
            if isinstance(rows, slice):
                return (self._all_one, self.plain[:, None], *self._plain_fields)
            self.settle()
        final = self.final[rows]
        fields = (
            copy_of(self.num_steps, rows),
            copy_of(self.reward, rows),
            copy_of(self.terminated, rows),
            copy_of(self.truncated, rows),
            copy_of(self.interrupted, rows),
        )
        if not np.count_nonzero(final):
            return (*fields, *self._no_final)
        inside = np.flatnonzero(final)
        places = inside if isinstance(rows, slice) else rows[inside]
        return (*fields, *self._finals(places, inside.astype(np.int32)))

    def _finals(self, places: np.ndarray, inside: np.ndarray) -> Finals:
        return (
            inside,
            {key: array[places] for key, array in self.final_obs.items()},
            self.final_return[places],
            self.final_length[places],
            self.final_once[places],
            self.final_at_end[places],
        )


def copy_of(array: np.ndarray, rows: Rows) -> np.ndarray:
    """The elements ``rows`` of ``array`` as a new array."""
    return array.copy() if isinstance(rows, slice) else array[rows]


def _flag(success: bool | None) -> int:
    return -1 if success is None else int(success)


def _widened(array: np.ndarray, width: int, *, keep: bool) -> np.ndarray:
    """Zeros [N, width, ...], with what ``array`` held if ``keep``."""
    wider = np.zeros((len(array), width, *array.shape[2:]), array.dtype)
    if keep:
        wider[:, : array.shape[1]] = array
    return wider


def _constant(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
