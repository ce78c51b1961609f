"""A function of somebody's own that makes environments, as a plug-in: ``env.name: my_env:make``."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable, Dict

from rollbus_wire.env import Env, made_by
from rollbus_wire.errors import ConfigError


@dataclass
class Config:
    """Arguments of the function."""

    kwargs: Dict[str, Any] = field(
        default_factory=dict, metadata={"description": "Arguments of the function.", "unit": ""}
    )


def plugin(function: Callable[..., Any]) -> SimpleNamespace:
    """``function`` as a plug-in; it makes one environment, or takes the number of rows and makes all."""

    def make(config: Config, num_rows: int) -> Env:
        try:
            return made_by(partial(function, **config.kwargs), num_rows)
        except TypeError as error:
            if not config.kwargs:
                raise
            raise ConfigError("env.kwargs %s: %s" % (config.kwargs, error)) from error

    def problem(config: Config) -> str:
        """Why the function does not take ``config.kwargs``; empty: it does, or nobody can tell."""
        try:
            inspect.signature(function).bind_partial(**config.kwargs)
        except TypeError as error:
            return "%s%s: %s" % (getattr(function, "__name__", "it"), inspect.signature(function), error)
        except ValueError:
            pass
        return ""

    return SimpleNamespace(Config=Config, needs=(), make=make, problem=problem, checked="kwargs")
