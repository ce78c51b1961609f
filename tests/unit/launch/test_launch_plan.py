"""`rollbus plan` from given costs: layouts, recommendations, the command, the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollbus_core.config.load import Resolved, load
from rollbus_core.plan.costs import ActorCosts, HubCosts, StageCosts
from rollbus_launch.__main__ import main
from rollbus_launch.planning import auto_layout, cache, layouts, plan
from rollbus_launch.planning.layouts import Machines
from rollbus_launch.planning.report import recommendation
from rollbus_launch.session import layout as processes_of

HUB, ACTOR = HubCosts(tick_s=1e-4, row_s=1e-5), ActorCosts(turn_s=5e-5, tick_s=5e-5, row_s=1e-6)
COSTS = StageCosts(
    hub_fused=HUB, hub_apart=HUB, actor_fused=ACTOR, actor_apart=ACTOR, store_s=1e-5, update_s=2e-3,
    learner_s=1e-4, message_s=1e-5, episode_steps=25, episode_limit=400, step_bytes=100,
)  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text("env: {name: toy, num_envs: 16}\nalgorithm: {name: ppo, num_steps: 16}\n")
    return path


def resolved(recipe: Path, *settings: str) -> Resolved:
    return load(recipe, settings)


def test_episodes_are_expected_between_untrained_and_limit() -> None:
    assert plan.expected_episode(COSTS) == 100.0  # sqrt(25 x 400)
    fixed = COSTS.model_copy(update={"episode_limit": 25.0})
    assert plan.expected_episode(fixed) == 25.0
    assert plan.expected_episode(COSTS.model_copy(update={"episode_limit": 0.0})) == 25.0
    assert plan.expected_episode(COSTS.model_copy(update={"trained_steps": 26.0})) == 25.0  # none grew
    assert plan.expected_episode(COSTS.model_copy(update={"trained_steps": 60.0})) == 100.0


@pytest.mark.parametrize("settings", [[], ["env.hubs=2", "deploy.processes=[broker, hub+actor, learner]"]])
def test_the_stated_layout_is_what_a_run_starts(settings: list[str], recipe: Path) -> None:
    loaded = resolved(recipe, *settings)
    made = layouts.stated(loaded.recipe, Machines())
    assert [p.name for p in made.hosts[0].processes] == [p.name for p in processes_of(loaded.recipe)]
    assert made.num_rows == 16


def test_every_candidate_is_a_recipe(recipe: Path) -> None:
    """The settings that are printed load, and make the processes that were simulated."""
    tried = list(layouts.candidates(resolved(recipe).recipe, Machines(num_cores=4)))
    assert len({each.settings for each in tried}) == len(tried) > 5
    for each in tried:
        again = resolved(recipe, *each.settings)
        assert layouts.stated(again.recipe, Machines(num_cores=4)).hosts == each.hosts


def test_two_slow_stages_are_better_apart(recipe: Path) -> None:
    """Hub and actor 10 ms each and enough cores: apart and overlapping is about twice as fast."""
    slow = COSTS.model_copy(
        update={
            "hub_fused": HubCosts(tick_s=0, row_s=1e-3), "hub_apart": HubCosts(tick_s=0, row_s=1e-3),
            "actor_fused": ActorCosts(turn_s=0, tick_s=0, row_s=1e-3),
            "actor_apart": ActorCosts(turn_s=0, tick_s=0, row_s=1e-3),
        }
    )  # fmt: skip
    loaded = resolved(recipe, "deploy.processes=[broker, hub+actor, learner]")
    made = plan.make(loaded, slow, Machines(num_cores=8))
    assert made.stated.prediction.steps_per_s == pytest.approx(500, rel=0.02)  # 2 ms per step
    assert made.recommended.prediction.steps_per_s == pytest.approx(1000, rel=0.05)
    assert "hub+actor" not in made.recommended.layout.label
    assert "env.num_slices=" in recommendation(made)


def test_as_stated_is_kept_unless_another_is_clearly_faster(recipe: Path) -> None:
    made = plan.make(resolved(recipe), COSTS, Machines())
    best = resolved(recipe, *made.recommended.layout.settings)
    again = plan.make(best, COSTS, Machines())
    assert again.recommended is again.stated
    assert recommendation(again).startswith("recommended: as stated")


def test_thousands_of_actors_on_paper(recipe: Path) -> None:
    made = plan.make(resolved(recipe), COSTS, Machines(num_hosts=1000, num_cores=2))
    top = made.hosts[0]
    assert top.layout.count("actor") >= 1000 and top.num_learners > 1
    alone = [option for option in made.hosts if option.num_learners == 1]
    # One learner learns 256 steps in 2.1 ms, whatever collects for it.
    assert all(o.prediction.steps_per_s <= 256 / 2.1e-3 * 1.02 for o in alone)
    assert top.prediction.steps_per_s > 3 * alone[0].prediction.steps_per_s
    assert any("a run has one today" in text for text in made.assumptions)


def test_the_command_prints_what_programs_need(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(COSTS.model_dump_json())
    command = ["plan", str(recipe), "--costs", str(costs), "--cores", "2", "--episode-steps", "50"]
    assert main([*command, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["steps_per_s"] > 0 and told["episode_steps"] == 50
    assert told["bottleneck"] in ("broker", "hub", "actor", "learner", "hub+actor", "cores")
    assert sum(told["memory_bytes"].values()) > 0 and told["recommended"]["settings"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "recommended:" in text and "assumed:" in text and "total" in text


def test_what_nobody_states_is_planned_as_a_run_chooses_it(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBUS_CACHE_DIR", str(tmp_path / "cache"))
    costs = tmp_path / "costs.json"
    costs.write_text(COSTS.model_dump_json())
    free, _ = plan.prepare(recipe, [], costs_file=costs)
    chosen = auto_layout.choose(resolved(recipe), 2).overrides
    assert "deploy.processes=[broker, hub+actor, learner]" in chosen
    assert free.recipe == resolved(recipe, *chosen).recipe
    stated, _ = plan.prepare(recipe, ["env.hubs=1", "env.num_slices=2"], costs_file=costs)
    assert stated.recipe == resolved(recipe, "env.hubs=1", "env.num_slices=2").recipe


def test_costs_need_environments_in_the_hub(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(recipe), "env.placement=workers"]) == 2
    assert "env.placement is workers" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_numbers_of_machines_are_checked(number: str, recipe: Path) -> None:
    with pytest.raises(SystemExit):
        main(["plan", str(recipe), "--hosts", number])


def test_costs_are_kept_per_recipe_but_not_per_layout(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBUS_CACHE_DIR", str(tmp_path / "cache"))
    one, other = resolved(recipe), resolved(recipe, "env.num_envs=32")
    assert cache.cached(one) is None
    cache.keep(one, COSTS)
    assert cache.cached(one) == COSTS
    assert cache.cached(other) is None
    assert cache.cached(resolved(recipe, "deploy.processes=[broker, hub+actor, learner]")) == COSTS
    cache.path(one).write_text("{}")
    assert cache.cached(one) is None


def test_seed_and_length_of_a_run_cost_nothing(recipe: Path) -> None:
    path = cache.path(resolved(recipe))
    assert path == cache.path(resolved(recipe, "run.seed=7", "run.total_steps=123"))
    assert path != cache.path(resolved(recipe, "run.deterministic=true", "algorithm.max_lag=0"))


def test_no_episode_is_planned_longer_than_its_limit() -> None:
    short = COSTS.model_copy(update={"episode_steps": 3014.0, "episode_limit": 1000.0, "trained_steps": 0.0})
    assert plan.expected_episode(short) == 1000.0
