"""A recipe as planning runs it: without end, evaluations, checkpoints and HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

ENDLESS = 1 << 50
_QUIET: dict[str, dict[str, Any]] = {
    "run": {"total_steps": ENDLESS, "wall_limit_s": 0.0, "audit": False, "resume": "never"},
    "eval": {"every_steps": 0, "every_updates": 0, "start_return": None},
    "stop_when": {"eval_return": None, "episodes": 0},
    "checkpoint": {"every_steps": 0, "every_s": 0.0},
    "broker": {"http": ""},
}


def quiet(resolved: Any, sections: Mapping[str, Mapping[str, Any]]) -> Any:
    """``resolved`` with ``sections`` changed and nothing but training; the feed stays as it is."""
    recipe = resolved.recipe
    changed = {
        name: getattr(recipe, name).model_copy(update=dict(new))
        for name, new in {**_QUIET, **sections}.items()
    }
    return dataclasses.replace(resolved, recipe=recipe.model_copy(update=changed))
