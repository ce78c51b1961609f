"""Values of options: as they are, or drawn by the episode's seed.

    distance: 0.4                        always this
    distance: {uniform: [0.1, 0.8]}      gain: {log_uniform: [0.5, 2.0]}
    obstacles: {integer: [0, 3]}         side: {choice: [left, right]}

Each key has a stream of its own: what it gets depends on the seed and its name, on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollbus_core.rng import decision_seeds, stream, uniform
from rollbus_wire.errors import ConfigError

#: Gives a value for a number in [0, 1).
Draw = Callable[[float], Any]


def chance(seed: int, name: str) -> float:
    """In [0, 1): a function of the episode's seed and ``name``."""
    seeds = decision_seeds(stream(0, f"options/{name}"), np.array([seed]), np.zeros(1, np.int64))
    return float(uniform(seeds, 1)[0, 0])


def drawn(values: Mapping[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Seed -> options. Raises `ConfigError` with the value that is no draw."""
    draws = {key: _KINDS[kind](key, value[kind]) for key, value in values.items() if (kind := _kind(value))}
    fixed = {key: value for key, value in values.items() if key not in draws}
    return lambda seed: fixed | {key: draw(chance(seed, key)) for key, draw in draws.items()}


def draws_any(values: Mapping[str, Any]) -> list[str]:
    """Keys of ``values`` that are drawn."""
    return [key for key, value in values.items() if _kind(value)]


def _kind(value: Any) -> str:
    """How ``value`` is drawn; empty: it is one."""
    found = [*value] if isinstance(value, dict) else []
    return str(found[0]) if len(found) == 1 and found[0] in _KINDS else ""


def _uniform(key: str, given: Any) -> Draw:
    low, high = _bounds(key, "uniform", given)
    return lambda u: low + u * (high - low)


def _log_uniform(key: str, given: Any) -> Draw:
    low, high = _bounds(key, "log_uniform", given)
    if low <= 0:
        raise ConfigError(f"{key}: log_uniform begins above 0, not at {low}")
    return lambda u: low * math.exp(u * math.log(high / low))


def _integer(key: str, given: Any) -> Draw:
    low, high = _bounds(key, "integer", given)
    if low != int(low) or high != int(high):
        raise ConfigError(f"{key}: integer is between whole numbers, came {given!r}")
    return lambda u: int(low) + int(u * (int(high) - int(low) + 1))


def _choice(key: str, given: Any) -> Draw:
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{key}: choice is a list of values, came {given!r}")
    return lambda u: given[int(u * len(given))]


def _bounds(key: str, kind: str, given: Any) -> tuple[float, float]:
    numbers = isinstance(given, list) and all(type(n) in (int, float) and math.isfinite(n) for n in given)
    if not numbers or len(given) != 2 or not given[0] < given[1]:
        raise ConfigError(f"{key}: {kind} is [low, high] with low below high, came {given!r}")
    return given[0], given[1]


_KINDS: dict[str, Callable[[str, Any], Draw]] = {
    "uniform": _uniform, "log_uniform": _log_uniform, "integer": _integer, "choice": _choice,
}  # fmt: skip
