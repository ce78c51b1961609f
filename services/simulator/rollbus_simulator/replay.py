"""Brings the rows of a slice back into the middle of their episodes, by the actions taken in them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollbus_wire.errors import RollbusError


class Replay:
    """Actions [k, ...] by place, handed out step by step; nobody is told of the outcomes."""

    def __init__(self, actions: Mapping[int, np.ndarray]) -> None:
        self._actions = {place: array for place, array in actions.items() if len(array)}
        self._done = dict.fromkeys(self._actions, 0)

    def split(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``places`` with and without a step still to be taken."""
        more = np.array(
            [self._done.get(int(p), 0) < len(self._actions.get(int(p), ())) for p in places], bool
        )
        return places[more], places[~more]

    def take(self, places: np.ndarray) -> np.ndarray:
        """The next action of each of ``places``, [R, ...]."""
        chosen = [self._actions[int(p)][self._done[int(p)]] for p in places]
        for place in places:
            self._done[int(place)] += 1
        return np.stack(chosen)

    @property
    def over(self) -> bool:
        """Whether all actions were taken."""
        return all(self._done[place] == len(actions) for place, actions in self._actions.items())


def check_alive(done: np.ndarray, places: np.ndarray, name: str) -> None:
    """An episode that ends while it is replayed is another one than it was. Raises `RollbusError`."""
    if done.any():
        raise RollbusError(
            f"slice {name}: the episodes of rows {places[done].tolist()} ended while they were replayed from "
            "the checkpoint, so the environment is not deterministic; run.resume=never begins anew"
        )
