"""Toys of sequences: tokens, memory, and a counter for audits."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from rollbus_wire.env import Arrays
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

from ._toy_base import Advance, Toy, draws, one_hot


class Reversal(Toy):
    """A prompt of digits; the one action is a completion. Reward 1 for the exact reversal, else 0."""

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(num_rows)
        self.size, self.vocabulary = config.size or 2, config.vocabulary
        top = float(self.vocabulary - 1)
        self.spec = EnvSpec(
            name="toy-token",
            observation={"prompt": ArraySpec("int64", (self.size,), 0.0, top, layout="tokens")},
            action=ActionSpec("multi_discrete", shape=(self.size,), num=[self.vocabulary] * self.size),
            has_success=True,
            optimal_return=1.0,
        )

    def look(self, rows: np.ndarray) -> Arrays:
        prompt = draws(self.seed[rows], self.size) * self.vocabulary
        return {"prompt": prompt.astype(np.int64)}

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        right = (actions == self.look(rows)["prompt"][:, ::-1]).all(1)
        return right.astype(np.float32), np.ones(len(rows), np.bool_), right

    def expert(self, rows: np.ndarray) -> np.ndarray:
        return self.look(rows)["prompt"][:, ::-1]


class Recall(Toy):
    """A cue is shown at the first step only and must be named at the last, which is announced.

    Reward 1 for the right action at the last step. Without memory the best return is 1/2.
    """

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(num_rows)
        self.length = config.length or 6
        self.spec = EnvSpec(
            name="toy-memory",
            observation={"obs": ArraySpec("float32", (3,), 0.0, 1.0)},
            action=ActionSpec("discrete", num=[2]),
            has_success=True,
            optimal_return=1.0,
        )

    def cue(self, rows: np.ndarray) -> np.ndarray:
        """int64 [R]: what is shown at the first step."""
        return (draws(self.seed[rows], 1)[:, 0] * 2).astype(np.int64)

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        last = self.time[rows] >= self.length
        right = last & (actions == self.cue(rows))
        return right.astype(np.float32), last, right

    def look(self, rows: np.ndarray) -> Arrays:
        time = self.time[rows]
        shown = one_hot(self.cue(rows), 2) * (time == 0)[:, None]
        announced = (time >= self.length - 1)[:, None].astype(np.float32)
        return {"obs": np.concatenate([shown, announced], 1).astype(np.float32)}

    def expert(self, rows: np.ndarray) -> np.ndarray:
        return self.cue(rows)


class Counter(Toy):
    """Counts: the reward of step t is t, the observation is [episode, step, row].

    Episode k of a row (its k-th reset, or ``options["episode"]``) lasts ``lengths[k % n]`` steps. An
    episode in ``success_episodes`` or with a seed in ``success_seeds`` lasts ``success_length``
    steps and succeeds at its last one. The action has no effect.
    """

    OPTIONS = ("episode",)

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(num_rows)
        self.lengths = np.array(config.lengths, np.int64)
        self.success_length = config.success_length
        self.success_episodes = np.array(config.success_episodes, np.int64)
        self.success_seeds = np.array(config.success_seeds, np.int64)
        self.episode = self.array("episode", (), np.int64)
        self.wins = self.array("wins", (), np.bool_)
        self.episode[:] = -1
        known = not len(self.success_episodes) and not len(self.success_seeds)
        mean = float(np.mean(self.lengths * (self.lengths + 1) / 2))
        self.spec = EnvSpec(
            name="toy-counter",
            observation={"obs": ArraySpec("float32", (3,), 0.0)},
            action=ActionSpec("discrete", num=[2]),
            # The number of the episode decides, not the seed.
            seeding="none",
            has_success=True,
            success="at_end",
            optimal_return=mean if known else None,
        )

    def begin(self, rows: np.ndarray, options: Sequence[Any]) -> None:
        self.episode[rows] += 1
        for row, option in zip(rows.tolist(), options):
            if option and "episode" in option:
                self.episode[row] = int(option["episode"])
        self.wins[rows] = np.isin(self.episode[rows], self.success_episodes) | np.isin(
            self.seed[rows], self.success_seeds
        )

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        time, wins = self.time[rows], self.wins[rows]
        length = self.lengths[self.episode[rows] % len(self.lengths)]
        ended = time >= np.where(wins, self.success_length, length)
        return time.astype(np.float32), ended, ended & wins

    def look(self, rows: np.ndarray) -> Arrays:
        columns = (np.maximum(self.episode[rows], 0), self.time[rows], rows)
        return {"obs": np.stack(columns, 1).astype(np.float32)}
