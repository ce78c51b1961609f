"""Brings the rows of a slice back into the middle of their episodes, by the actions taken in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rollbus_simulator.frames import Frames
from rollbus_simulator.running import Running
from rollbus_wire.errors import RollbusError
from rollbus_wire.messages import Arrays


class Replay:
    """Actions [k, ...] by place; ``step`` takes one step of some places. Nobody is told of the outcomes."""

    def __init__(
        self, name: str, actions: Mapping[int, np.ndarray], running: Running, frames: Frames,
        step: Callable[[np.ndarray, np.ndarray], None],
    ) -> None:  # fmt: skip
        self._name, self._running, self._frames, self._step = name, running, frames, step
        self._actions = {place: array for place, array in actions.items() if len(array)}
        self._done = dict.fromkeys(self._actions, 0)

    @property
    def over(self) -> bool:
        """Whether all actions were taken and their outcomes have come."""
        return not self._actions

    def forget(self, place: int) -> None:
        """The episode of ``place`` is cut."""
        self._actions.pop(place, None)

    def go_on(self, places: np.ndarray) -> np.ndarray:
        """``places`` have a new observation: those with actions left take one, the others are returned."""
        more = np.array([int(place) in self._actions for place in places], bool)
        moving = places[more]
        if moving.size:
            self._frames.push(moving)
            self._step(moving, np.stack([self._actions[int(p)][self._done[int(p)]] for p in moving]))
        return places[~more]

    def stepped(
        self, places: np.ndarray, flags: tuple[np.ndarray, np.ndarray, np.ndarray],
        success: np.ndarray | None, obs: Arrays | None,
    ) -> np.ndarray:  # fmt: skip
        """One step of ``places`` is done; those that are back where they were.

        Raises `RollbusError` for an episode that ends: it is another one than it was.
        """
        reward, terminated, truncated = flags
        done = terminated | truncated
        if done.any():
            raise RollbusError(
                f"slice {self._name}: the episodes of rows {places[done].tolist()} ended while they were "
                "replayed from the checkpoint, so the environment is not deterministic; run.resume=never "
                "begins anew"
            )
        assert obs is not None, "replayed steps are observed"
        self._running.advance(places, reward, success)
        self._frames.take(places, obs)
        for place in [p for p in map(int, places) if p in self._actions]:
            self._done[place] += 1
            if self._done[place] == len(self._actions[place]):
                del self._actions[place]
        return self.go_on(places)
