"""Domain randomisation: each episode draws its options by its own seed.

    options: {name: random, values: {distance: {uniform: [0.1, 0.8]}, side: {choice: [left, right]}}}

The same seed gives the same options on whatever row, hub and host, and in whatever order.
"""

from __future__ import annotations

from rollbus_simulator.options.base import Drawn, OptionConfig, OptionSource


class Config(OptionConfig):
    """``values``: option -> value, or how it is drawn (`_draws`)."""


def make(config: Config) -> OptionSource:
    """Raises `ConfigError`."""
    return Drawn(config.values)
