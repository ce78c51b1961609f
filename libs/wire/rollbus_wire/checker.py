"""What the checks of `check_env` share: runs of an environment, and comparing them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List

import numpy as np

from .actions import ActionBounds
from .env import Env, StepResult, made_by
from .spec import ActionSpec, EnvSpec

Arrays = Dict[str, np.ndarray]


@dataclass
class Episode:
    """The first episode of each row of one run: what went in and what came out."""

    first: Arrays
    steps: List[StepResult]
    #: Steps of each row's episode; 0: it did not end.
    lengths: np.ndarray


class Checker:
    """Runs and their results; the checks are functions over it."""

    def __init__(self, make_env: Callable[..., Any], num_rows: int, steps: int) -> None:
        self.make_env, self.num_rows, self.steps = make_env, num_rows, steps
        self.env = self.make()
        self.spec: EnvSpec = self.env.spec
        self.num_rows = self.env.num_rows
        self.rows = np.arange(self.num_rows, dtype=np.int32)
        self.seeds = np.arange(self.num_rows, dtype=np.int64) + 1234
        generator = np.random.RandomState(7)
        bounds = ActionBounds(self.spec.action)
        self.actions = [
            bounds(random_actions(self.spec.action, self.num_rows, generator)) for _ in range(steps)
        ]

    def make(self) -> Env:
        """A new environment."""
        factory, count = self.make_env, self.num_rows
        env = made_by(factory, count)
        env.step = _strict(env.step)  # type: ignore[method-assign]
        return env

    def run(self, env: Env, rows: np.ndarray, observe: bool = True) -> Episode:
        """Step ``rows`` with this checker's actions until each has ended once, or ``steps``."""
        first = env.reset(rows, self.seeds[rows], [])
        lengths, results = np.zeros(len(rows), np.int64), []
        limit = self.spec.time_limit or self.steps
        active = np.arange(len(rows))
        for t in range(min(self.steps, limit)):
            result = env.step(rows[active], self.actions[t][rows[active]], observe)
            if not observe:
                result = result._replace(obs=env.observe(rows[active]))
            results.append(_spread(result, active, len(rows)))
            ended = np.asarray(result.terminated) | np.asarray(result.truncated)
            lengths[active[ended]] = t + 1
            # A scene ends as a whole: its rows cannot be stepped apart.
            active = active[:0] if ended.any() and self.spec.seeding == "scene" else active[~ended]
            if not len(active):
                break
        return Episode(first, results, lengths)


def _strict(step: Callable[..., StepResult]) -> Callable[..., StepResult]:
    """``step`` that raises what a row of it raised."""

    def raising(rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        result = step(rows, actions, observe)
        for error in (getattr(result, "failed", None) or {}).values():
            raise error
        return result

    return raising


def random_actions(spec: ActionSpec, num_rows: int, generator: Any) -> np.ndarray:
    """Valid actions [R, ...], uniform within the bounds; normal where there are none."""
    shape = (num_rows,) + spec.shape
    if spec.kind != "continuous":
        draws = generator.random_sample(shape) * np.array(spec.num, float).reshape(spec.shape)
        return draws.astype(np.int64)
    low = np.array(spec.low, np.float32).reshape(spec.shape)
    high = np.array(spec.high, np.float32).reshape(spec.shape)
    bounded = np.isfinite(low) & np.isfinite(high)
    span = np.where(bounded, high - np.where(bounded, low, 0), 0)
    uniform = np.where(bounded, low, 0) + generator.random_sample(shape) * span
    free = np.clip(generator.standard_normal(shape), low, high)
    return np.clip(np.where(bounded, uniform, free).astype(np.float32), low, high)


def _spread(result: StepResult, active: np.ndarray, count: int) -> StepResult:
    """``result`` of the ``active`` rows as arrays over all; the rest is zero."""

    def over_all(values: np.ndarray) -> np.ndarray:
        values = np.asarray(values)
        out = np.zeros((count,) + values.shape[1:], values.dtype)
        out[active] = values
        return out

    obs = {key: over_all(value) for key, value in (result.obs or {}).items()}
    success = None if result.success is None else over_all(result.success)
    return StepResult(
        obs,
        over_all(result.reward),
        over_all(result.terminated),
        over_all(result.truncated),
        success,
    )


def equal(a: Any, b: Any) -> bool:
    """Equal shape and values; NaN equals NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b) or (a.dtype.kind == "f" and ((a == b) | ((a != a) & (b != b))).all()))


def only(episode: Episode, row: int) -> Episode:
    """The episode of one row, cut where it ended."""
    at = slice(row, row + 1)
    count = int(episode.lengths[row]) or len(episode.steps)
    steps = [
        StepResult(
            {k: v[at] for k, v in (s.obs or {}).items()}, s.reward[at], s.terminated[at],
            s.truncated[at], None if s.success is None else s.success[at],
        )
        for s in episode.steps[:count]
    ]  # fmt: skip
    return Episode({k: v[at] for k, v in episode.first.items()}, steps, episode.lengths[at])


def compare(a: Episode, b: Episode) -> str:
    """Where two episodes first differ, or ""."""
    for key in a.first:
        if not equal(a.first[key], b.first[key]):
            return "observation %r at reset" % key
    for t, (one, two) in enumerate(zip(a.steps, b.steps)):
        for key in one.obs or {}:
            if not equal((one.obs or {})[key], (two.obs or {})[key]):
                return "observation %r at step %d" % (key, t + 1)
        for name in ("reward", "terminated", "truncated", "success"):
            left, right = getattr(one, name), getattr(two, name)
            if (left is None) != (right is None) or (left is not None and not equal(left, right)):
                return "%s at step %d: %s and %s" % (name, t + 1, left, right)
    if not equal(a.lengths, b.lengths):
        return "episode lengths %s and %s" % (a.lengths.tolist(), b.lengths.tolist())
    return ""
