"""What a source of reset options is, and how one is made from `env.options` or `eval.options`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rollbus_core.config.problems import first_problem
from rollbus_simulator.options._draws import drawn
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError

PACKAGE = "rollbus_simulator.options"


@dataclass(frozen=True)
class Start:
    """What one episode begins with."""

    #: Given to the environment's reset.
    options: dict[str, Any]
    #: The level it belongs to; -1: the source has none.
    level: int = -1


@dataclass(frozen=True)
class Result:
    """What became of an episode: ``success`` by the environment's own rule, None without a signal."""

    ret: float
    length: int
    success: bool | None


class OptionConfig(BaseModel):
    """Settings that every source has; ``name`` says which file it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    values: dict[str, Any] = {}


class OptionSource:
    """Gives options to episodes and hears how they ended."""

    #: Whether outcomes change what it gives; if not, `draw` is a function of the seed alone.
    adapts: ClassVar[bool] = False

    def draw(self, seed: int) -> Start:
        """What the episode with this seed begins with."""
        raise NotImplementedError

    def ended(self, start: Start, result: Result) -> None:
        """An episode that began with ``start`` reached its end."""

    def numbers(self) -> dict[str, float]:
        """What people want to know of it, for the heartbeats of the hub."""
        return {}

    def state(self) -> dict[str, Any]:
        """Plain data that `load` goes on from."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""


class Drawn(OptionSource):
    """Options from ``values`` alone, each a value or how one is drawn."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Raises `ConfigError`."""
        self._drawn = drawn(values)

    def draw(self, seed: int) -> Start:
        return Start(self._drawn(seed))


def make(settings: Mapping[str, Any], key: str = "env.options") -> OptionSource | None:
    """The source that ``settings`` of the recipe's ``key`` name; None if they are empty.

    A file of this folder, the dotted path of a module with `Config` and `make`, or ``module:factory``, which
    gets the other settings as keywords. Raises `ConfigError`.
    """
    if not settings:
        return None
    name = settings.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{key}: has no name; sources are {', '.join(lookup.names(PACKAGE))}")
    try:
        if ":" in name:
            others = {k: v for k, v in settings.items() if k != "name"}
            source: OptionSource = lookup.function(name, f"{key}.name")(**others)
        else:
            module = lookup.find(PACKAGE, name)
            source = module.make(module.Config(**settings))
    except ValidationError as error:
        raise ConfigError(f"{key}.{first_problem(error)}") from None
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{key}: {error}") from None
    return source


def fixed_by_seed(settings: Mapping[str, Any], key: str) -> OptionSource | None:
    """As `make`, for exact lists of episodes. Raises `ConfigError` for a source that answers to outcomes."""
    source = make(settings, key)
    if source is not None and source.adapts:
        raise ConfigError(
            f"{key}: {settings['name']} answers to outcomes, so what an episode begins with would depend on "
            "those before it; name a source that draws by the episode's seed (fixed, random)"
        )
    return source
