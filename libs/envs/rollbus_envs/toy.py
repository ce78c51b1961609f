"""Small environments with known best returns, vectorised in numpy, for tests and first steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List

from rollbus_wire.env import Env
from rollbus_wire.errors import ConfigError

from ._toy_base import Toy
from ._toy_control import BrightSide, Chain, GoalReach, Groups, Match, Reach, SparseReach, TwoWays
from ._toy_lane import Lane
from ._toy_sequence import Counter, Recall, Reversal
from ._toy_tokens import Digits, Lookup

needs: List[str] = []

KINDS: Dict[str, Any] = {
    "discrete": Chain,
    "multi_discrete": Match,
    "continuous": Reach,
    "sparse_reach": SparseReach,
    "goal_reach": GoalReach,
    "lane": Lane,
    "two_ways": TwoWays,
    "image": BrightSide,
    "dict": Groups,
    "token": Reversal,
    "digits": Digits,
    "tool": Lookup,
    "memory": Recall,
    "counter": Counter,
}


def _option(default: Any, description: str, unit: str = "") -> Any:
    metadata = {"description": description, "unit": unit}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Config:
    """Which toy, and its sizes."""

    kind: str = _option("discrete", "One of: " + ", ".join(KINDS) + ".")
    size: int = _option(
        0, "States (discrete), pixels per side (image), tokens (token), digits (digits); 0: the kind's own."
    )
    length: int = _option(0, "Steps of an episode; 0: the kind's own.", "steps")
    dims: int = _option(2, "Axes (continuous, sparse_reach, goal_reach, two_ways).")
    vocabulary: int = _option(6, "Different tokens (token).")
    confused: float = _option(0.0, "Share of episodes whose expert takes a word for the other one (digits).")
    tool: bool = _option(True, "Whether a call of the tool has a result (tool).")
    lengths: List[int] = _option([5, 3, 8], "Steps of episode 0, 1, ... in turn (counter).", "steps")
    success_episodes: List[int] = _option([], "Episodes of each row that succeed (counter).")
    success_seeds: List[int] = _option([], "Seeds whose episode succeeds (counter).")
    success_length: int = _option(5, "Steps of an episode that succeeds (counter).", "steps")
    right: float = _option(0.5, "Part of the expert's episodes that go to the goal (two_ways).")
    expert: bool = _option(
        False, "Observe what the best policy would do, as expert_action (all but counter)."
    )


def make(config: Config, num_rows: int) -> Env:
    """``num_rows`` rows of the toy; raises `ConfigError` with the setting that does not fit."""
    kind = KINDS.get(config.kind)
    if kind is None:
        raise ConfigError("env.kind %r is not one of: %s" % (config.kind, ", ".join(KINDS)))
    for name, least in (("dims", 1), ("vocabulary", 2), ("success_length", 1), ("length", 0)):
        if getattr(config, name) < least:
            raise ConfigError("env.%s is %d; at least %d" % (name, getattr(config, name), least))
    if not 0.0 <= config.confused <= 1.0:
        raise ConfigError("env.confused is %s; a share between 0 and 1" % config.confused)
    if config.size < 0 or config.size == 1:
        raise ConfigError("env.size is %d; 0 for the kind's own, else at least 2" % config.size)
    if not config.lengths or min(config.lengths) < 1:
        raise ConfigError("env.lengths is %s; it needs lengths of at least 1" % config.lengths)
    env: Toy = kind(config, num_rows)
    if config.expert:
        if kind.expert is Toy.expert:
            raise ConfigError("env.expert is true, but env.kind %r has no expert" % config.kind)
        env.show_expert()
    return env
