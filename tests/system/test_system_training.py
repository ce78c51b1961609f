"""Whole runs: processes, signals, kills, resume, determinism."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from system_kit import PATIENCE_S, assert_same_weights, audit, long_run, steps
from system_runner import RECIPES, TINY, Runner, wait_for

pytestmark = pytest.mark.timeout(400)
CARTPOLE = str(RECIPES / "cartpole_ppo.yaml")


def test_cartpole_is_solved(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    done = rollbus("train", CARTPOLE, "--run-dir", str(run), timeout=150)
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert summary["stopped_by"] == "evaluation"
    assert summary["evaluation"]["mean_return"] >= 475
    assert {"env_steps", "env_steps_per_s", "updates", "wall_s", "mean_return", "lag"} <= set(summary)
    rows = rollbus.lines(run / "metrics.jsonl")
    first, last = rows[0], rows[-1]
    derived = (last["env_steps"] - first["env_steps"]) / (last["time"] - first["time"])
    assert summary["env_steps_per_s"] == pytest.approx(derived, rel=1e-3)
    assert max(row["lag_max"] for row in rows) <= 1
    assert (run / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert list((run / "tensorboard").iterdir())
    one = rollbus("eval", str(run), "--episodes", "10", "--num-envs", "1", "--json")
    eight = rollbus("eval", str(run), "--episodes", "10", "--num-envs", "8", "--json")
    assert json.loads(one.stdout)["episodes"] == json.loads(eight.stdout)["episodes"]
    assert all(e["seed"] >= 2**31 for e in json.loads(one.stdout)["episodes"])


def test_ppo_learns_with_two_actions_per_decision(rollbus: Runner) -> None:
    """The chain is solved by plans of two steps as well: 0.85 on average, at random it is below 0."""
    run = rollbus.folder / "run"
    done = rollbus(
        "train", TINY, "policy.chunk=2", "run.total_steps=20000", "algorithm.learning_rate=2e-3",
        "eval.episodes=40", "--run-dir", str(run), timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert summary["evaluation"]["mean_return"] >= 0.75
    rows = rollbus.lines(run / "metrics.jsonl")
    assert max(row.get("log_prob_gap", 0.0) for row in rows) < 1e-5
    # A chunk of 128 decisions executes up to twice as many steps; ends cut some.
    assert 1.2 < summary["env_steps"] / sum(row["samples"] for row in rows) < 2.0


def test_deterministic_runs_are_bit_identical(rollbus: Runner) -> None:
    """With four processes, and with hub and actor in one, over the local link."""
    runs = []
    for processes in ("[broker, hub, actor, learner]", "[broker, hub+actor, learner]"):
        runs.append(rollbus.folder / f"run{len(runs)}")
        done = rollbus(
            "train", TINY, "run.deterministic=true", "algorithm.max_lag=0",
            f"deploy.processes={processes}", "--run-dir", str(runs[-1]),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads((runs[-1] / "summary.json").read_text())["updates"] == 20
    assert_same_weights(runs[0], runs[1])


def test_killed_actor_and_scaling(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    process = long_run(rollbus, run, "actor.count=2", "env.num_slices=4")
    wait_for(lambda: steps(rollbus, run) > 3000, PATIENCE_S, "training begins")

    def holders() -> dict[str, list[str]]:
        return {m["name"]: m["slices"] for m in rollbus.members(run) if m["name"].startswith("actor")}

    wait_for(lambda: len([s for s in holders().values() if s]) == 2, 20, "both actors hold slices")
    victim = next(m for m in rollbus.members(run) if m["name"] == "actor-0")
    os.kill(victim["pid"], signal.SIGKILL)
    killed = time.time()
    time.sleep(4)
    times = [row["time"] for row in rollbus.lines(run / "metrics.jsonl")]
    after = [t for t in times if t > killed]
    assert after, "no update after the kill"
    gaps = np.diff([max(t for t in times if t <= killed), *after])
    assert gaps.max() < 5
    done = rollbus("scale", "actor=3", "--run-dir", str(run), "--timeout", "5", timeout=40)
    assert done.returncode == 0, done.stderr
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    total, problems = audit(run)
    assert total > 3000 and not problems, problems[:5]


def test_killed_learner_resumes_in_a_new_lineage(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    process = long_run(rollbus, run, "checkpoint.every_steps=2000", "policy.normalise_obs=true")
    wait_for(
        lambda: (run / "checkpoints" / "last").exists() and steps(rollbus, run) > 5000,
        PATIENCE_S,
        "checkpoint",
    )
    victim = next(m for m in rollbus.members(run) if m["name"] == "learner-0")
    os.kill(victim["pid"], signal.SIGKILL)
    before = rollbus.lines(run / "metrics.jsonl")

    def resumed() -> Any:
        rows = rollbus.lines(run / "metrics.jsonl")
        return [row for row in rows if row["version"].startswith("1.")]

    rows = wait_for(resumed, 30, "an update of lineage 1")
    saved = {row["version"]: row for row in before}
    fork = int(rows[0]["version"].split(".")[1]) - 1
    parent = saved[f"0.{fork}"]
    assert rows[0]["update"] == parent["update"] + 1
    wait_for(lambda: steps(rollbus, run) > parent["env_steps"] + 2000, 30, "training goes on")
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    manifest = json.loads((run / "checkpoints" / "last" / "manifest.json").read_text())
    assert manifest["version"][0] == 1


def test_a_second_start_is_refused_and_an_interrupt_leaves_nothing_behind(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    process = long_run(rollbus, run, "env.placement=workers", "env.workers=2")
    wait_for(lambda: steps(rollbus, run) > 1000, PATIENCE_S, "training begins")
    learner = next(m for m in rollbus.members(run) if m["name"] == "learner-0")
    second = rollbus("train", TINY, "--run-dir", str(run))
    assert second.returncode == 2 and "a run is active" in second.stderr
    assert f"learner-0 (process {learner['pid']})" in second.stderr
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.wait(20)
    assert time.monotonic() - started < 12
    assert process.returncode == 130
    assert not any(
        str(run) in line for line in os.popen("ps -eo args").read().splitlines() if "serve" in line
    )
    assert (run / "checkpoints" / "last").exists()
