"""Toys of control: a chain, matching, reaching, an image, observation groups."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import numpy as np

from rollbus_wire.env import Arrays
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

from ._toy_base import Advance, Toy, draws, one_hot


class Chain(Toy):
    """States 0 to n-1, actions left and right. Every step costs 0.1, reaching the last state
    gives 1 and ends the episode. Episodes start anywhere but there."""

    COST = 0.1

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(num_rows)
        self.size = config.size or 5
        self.place = self.array("place", (), np.int64)
        distances = np.arange(1, self.size)
        self.spec = EnvSpec(
            name="toy-discrete",
            observation={"obs": ArraySpec("float32", (self.size,), 0.0, 1.0)},
            action=ActionSpec("discrete", num=[2]),
            time_limit=config.length or 4 * self.size,
            has_success=True,
            optimal_return=float(np.mean(1.0 - self.COST * (distances - 1))),
        )

    def begin(self, rows: np.ndarray, options: Sequence[Any]) -> None:
        self.place[rows] = (draws(self.seed[rows], 1)[:, 0] * (self.size - 1)).astype(np.int64)

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        place = np.clip(self.place[rows] + 2 * actions - 1, 0, self.size - 1)
        self.place[rows] = place
        goal = place == self.size - 1
        return np.where(goal, 1.0, -self.COST), goal, goal.copy()

    def look(self, rows: np.ndarray) -> Arrays:
        return {"obs": one_hot(self.place[rows], self.size)}

    def expert(self, rows: np.ndarray) -> np.ndarray:
        return np.ones(len(rows), np.int64)


class Match(Toy):
    """Each step shows two classes; the reward is the part of them that the action names."""

    NUM = (3, 4)

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(num_rows)
        self.length = config.length or 4
        self.perfect = self.array("perfect", (), np.bool_)
        self.spec = EnvSpec(
            name="toy-multi-discrete",
            observation={"obs": ArraySpec("float32", (sum(self.NUM),), 0.0, 1.0)},
            action=ActionSpec("multi_discrete", shape=(len(self.NUM),), num=list(self.NUM)),
            has_success=True,
            success="at_end",
            optimal_return=float(self.length),
        )

    def begin(self, rows: np.ndarray, options: Sequence[Any]) -> None:
        self.perfect[rows] = True

    def shown(self, rows: np.ndarray, time: np.ndarray) -> np.ndarray:
        """int64 [R, 2]: the classes shown at ``time``."""
        return (draws(self.seed[rows], len(self.NUM), time) * self.NUM).astype(np.int64)

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        right = actions == self.shown(rows, self.time[rows] - 1)
        self.perfect[rows] &= right.all(1)
        return right.mean(1), self.time[rows] >= self.length, self.perfect[rows]

    def look(self, rows: np.ndarray) -> Arrays:
        shown = self.shown(rows, self.time[rows])
        parts = [one_hot(shown[:, i], num) for i, num in enumerate(self.NUM)]
        return {"obs": np.concatenate(parts, 1)}

    def expert(self, rows: np.ndarray) -> np.ndarray:
        return self.shown(rows, self.time[rows])


class Reach(Toy):
    """A point in [-1, 1]^d moves by a tenth of the action towards a goal 0.8 away per axis.

    The reward is minus the mean distance over the axes after the move; the hub's time limit ends
    the episode. The best action moves each axis by its distance, at most 0.2. Options of a reset:
    ``distance`` (0 to 1.6) and ``gain`` (how far an action of 1 moves).
    """

    OPTIONS = ("distance", "gain")
    DISTANCE, GAIN, LIMIT = 0.8, 0.1, 2.0

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(num_rows)
        dims, length = config.dims, config.length or 10
        self.place = self.array("place", (dims,), np.float64)
        self.goal = self.array("goal", (dims,), np.float64)
        self.gain = self.array("gain", (1,), np.float64)
        stride = self.GAIN * self.LIMIT
        left = np.maximum(self.DISTANCE - stride * np.arange(1, length + 1), 0.0)
        self.spec = EnvSpec(
            name="toy-continuous",
            observation={
                "obs": ArraySpec(
                    "float32", (2 * dims,), -1.0, 1.0, names=_axes("place", dims) + _axes("goal", dims)
                )
            },
            action=ActionSpec(
                "continuous",
                shape=(dims,),
                low=[-self.LIMIT] * dims,
                high=[self.LIMIT] * dims,
                names=_axes("axis", dims),
            ),  # fmt: skip
            time_limit=length,
            has_success=True,
            success="at_end",
            optimal_return=-float(left.sum()),
        )

    def begin(self, rows: np.ndarray, options: Sequence[Any]) -> None:
        random = draws(self.seed[rows], 2 * self.place.shape[1]).reshape(len(rows), 2, -1)
        usual = {"distance": (self.DISTANCE, 0.0, 1.6), "gain": (self.GAIN, 0.0, 1.0)}
        chosen = self.chosen(rows, options, **usual)
        distance, self.gain[rows] = chosen["distance"][:, None], chosen["gain"][:, None]
        half = np.where(random[:, 0] < 0.5, -0.5, 0.5) * distance
        centre = (2 * random[:, 1] - 1) * (1.0 - distance / 2)
        self.place[rows], self.goal[rows] = centre - half, centre + half

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        place = np.clip(self.place[rows] + self.gain[rows] * actions.astype(np.float64), -1.0, 1.0)
        self.place[rows] = place
        distance = np.abs(place - self.goal[rows])
        return -distance.mean(1), np.zeros(len(rows), np.bool_), (distance < 0.05).all(1)

    def look(self, rows: np.ndarray) -> Arrays:
        both = np.concatenate([self.place[rows], self.goal[rows]], 1)
        return {"obs": both.astype(np.float32)}

    def expert(self, rows: np.ndarray) -> np.ndarray:
        away = (self.goal[rows] - self.place[rows]) / self.gain[rows]
        return np.clip(away, -self.LIMIT, self.LIMIT)


def _axes(what: str, dims: int) -> List[str]:
    return ["%s_%d" % (what, axis) for axis in range(dims)]


class SparseReach(Reach):
    """`Reach` in small steps; the only reward is 1 for being at the goal, which ends the episode.

    The goal is 8 full steps away per axis, 30 are allowed. Chance finds it in fewer than one episode of a
    thousand.
    """

    GAIN, LENGTH, NEAR = 0.05, 30, 0.05

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(config, num_rows)
        self.spec.name, self.spec.success = "toy-sparse-reach", "once"
        self.spec.time_limit, self.spec.optimal_return = config.length or self.LENGTH, 1.0

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        super().advance(rows, actions)
        there = (np.abs(self.place[rows] - self.goal[rows]) < self.NEAR).all(1)
        return there.astype(np.float32), there, there.copy()


class GoalReach(SparseReach):
    """`SparseReach` that shows its place and its goal apart; each step that does not reach it costs 1."""

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(config, num_rows)
        self.spec.name, self.spec.optimal_return = "toy-goal-reach", -7.0
        half = ArraySpec("float32", (config.dims,), -1.0, 1.0)
        self.spec.observation = {"place": half, "goal": half}

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        _, there, success = super().advance(rows, actions)
        return there - 1.0, there, success

    def look(self, rows: np.ndarray) -> Arrays:
        return {
            "place": self.place[rows].astype(np.float32),
            "goal": self.goal[rows].astype(np.float32),
        }


class TwoWays(SparseReach):
    """`SparseReach` whose expert goes to the goal in a part of its episodes, else as far the other way.

    What is observed does not tell which: cloning it succeeds about as often, reward can do better.
    """

    LENGTH = 16

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(config, num_rows)
        self.spec.name, self.right = "toy-two-ways", config.right
        self.aim = self.array("aim", (config.dims,), np.float64)

    def begin(self, rows: np.ndarray, options: Sequence[Any]) -> None:
        super().begin(rows, options)
        goes_right = draws(self.seed[rows], 1, 1) < self.right
        mirrored = np.clip(2 * self.place[rows] - self.goal[rows], -1.0, 1.0)
        self.aim[rows] = np.where(goes_right, self.goal[rows], mirrored)

    def expert(self, rows: np.ndarray) -> np.ndarray:
        away = (self.aim[rows] - self.place[rows]) / self.gain[rows]
        return np.clip(away, -self.LIMIT, self.LIMIT)


def goal_reached(place: np.ndarray, goal: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Reward and terminated [B] of `GoalReach` for places and goals [B, d]: `her_reward` of its recipe."""
    there = (np.abs(place - goal) < GoalReach.NEAR).all(1)
    return there - 1.0, there


class BrightSide(Toy):
    """An image one side of which is bright: name it (left, right, top, bottom). A new one per step."""

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(num_rows)
        self.size, self.length = config.size or 16, config.length or 4
        self.perfect = self.array("perfect", (), np.bool_)
        places = np.arange(self.size)
        first = np.broadcast_to(places < self.size // 2, (self.size, self.size))
        #: bool [4, size, size]
        self._masks = np.stack([first, ~first, first.T, ~first.T])
        shape = (self.size, self.size, 3)
        self.spec = EnvSpec(
            name="toy-image",
            observation={"image": ArraySpec("uint8", shape, 0.0, 255.0, layout="HWC", channels="RGB")},
            action=ActionSpec("discrete", num=[4]),
            has_success=True,
            success="at_end",
            optimal_return=float(self.length),
        )

    def begin(self, rows: np.ndarray, options: Sequence[Any]) -> None:
        self.perfect[rows] = True

    def side(self, rows: np.ndarray, time: np.ndarray) -> np.ndarray:
        """int64 [R]: the bright side at ``time``."""
        return (draws(self.seed[rows], 1, time)[:, 0] * 4).astype(np.int64)

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        right = actions == self.side(rows, self.time[rows] - 1)
        self.perfect[rows] &= right
        return right.astype(np.float32), self.time[rows] >= self.length, self.perfect[rows]

    def look(self, rows: np.ndarray) -> Arrays:
        time = self.time[rows]
        pixels = draws(self.seed[rows] + 1, self.size * self.size * 3, time)
        image = (pixels * 64).astype(np.uint8).reshape(len(rows), self.size, self.size, 3)
        image += (self._masks[self.side(rows, time)] * np.uint8(160))[..., None]
        return {"image": image}

    def expert(self, rows: np.ndarray) -> np.ndarray:
        return self.side(rows, self.time[rows])


class Groups(Toy):
    """The policy sees which of three actions is right; only a critic sees the bonus, plus or minus
    a half, that the next step gives whatever is done, and the time."""

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(num_rows)
        self.length = config.length or 4
        self.perfect = self.array("perfect", (), np.bool_)
        self.spec = EnvSpec(
            name="toy-dict",
            observation={
                "cue": ArraySpec("float32", (3,), 0.0, 1.0),
                "bonus": ArraySpec("float32", (1,), -0.5, 0.5),
                "time": ArraySpec("float32", (1,), 0.0, 1.0),
            },
            groups={"policy": ["cue"], "privileged": ["cue", "bonus", "time"]},
            action=ActionSpec("discrete", num=[3]),
            has_success=True,
            success="at_end",
            optimal_return=float(self.length),
        )

    def begin(self, rows: np.ndarray, options: Sequence[Any]) -> None:
        self.perfect[rows] = True

    def cue(self, rows: np.ndarray, time: np.ndarray) -> np.ndarray:
        """int64 [R]: the right action at ``time``."""
        return (draws(self.seed[rows], 1, time)[:, 0] * 3).astype(np.int64)

    def bonus(self, rows: np.ndarray, time: np.ndarray) -> np.ndarray:
        """float64 [R]: what the step that begins at ``time`` gives on top."""
        return np.where(draws(self.seed[rows], 2, time)[:, 1] < 0.5, -0.5, 0.5)

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        before = self.time[rows] - 1
        right = actions == self.cue(rows, before)
        self.perfect[rows] &= right
        reward = right + self.bonus(rows, before)
        return reward, self.time[rows] >= self.length, self.perfect[rows]

    def look(self, rows: np.ndarray) -> Arrays:
        time = self.time[rows]
        return {
            "cue": one_hot(self.cue(rows, time), 3),
            "bonus": self.bonus(rows, time)[:, None].astype(np.float32),
            "time": (time / self.length)[:, None].astype(np.float32),
        }

    def expert(self, rows: np.ndarray) -> np.ndarray:
        return self.cue(rows, self.time[rows])
