"""Which processes a recipe makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbus_core.config.load import load
from rollbus_launch.session import layout


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], "broker-0 hub-0 actor-0 learner-0"),
        (["env.hubs=2", "actor.count=3"], "broker-0 hub-0 hub-1 actor-0 actor-1 actor-2 learner-0"),
        (
            ["deploy.processes=[broker, hub+actor+evaluator, learner]", "env.hubs=2", "actor.count=3"],
            "broker-0 hub+actor+evaluator-0 hub+actor-1 actor-2 learner-0",
        ),
        (
            ["deploy.processes=[broker+learner, actor + hub]", "env.hubs=2"],
            "broker+learner-0 actor+hub-0 hub-1",
        ),
    ],
)  # fmt: skip
def test_each_service_runs_as_often_as_the_recipe_says(
    settings: list[str], expected: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("env: {name: toy, num_envs: 8}\n")
    assert " ".join(p.name for p in layout(load(recipe, settings).recipe)) == expected
