"""A trial of real processes, and what is fitted to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollbus_core.config.load import load
from rollbus_core.paths import shared_memory_root
from rollbus_core.plan.calibrate import Seen
from rollbus_core.plan.costs import ActorCosts, HubCosts, StageCosts
from rollbus_core.service import Service
from rollbus_launch import build, plan_measure, plan_trial
from rollbus_launch.awaiting import AwaitingSpec
from rollbus_launch.plan_trial import Trial
from rollbus_wire.link import Poller, local_pair
from rollbus_wire.messages import Members

FUSED, APART = ("broker", "hub+actor", "learner"), ("broker", "hub", "actor", "learner")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text("env: {name: toy, num_envs: 8, length: 10}\nalgorithm: {name: ppo, num_steps: 16}\n")
    return path


def test_a_trial_sees_what_processes_use(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_trial, "WARM_S", 0.1)
    before = set(shared_memory_root().glob("rollbus-*"))
    trial = Trial(
        load(recipe), num_envs=8, num_slices=1, hubs=1, actors=1, processes=FUSED, counted_s=0.5
    )  # fmt: skip
    seen = trial.seen()
    assert set(shared_memory_root().glob("rollbus-*")) <= before
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


def test_trials_are_no_larger_than_the_machine(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 hubs are planned on two cores: two are tried, with their part of environments and batch."""
    asked: list[dict[str, Any]] = []

    class Fake:
        def __init__(self, resolved: Any, **settings: Any) -> None:
            asked.append(settings)
            self.feed = resolved.feed

        def seen(self) -> Seen | None:
            return Seen({"hub-0": 1e-5, "hub-1": 1e-5}, 0.0, 0.0, 10.0) if len(asked) == 2 else None

    monkeypatch.setattr(plan_measure, "Trial", Fake)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    hub, actor = HubCosts(tick_s=1e-4, row_s=1e-5), ActorCosts(turn_s=1e-4, tick_s=0, row_s=0)
    costs = StageCosts(
        hub_fused=hub, hub_apart=hub, actor_fused=actor, actor_apart=actor, store_s=1e-5, update_s=1e-3,
        learner_s=0.0,
    )  # fmt: skip
    resolved = load(recipe, ["env.num_envs=48", "env.num_slices=12", "env.hubs=12"])
    found = plan_measure.tried(resolved, costs)
    assert [each["processes"] for each in asked] == [FUSED, APART]
    sizes = {name: asked[1][name] for name in ("num_envs", "num_slices", "hubs", "actors")}
    assert sizes == {"num_envs": 8, "num_slices": 2, "hubs": 2, "actors": 1}
    # Seen were 2 x 10 us per step; said (100 + 4 x 10) / 4 = 35 us.
    assert found.hub_apart.tick_s == pytest.approx(hub.tick_s * 20 / 35, rel=0.03)
    assert found.hub_fused == hub


def test_what_awaits_a_spec_tells_what_it_became(recipe: Path) -> None:
    spec = build.env_maker(load(recipe).recipe.env)(1).spec
    link, registry = local_pair("test")
    made = Service("made")
    awaiting = AwaitingSpec("actor-0", link, lambda _: made, timeout_s=0.0)
    awaiting.start(Poller())
    assert not awaiting.poll() and awaiting.service is None
    asked = registry.recv()
    assert asked is not None
    offer = {"name": "hub-0", "slices": [{"slice": "hub-0/0", "spec": spec.to_data()}]}
    registry.send(Members([offer]), to=asked.peer)
    assert awaiting.poll() and awaiting.service is made
    registry.close()
