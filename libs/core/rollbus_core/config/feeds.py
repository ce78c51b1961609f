"""What a recipe's algorithm is fed, and whether there is somebody to feed it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rollbus_core.config.nearest import hint
from rollbus_core.config.recipe import Recipe
from rollbus_core.config.source import COMMAND_LINE, DEFAULT
from rollbus_core.feed import TRAINING_TABLE, Feed

Origins = Mapping[str, str]


def streams(recipe: Recipe) -> dict[str, Feed]:
    """Stream -> feed, the main one first. Raises `ValueError` where settings do not go together."""
    env = recipe.env
    found: dict[str, Feed] = recipe.algorithm.feeds(
        num_envs=env.num_envs, num_slices=env.num_slices, deterministic=recipe.run.deterministic
    )
    return {
        name: _with_late(recipe, name, feed.offered(recipe.policy.offers)) for name, feed in found.items()
    }


def _with_late(recipe: Recipe, name: str, feed: Feed) -> Feed:
    """``feed``, whose table waits for late rewards if it is the one that actors fill."""
    learner = recipe.learner
    columns = tuple(reward.label for reward in learner.rewards if reward.kind == "late")
    if name != TRAINING_TABLE or not columns:
        return feed
    found = {"late_columns": columns, "late_deadline_s": learner.late_deadline_s,
             "late_missing": learner.late_missing}  # fmt: skip
    return feed.model_copy(update={"table": feed.table.model_copy(update=found)})


def feeds(recipe: Recipe, origins: Origins) -> tuple[dict[str, Feed], list[str]]:
    """Stream -> feed, as the algorithm computes them from the recipe, or why it cannot."""
    env = recipe.env
    try:
        result = streams(recipe)
    except ValueError as error:
        given = f"env.num_envs = {env.num_envs}, env.num_slices = {env.num_slices}"
        where, others = _blame(str(error), origins)
        return {}, [f"{where}: algorithm {recipe.algorithm.name!r} with {given}: {error}{others}"]
    return result, [f"{located(key, origins)}: {text}" for key, text in _data(recipe, result, origins)]


def _data(recipe: Recipe, feeds: Mapping[str, Feed], origins: Origins) -> Iterator[tuple[str, str]]:
    """Every table has somebody who fills it, and a run that collects nothing has an end."""
    tables = [name for name in feeds if name != TRAINING_TABLE]
    sources, name = recipe.data.sources, recipe.algorithm.name
    for source in sources:
        if source.table and source.table not in tables:
            known = ", ".join(tables) or "none"
            yield (
                "data.sources",
                f"table {source.table!r} of {source.path} is not one that data can fill for algorithm "
                f"{name!r} ({known}){hint(source.table, tables)}",
            )
    if sources and not tables:
        yield "data.sources", f"has no effect, because algorithm {name!r} learns from no data set"
    for table in tables:
        if not any(source.table in ("", table) for source in sources):
            yield (
                "data.sources",
                f"nothing fills table {table!r}, which algorithm {name!r} learns from; give the folder of a "
                "dataset (rollbus collect makes one)",
            )
    chunk = getattr(recipe.policy, "chunk", 1)
    if tables and chunk > 1 and not recipe.algorithm.imitates:
        yield (
            "policy.chunk",
            f"is {chunk}, but data holds the reward of every single action, so {name!r} cannot learn the "
            "value of several from it; set policy.chunk: 1, or clone with algorithm.name: sft",
        )
    yield from (
        _collected(recipe, feeds[TRAINING_TABLE]) if TRAINING_TABLE in feeds else _data_alone(recipe, origins)
    )


def _collected(recipe: Recipe, feed: Feed) -> Iterator[tuple[str, str]]:
    if recipe.run.deterministic and feed.table.sampler == "replay":
        yield (
            "run.deterministic",
            f"is true, but algorithm {recipe.algorithm.name!r} replays what actors collect, and what a draw "
            "can find depends on when chunks arrive; set false",
        )


def _data_alone(recipe: Recipe, origins: Origins) -> Iterator[tuple[str, str]]:
    name = recipe.algorithm.name
    if any(reward.kind == "late" for reward in recipe.learner.rewards):
        yield (
            "learner.rewards",
            f"algorithm {name!r} collects nothing, so nobody can annotate it; remove late:",
        )
    if not recipe.run.total_updates:
        yield (
            "run.total_updates",
            f"is 0, but algorithm {name!r} only learns from data, so no steps end the run; set it",
        )
    for key in ("run.total_steps", "eval.every_steps", "checkpoint.every_steps"):
        if origins.get(key, DEFAULT) != DEFAULT:
            other = key.replace("steps", "updates")
            yield key, f"has no effect, because algorithm {name!r} collects no steps; set {other}"


def _blame(text: str, origins: Origins) -> tuple[str, str]:
    """(the key of ``text`` that most likely has to change, where the other keys come from)."""
    keys = [key for key in dict.fromkeys(re.findall(r"\b\w+\.\w+\b", text)) if key in origins]
    if not keys:
        return located("algorithm.name", origins), ""
    first = min(keys, key=lambda key: (COMMAND_LINE not in origins[key], origins[key] == DEFAULT))
    others = ", ".join(f"{key} ({origins[key]})" for key in keys if key != first)
    return located(first, origins), f"; the other keys: {others}" if others else ""


def located(key: str, origins: Origins) -> str:
    """``key`` with where its value was set, as problems begin."""
    origin = origins.get(key, DEFAULT)
    return f"{key} ({origin})" if origin == DEFAULT else f"{origin}: {key}"
