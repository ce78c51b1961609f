"""Recipes of stages: resolved before anything runs, with names of stages where folders will stand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollbus_core.config.load import load


def resolved(recipe: str, overrides: Sequence[str]) -> Any:
    """The recipe's settings. Raises `ConfigError` with what is wrong."""
    return load(recipe, overrides).recipe


def data_overrides(folders: Mapping[str, str], labels: str = "") -> list[str]:
    """Data sets in ``folders`` (stage -> folder) as overrides; table by table where several are named so."""
    if not folders:
        return []
    more = f", labels: {labels}" if labels else ""
    return ["data.sources=[" + ", ".join(f"{{path: {folder}{more}}}" for folder in folders.values()) + "]"]


def reward_overrides(folders: Mapping[str, str], weights: Mapping[str, float]) -> list[str]:
    """Reward models of stages in ``folders``, each with its weight, as an override."""
    if not weights:
        return []
    each = [
        f"{{source: {folders[name]}, weight: {weight}, name: {re.sub(r'[^A-Za-z0-9_]', '_', name)}}}"
        for name, weight in weights.items()
    ]
    return ["learner.rewards=[" + ", ".join(each) + "]"]


def deterministic_overrides(recipe: str, overrides: Sequence[str]) -> list[str]:
    """What makes the recipe repeat bit by bit."""
    lag = getattr(resolved(recipe, overrides).algorithm, "max_lag", 0)
    return ["run.deterministic=true", *(["algorithm.max_lag=0"] if lag else [])]
