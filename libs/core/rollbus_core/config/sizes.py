"""Sizes that no run has, and too few rows for an environment: found before a process starts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rollbus_core.config import plugins
from rollbus_core.config.models import MAX_SEED
from rollbus_core.config.recipe import Recipe
from rollbus_wire.limits import MAX_PROCESSES, MAX_ROWS

#: Of one update.
MAX_SAMPLES = 1 << 31
MAX_FLOAT32 = 3.4028234663852886e38


def numbers(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Policies and learners count in float32; integers travel with 64 bits."""
    for section in type(recipe).model_fields:
        for key, value in getattr(recipe, section):
            if isinstance(value, int) and abs(value) > MAX_SEED:
                yield f"{section}.{key}", f"{value:,} is beyond 64 bits; at most {MAX_SEED:,}"
            if isinstance(value, float) and MAX_FLOAT32 < abs(value) < math.inf:
                yield f"{section}.{key}", f"{value:g} is beyond the range of float32, {MAX_FLOAT32:.3g}"


def rows(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """An environment may need several rows at once."""
    env, evaluation = recipe.env, recipe.eval
    if env.placement == "dial_in":
        return
    least, of_hub = plugins.least_rows(env), env.num_envs // env.hubs
    given = {"env.num_envs": env.num_envs // env.num_slices}
    if env.placement == "workers":
        given["env.workers"] = of_hub // max(1, min(env.workers, of_hub))
    given |= {"eval.num_envs": evaluation.num_envs, "eval.episodes": evaluation.episodes}
    unit = {"env.num_envs": "rows per slice (env.num_slices)", "env.workers": "rows per worker",
            "eval.num_envs": "rows", "eval.episodes": "episodes"}  # fmt: skip
    for key, num in given.items():
        if 1 < least > num:
            yield key, f"gives {num} {unit[key]}, but {env.name!r} with these settings needs {least}"


def counts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """More processes or rows than a run is made for are a slip of the keyboard."""
    env = recipe.env
    workers = env.workers * env.hubs if env.placement == "workers" else 0
    counts = {"actor.count": recipe.actor.count, "env.hubs": env.hubs, "env.workers": workers}
    for key, count in counts.items():
        if count > MAX_PROCESSES:
            yield (
                key,
                f"{count:,} processes, but no run has more than {MAX_PROCESSES:,} of one kind; set it lower: "
                "one process serves many rows at once (env.num_envs, actor.max_batch)",
            )
    if (per_slice := -(-env.num_envs // env.num_slices)) > MAX_ROWS:
        yield (
            "env.num_envs",
            f"{env.num_envs:,} rows in {env.num_slices:,} slices are {per_slice:,} rows per slice, at most "
            f"{MAX_ROWS:,}; set env.num_envs lower, or env.num_slices higher",
        )
    num_steps = getattr(recipe.algorithm, "num_steps", 0)
    if env.num_envs * num_steps > MAX_SAMPLES:
        yield (
            "algorithm.num_steps",
            f"{env.num_envs:,} rows x {num_steps:,} steps are more than {MAX_SAMPLES:,} samples at once; set "
            "algorithm.num_steps or env.num_envs lower",
        )
