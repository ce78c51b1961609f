"""A recipe as YAML with every value, one key a line, each with its origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from rollbus_core.config.recipe import Recipe
from rollbus_core.config.source import RESOLVED_MARK, Dumper
from rollbus_wire import __version__


def to_yaml(recipe: Recipe, origins: Mapping[str, str]) -> str:
    """Loading this text gives the same recipe and the same origins."""
    lines = [f"{RESOLVED_MARK} of Rollbus {__version__}; comments say where values come from."]
    for section, settings in recipe.model_dump().items():
        lines.append(f"{section}:")
        lines += [
            f"  {key}: {_inline(value)}  # {origins[f'{section}.{key}']}" for key, value in settings.items()
        ]
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    text: str = yaml.dump(
        value, Dumper=Dumper, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")
