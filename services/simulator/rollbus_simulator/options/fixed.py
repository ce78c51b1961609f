"""The same options for every episode.

options: {name: fixed, values: {distance: 0.4}}
"""

from __future__ import annotations

from rollbus_simulator.options._draws import draws_any
from rollbus_simulator.options.base import Drawn, OptionConfig, OptionSource
from rollbus_wire.errors import ConfigError


class Config(OptionConfig):
    """``values``: option -> value."""


def make(config: Config) -> OptionSource:
    """Raises `ConfigError` for a value that is drawn."""
    if draws := draws_any(config.values):
        raise ConfigError(f"values.{draws[0]} is drawn, but fixed draws nothing; set name: random")
    return Drawn(config.values)
