"""deploy.layout: auto: what is chosen, from which costs, and when nothing is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollbus_core.config.load import load
from rollbus_launch.planning import auto_layout
from rollbus_launch.planning.auto_layout import Costs, Measuring, choose, measured, remember

RECIPE = """
run: {total_steps: 1000}
env: {name: toy, kind: chain, num_envs: 12}
algorithm: {name: ppo, num_steps: 16, minibatches: 2}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A recipe with an empty cache; call it with overrides."""
    monkeypatch.setenv("ROLLBUS_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return lambda *overrides: load(path, overrides)


def test_one_process_collects_until_a_run_was_measured(recipe) -> None:
    choice = choose(recipe(), 2)
    assert choice.overrides == (
        "deploy.processes=[broker, hub+actor, learner]", "env.hubs=1", "actor.count=1", "env.num_slices=1",
    )  # fmt: skip
    assert "no run of this recipe was long enough" in choice.reason
    chosen = recipe(*choice.overrides).recipe
    assert chosen.deploy.processes == ["broker", "hub+actor", "learner"] and chosen.env.num_slices == 1


@pytest.mark.parametrize(
    ("collect_us", "update_us", "cores", "pairs"),
    [
        (20, 20, 2, 1),  # both cores are full already
        (60, 20, 2, 2),  # 1/60 with one; 2/80 with two
        (60, 55, 2, 1),  # 1/60 with one; 2/115 with two is not worth a process
        (60, 20, 8, 3),  # 1/20 of the learner is reached with three; four add nothing
        (1000, 1, 8, 6),  # 7 and 8 do not divide 12 rows
    ],
)
def test_processes_from_the_costs_of_the_last_run(recipe, collect_us, update_us, cores, pairs) -> None:
    remember(recipe(), [Costs(collect_us * 1e-6, update_us * 1e-6)])
    choice = choose(recipe(), cores)
    assert choice.overrides[1:] == (f"env.hubs={pairs}", f"actor.count={pairs}", f"env.num_slices={pairs}")
    assert f"{collect_us} us to collect and {update_us} us to learn" in choice.reason
    (kept,) = Path(os.environ["ROLLBUS_CACHE_DIR"]).rglob("*.run.json")
    assert f"those figures: {kept};" in choice.reason
    kept.unlink()
    assert "no run of this recipe was long enough" in choose(recipe(), cores).reason
    recipe(*choice.overrides)


def test_steps_per_s_by_hand() -> None:
    costs = Costs(60e-6, 20e-6)
    assert costs.steps_per_s(1, 2) == pytest.approx(1 / 60e-6)
    assert costs.steps_per_s(2, 2) == pytest.approx(2 / 80e-6)
    assert costs.steps_per_s(9, 99) == pytest.approx(1 / 20e-6)


@pytest.mark.parametrize(
    "setting",
    ["deploy.layout=stated", "env.num_slices=2", "env.hubs=1", "actor.count=1",
     "deploy.processes=[broker, hub, actor, learner]"],
)  # fmt: skip
def test_what_somebody_set_stays(recipe, setting: str) -> None:
    assert choose(recipe(setting), 2).overrides == ()


def test_a_deterministic_run_does_not_depend_on_the_machine(recipe) -> None:
    assert choose(recipe("run.deterministic=true", "algorithm.max_lag=0"), 2).overrides == ()


def test_environments_elsewhere_get_two_slices(recipe) -> None:
    choice = choose(recipe("env.placement=workers"), 2)
    assert "env.num_slices=2" in choice.overrides and "environments are workers" in choice.reason


def test_costs_are_medians_of_reports_and_belong_to_one_recipe(recipe) -> None:
    remember(recipe(), [Costs(1e-6, 9e-6), Costs(60e-6, 20e-6), Costs(70e-6, 21e-6)])
    assert "60 us to collect and 20 us" in choose(recipe(), 2).reason
    assert "no run of this recipe" in choose(recipe("env.num_envs=24"), 2).reason


def test_a_damaged_memory_is_none(recipe) -> None:
    remember(recipe(), [Costs(1e-6, 1e-6)])
    (file,) = auto_layout.cache.folder().glob("*.run.json")
    for text in ("", "{", "[]", '{"collect_s": 0, "update_s": 1}', '{"collect_s": "x"}', '{"a": 1}'):
        file.write_text(text)
        assert "no run of this recipe" in choose(recipe(), 2).reason


def test_measured_is_work_per_step() -> None:
    members = [
        {"role": "hub", "stats": {"busy": 0.5}},
        {"role": "actor", "stats": {"busy": 0.3}},
        {"role": "learner", "stats": {"busy": 0.4, "steps_per_s": 10_000.0, "updates": 20}},
    ]
    found = measured(members)
    assert found is not None
    assert found.collect_s == pytest.approx(80e-6) and found.update_s == pytest.approx(40e-6)
    members[2]["stats"]["updates"] = 2
    assert measured(members) is None and measured([]) is None


def test_updates_of_earlier_starts_do_not_count() -> None:
    """A run that goes on for two updates tells what starting costs."""
    stats = {"busy": 0.4, "steps_per_s": 10_000.0, "updates": 500}
    members = [{"role": "hub", "stats": {"busy": 0.5}}, {"role": "learner", "stats": stats}]
    measuring = Measuring()
    for updates, expected in ((500, 0), (502, 0), (507, 0), (508, 1), (520, 2)):
        stats["updates"] = updates
        measuring.hear(members)
        assert len(measuring.reports) == expected
    assert measuring.reports[0].collect_s == pytest.approx(50e-6)
