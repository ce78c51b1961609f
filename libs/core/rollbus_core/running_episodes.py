"""Where the environments of a run stand, as data: running episodes and the actions taken in them.

A deterministic environment is what its seed and its actions made of it, so this is all that a checkpoint
needs to go on in mid-episode. The learner follows the chunks it applies, which makes the cut consistent:
every row stands where its last applied decision left it. Not part of it: the state of recurrent policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rollbus_core.checkpoints import ENVIRONMENTS


class RunningEpisodes:
    """Episode id -> environment actions so far [k, ...], one episode per row of the run."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, list[np.ndarray]]] = {}

    def applied(self, columns: Mapping[str, np.ndarray], actions: np.ndarray, lengths: Sequence[int]) -> None:
        """A chunk was applied: its ``columns`` [T, N] and the environment's ``actions`` [T, N, k, ...].

        Of a decision with k > 1 actions the first ``num_steps`` ran; a single one was repeated so often.
        """
        for row, length in enumerate(map(int, lengths)):
            if length:
                self._follow({name: columns[name][:length, row] for name in _COLUMNS}, actions[:length, row])

    def _follow(self, columns: Mapping[str, np.ndarray], actions: np.ndarray) -> None:
        episode = columns["episode"]
        last = int(episode[-1])
        if columns["terminated"][-1] or columns["truncated"][-1] or columns["interrupted"][-1]:
            self._rows[row_of(last)] = (last + 1, [])
            return
        inside = episode == last
        decided = zip(actions[inside], columns["num_steps"][inside])
        taken = np.concatenate([np.repeat(a, n, axis=0) if len(a) == 1 else a[:n] for a, n in decided])
        known, before = self._rows.get(row_of(last), (-1, []))
        self._rows[row_of(last)] = (last, [*before, taken] if known == last else [taken])

    def save(self, path: Path) -> None:
        """Write the episodes to ``path``."""
        arrays = {
            str(episode): np.concatenate(parts) if parts else np.zeros(0)
            for episode, parts in self._rows.values()
        }
        with open(path, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def load(self, episodes: Mapping[int, np.ndarray]) -> None:
        """Go on from what `read_episodes` gave."""
        self._rows = {row_of(e): (e, [actions] if len(actions) else []) for e, actions in episodes.items()}


def read_episodes(checkpoint: Path) -> dict[int, np.ndarray]:
    """Episode id -> actions of the running episodes in ``checkpoint``; empty if it holds none."""
    path = checkpoint / ENVIRONMENTS
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as arrays:
        return {int(name): arrays[name] for name in arrays.files}


def row_of(episode: int) -> int:
    """The global row of an episode (`rollbus_core.rng.episode_id`)."""
    return episode >> 28 & 0xFFFFF


_COLUMNS = ("episode", "num_steps", "terminated", "truncated", "interrupted")
