"""Which episode a row runs next, with which seed, and what became of it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rollbus_core.rng import episode_id, episode_seed
from rollbus_core.running_episodes import row_of
from rollbus_wire.errors import ConfigError

#: A lost episode of a list is run again from its seed this often, then it counts as failed.
MAX_RESTARTS = 2
_NONE = np.zeros(0)


@dataclass(slots=True)
class Ended:
    """One episode that came to its end."""

    id: int
    seed: int
    #: Undiscounted.
    ret: float
    length: int
    #: None where the environment has no success signal.
    success_once: bool | None
    success_at_end: bool | None
    #: Index of the task of the row that ran it.
    task: int = 0

    def success(self, rule: str) -> bool | None:
        """By ``rule``, "once" or "at_end"."""
        return self.success_at_end if rule == "at_end" else self.success_once


class EpisodeSource(Protocol):
    """Gives episodes to rows and hears how they end."""

    #: Whether the rows of a slice begin their episodes together: who ends first waits for the others.
    rounds: bool

    def open(self, incarnation: int) -> None:
        """The hub's incarnation is known; before that there are no episodes."""
        ...

    def seated(self, first_row: int, tasks: np.ndarray, num_tasks: int) -> None:
        """The rows from ``first_row`` on run ``tasks`` int [N] of ``num_tasks``; -1: nobody serves the row.

        Before any of them begins an episode. Raises `ConfigError` if they do not fit.
        """
        ...

    def next(self, row: int) -> tuple[int, int] | None:
        """(episode id, seed) for the hub's ``row``, or None while there is nothing to run."""
        ...

    def taken(self, episode: int) -> np.ndarray:
        """Actions [k, ...] with which ``episode`` begins; usually none."""
        ...

    def ended(self, row: int, episode: Ended) -> None:
        """The episode reached its end."""
        ...

    def interrupted(self, row: int, episode: int, seed: int) -> None:
        """The episode was cut because infrastructure was lost."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether `next` would give an episode."""
        ...

    @property
    def done(self) -> bool:
        """Whether all episodes have ended. Never, in training."""
        ...

    @property
    def endless(self) -> bool:
        """Whether lost episodes are replaced without a bound of its own."""
        ...


class TrainingEpisodes:
    """Endless episodes; ids and seeds are functions of (run seed, incarnation, row, number).

    ``row_offset`` is the global index of the hub's row 0. Without ``incarnation`` there are no
    episodes until `open`. ``running``: episodes that rows go on with, and the actions taken in them
    (`rollbus_core.running_episodes`); their incarnation and numbers go on, too.
    """

    rounds = False

    def __init__(
        self, seed: int, row_offset: int = 0, incarnation: int | None = None,
        running: Mapping[int, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        self.seed, self.row_offset = seed, row_offset
        self._running = dict(running or {})
        numbers = {row_of(episode) - row_offset: episode & 0xFFFFFFF for episode in self._running}
        self._numbers: dict[int, int] = numbers
        self.incarnation = next((e >> 48 for e in self._running), incarnation)

    def open(self, incarnation: int) -> None:
        # A rejoin after the broker restarted is the same process: its numbers go on.
        if self.incarnation is None:
            self.incarnation = incarnation

    def seated(self, first_row: int, tasks: np.ndarray, num_tasks: int) -> None:
        pass

    def next(self, row: int) -> tuple[int, int] | None:
        if self.incarnation is None:
            return None
        number = self._numbers.get(row, 0)
        self._numbers[row] = number + 1
        episode = episode_id(self.incarnation, self.row_offset + row, number)
        return episode, episode_seed(self.seed, episode, evaluation=False)

    def taken(self, episode: int) -> np.ndarray:
        return self._running.pop(episode, _NONE)

    def ended(self, row: int, episode: Ended) -> None:
        pass

    def interrupted(self, row: int, episode: int, seed: int) -> None:
        pass

    @property
    def waiting(self) -> bool:
        return self.incarnation is not None

    @property
    def done(self) -> bool:
        return False

    @property
    def endless(self) -> bool:
        return True


class GroupEpisodes(TrainingEpisodes):
    """Groups of ``size`` neighbouring rows that begin alike, so that their returns can be compared.

    All members of a group get one seed. A member that was lost is run again from it, `MAX_RESTARTS`
    times; then it gets a seed of its own, and whoever compares drops the group.
    """

    rounds = True

    def __init__(
        self, seed: int, size: int, row_offset: int = 0, incarnation: int | None = None,
        running: Mapping[int, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(seed, row_offset, incarnation, running)
        self.size = size
        # What is gone on with has lost no episode, so that each round was one number.
        self._rounds = {row: number - 1 for row, number in self._numbers.items()}
        #: Row -> how often its episode of this round was lost.
        self._losses: dict[int, int] = {}

    def seated(self, first_row: int, tasks: np.ndarray, num_tasks: int) -> None:
        for first in range(0, len(tasks), self.size):
            found = sorted({int(task) for task in tasks[first : first + self.size]} - {-1})
            if len(found) > 1:
                raise ConfigError(
                    f"rows {first_row + first} to {first_row + first + self.size - 1} are one group, whose "
                    f"returns are compared, but run tasks {found}; give each task a multiple of "
                    f"{self.size} rows in every slice (env.num_envs, env.num_slices, weights of the tasks)"
                )

    def next(self, row: int) -> tuple[int, int] | None:
        given = super().next(row)
        if given is None:
            return None
        losses = self._losses.get(row, 0)
        if not losses:
            self._rounds[row] = self._rounds.get(row, -1) + 1
        elif losses > MAX_RESTARTS:
            return given
        assert self.incarnation is not None
        first = self.row_offset + row - row % self.size
        group = episode_id(self.incarnation, first, self._rounds[row])
        return given[0], episode_seed(self.seed, group, evaluation=False)

    def ended(self, row: int, episode: Ended) -> None:
        self._losses.pop(row, None)

    def interrupted(self, row: int, episode: int, seed: int) -> None:
        self._losses[row] = self._losses.get(row, 0) + 1


class EpisodeList:
    """Exactly the episodes 0..num-1, each once, on whichever row is free.

    Results depend on the seed and not on the number of rows: of K tasks, episode i is one of task i modulo K.
    ``results`` are maps of id, task, seed, return, length, success_once, success_at_end in the order of ids;
    an episode that was lost more than `MAX_RESTARTS` times is there with ``lost`` true and success false.
    """

    rounds = False

    def __init__(self, seed: int, num: int) -> None:
        self.seed, self.num = seed, num
        #: Per task, and the task of each row.
        self._todo = [deque(range(num))]
        self._tasks: dict[int, int] = {}
        self._losses: dict[int, int] = {}
        self._results: dict[int, dict[str, Any]] = {}

    def open(self, incarnation: int) -> None:
        pass

    def seated(self, first_row: int, tasks: np.ndarray, num_tasks: int) -> None:
        if num_tasks > self.num:
            raise ConfigError(f"{self.num} episodes for {num_tasks} tasks; each needs one (eval.episodes)")
        if num_tasks > len(self._todo):
            self._todo = [deque(range(task, self.num, num_tasks)) for task in range(num_tasks)]
        self._tasks |= {first_row + place: int(task) for place, task in enumerate(tasks)}

    def todo(self, row: int) -> deque[int]:
        """What the task of ``row`` still has to run."""
        return self._todo[self._tasks.get(row, 0)]

    def next(self, row: int) -> tuple[int, int] | None:
        todo = self.todo(row)
        if not todo:
            return None
        episode = todo.popleft()
        return episode, episode_seed(self.seed, episode, evaluation=True)

    def taken(self, episode: int) -> np.ndarray:
        return _NONE

    def ended(self, row: int, episode: Ended) -> None:
        self._results[episode.id] = {
            "id": episode.id, "task": episode.task, "seed": episode.seed, "return": episode.ret,
            "length": episode.length, "success_once": episode.success_once,
            "success_at_end": episode.success_at_end, "lost": False,
        }  # fmt: skip

    def interrupted(self, row: int, episode: int, seed: int) -> None:
        losses = self._losses[episode] = self._losses.get(episode, 0) + 1
        task = episode % len(self._todo)
        if losses <= MAX_RESTARTS:
            self._todo[task].appendleft(episode)
            return
        self._results[episode] = {
            "id": episode, "task": task, "seed": seed, "return": 0.0, "length": 0,
            "success_once": False, "success_at_end": False, "lost": True,
        }  # fmt: skip

    @property
    def waiting(self) -> bool:
        return any(self._todo)

    @property
    def done(self) -> bool:
        return len(self._results) == self.num

    @property
    def endless(self) -> bool:
        return False

    @property
    def results(self) -> list[dict[str, Any]]:
        return [self._results[i] for i in sorted(self._results)]


class CollectedEpisodes(EpisodeList):
    """As `EpisodeList`, with seeds of training, which no evaluation meets.

    The end of an episode is told in the tick of the next one, so rows go on with further episodes
    (ids from ``num`` on, of which nothing is kept) until nobody asks any more. ``on_lost`` hears of those of
    the list that were lost too often.
    """

    def __init__(self, seed: int, num: int, on_lost: Callable[[int], Any]) -> None:
        super().__init__(seed, num)
        self._further, self._on_lost = itertools.count(num), on_lost

    def next(self, row: int) -> tuple[int, int]:
        todo = self.todo(row)
        episode = todo.popleft() if todo else next(self._further)
        return episode, episode_seed(self.seed, episode, evaluation=False)

    def ended(self, row: int, episode: Ended) -> None:
        if episode.id < self.num:
            super().ended(row, episode)

    def interrupted(self, row: int, episode: int, seed: int) -> None:
        if episode < self.num:
            super().interrupted(row, episode, seed)
            if episode in self._results:
                self._on_lost(episode)

    @property
    def waiting(self) -> bool:
        return True

    @property
    def done(self) -> bool:
        return False
