"""A trial of real processes, and what is fitted to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbus_core.config.load import load
from rollbus_core.cores import num_cores
from rollbus_core.paths import shared_memory_root
from rollbus_core.plan.calibrate import Seen
from rollbus_core.plan.costs import ActorCosts, HubCosts, StageCosts
from rollbus_core.plan.trials import basis
from rollbus_core.service import Service
from rollbus_launch import environments
from rollbus_launch.awaiting import AwaitingSpec
from rollbus_launch.planning import layouts, plan, trials
from rollbus_launch.planning import trial as trial_module
from rollbus_launch.planning.layouts import Machines
from rollbus_launch.planning.trial import Trial
from rollbus_wire.link import local_pair
from rollbus_wire.messages import Members
from rollbus_wire.polling import Poller

FUSED, APART = ("broker", "hub+actor", "learner"), ("broker", "hub", "actor", "learner")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text("env: {name: toy, num_envs: 8, length: 10}\nalgorithm: {name: ppo, num_steps: 16}\n")
    return path


def test_a_trial_sees_what_processes_use(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(trial_module, "WARM_S", 0.1)
    trial = Trial(
        load(recipe), num_envs=8, num_slices=1, hubs=1, actors=1, processes=FUSED, counted_s=0.5
    )  # fmt: skip
    seen = trial.seen()
    assert not [*shared_memory_root().glob("rollbus-*")]
    if seen is None:
        pytest.skip("this system does not tell the CPU time of threads")
    assert trial.feed.table.batch_steps == 8 * 16
    assert set(seen.process_s) == {"broker-0", "hub+actor-0", "learner-0"}
    first, last = trial.rows[0], trial.rows[-1]
    step_s = (last["time"] - first["time"]) / (last["env_steps"] - first["env_steps"])
    # No thread uses more than a core, nor works longer than the trial lasts; times vary between updates.
    for used_s in (*seen.process_s.values(), seen.learner_s):
        assert 0 < used_s < 2 * step_s
    assert seen.learner_s > 0.3 * min(row["update_s"] for row in trial.rows[1:]) / (8 * 16)
    assert 1 <= seen.episode_steps <= 12
    assert seen.seconds >= 0.5 and 0 <= seen.others_cores <= (num_cores())
    assert seen.steps_per_s == pytest.approx(1 / step_s, rel=0.5)


@pytest.fixture
def costs() -> StageCosts:
    hub, actor = HubCosts(tick_s=1e-4, row_s=1e-5), ActorCosts(turn_s=1e-4, tick_s=0, row_s=0)
    return StageCosts(
        hub_fused=hub, hub_apart=hub, actor_fused=actor, actor_apart=actor, store_s=1e-5, update_s=1e-3,
        learner_s=0.0,
    )  # fmt: skip


def fake_trials(monkeypatch: pytest.MonkeyPatch, found: list[Seen | None]) -> list[dict[str, Any]]:
    """Trials that see what is ``found``, in turn; what they are asked."""
    asked: list[dict[str, Any]] = []

    class Fake:
        def __init__(self, resolved: Any, **settings: Any) -> None:
            asked.append(settings)
            self.feed = resolved.feed

        def seen(self) -> Seen | None:
            return found[len(asked) - 1]

    monkeypatch.setattr(trials, "Trial", Fake)
    monkeypatch.setattr(trials, "num_cores", lambda: 2)
    return asked


def test_trials_are_no_larger_than_the_machine(
    recipe: Path, costs: StageCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 hubs are planned on two cores: two are tried, with their part of environments and batch."""
    seen = Seen({"hub-0": 1e-5, "hub-1": 1e-5}, 0.0, 0.0, 10.0, steps_per_s=2e4)
    asked = fake_trials(monkeypatch, [seen, None, seen])
    resolved = load(recipe, ["env.num_envs=48", "env.num_slices=12", "env.hubs=12"])
    found = trials.tried(resolved, costs)
    assert [each["processes"] for each in asked] == [APART, FUSED, APART]
    sizes = {name: asked[1][name] for name in ("num_envs", "num_slices", "hubs", "actors")}
    assert sizes == {"num_envs": 8, "num_slices": 2, "hubs": 2, "actors": 1}
    # Seen were 2 x 10 us per step; said (100 + 4 x 10) / 4 = 35 us.
    assert found.hub_apart.tick_s == pytest.approx(costs.hub_apart.tick_s * 20 / 35, rel=0.03)
    assert found.hub_fused == costs.hub_fused
    # What is planned is not what was tried.
    planned = layouts.stated(resolved.recipe, Machines(num_cores=2))
    assert basis(planned, found.trials).text.startswith("extrapolated from a trial of broker-0, hub-0, hub-1")


def test_the_stated_layout_is_predicted_at_the_rate_of_its_trials(
    recipe: Path, costs: StageCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the use is seen, so no cost changes; two runs of 6,000 and 8,000 steps/s in the mean."""
    used = Seen({name: 0.0 for name in ("broker-0", "hub-0", "actor-0", "learner-0")}, 0.0, 0.0, 10.0)
    found = [replace(used, steps_per_s=rate, seconds=2.5) for rate in (6e3, 9e3, 8e3)]
    fake_trials(monkeypatch, found)
    resolved = load(recipe, [f"deploy.processes=[{', '.join(APART)}]"])
    made = plan.make(resolved, trials.tried(resolved, costs), Machines(num_cores=2), episode_steps=10.0)
    assert made.stated.prediction.steps_per_s == pytest.approx(7e3, rel=0.02)
    assert made.stated.basis.text.startswith("measured trial: 6,000 and 8,000 steps/s in 5.0 s")
    assert made.to_data()["basis"] == made.stated.basis.text
    fused = next(
        o for o in made.options if "deploy.processes=[broker, hub+actor, learner]" in o.layout.settings
    )
    # Its own trial is of as many slices as stated, its options are of 1, 2 and 4.
    assert fused.basis.factor != made.stated.basis.factor


def test_where_trials_see_nothing_the_model_stands_alone(
    recipe: Path, costs: StageCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_trials(monkeypatch, [None, None, None])
    assert trials.tried(load(recipe), costs) == costs


def test_what_awaits_a_spec_tells_what_it_became(recipe: Path, tmp_path: Path) -> None:
    spec = environments.env_maker(load(recipe).recipe.env)(1).spec
    link, registry = local_pair("test")
    made = Service("made")
    awaiting = AwaitingSpec("actor-0", link, lambda _: made, timeout_s=0.0, memory=tmp_path)
    awaiting.start(Poller())
    assert not awaiting.poll() and awaiting.service is None
    asked = registry.recv()
    assert asked is not None
    offer = {"name": "hub-0", "slices": [{"slice": "hub-0/0", "spec": spec.to_data()}]}
    registry.send(Members([offer]), to=asked.peer)
    assert awaiting.poll() and awaiting.service is made
    registry.close()
