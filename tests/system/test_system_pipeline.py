"""A pipeline: what is finished stays, also after it was killed; deterministic ones repeat bit by bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from system_runner import Runner

RECIPES = {
    "sft.yaml": """
run: {total_updates: 6}
env: {name: toy, kind: continuous}
policy: {name: flow, chunk: 2, width: 16, num_heads: 2, layers: 1, expert_layers: 1}
algorithm: {name: sft, validation: 0, batch_size: 32}
data: {sources: [{path: none}]}
checkpoint: {every_updates: 2}
""",
    "ppo.yaml": """
run: {total_steps: 3000}
env: {name: toy, kind: continuous, num_envs: 8}
policy: {name: flow, chunk: 2, width: 16, num_heads: 2, layers: 1, expert_layers: 1}
algorithm: {name: ppo, num_steps: 20, minibatches: 2}
checkpoint: {every_updates: 2}
""",
}
PIPELINE = """
deterministic: true
stages:
  demos: {kind: collect, recipe: sft.yaml, episodes: 4}
  cloned: {kind: sft, recipe: sft.yaml, data: [demos]}
  improved: {kind: rl, recipe: ppo.yaml, start_from: cloned}
  compared: {kind: eval, runs: [cloned, improved], episodes: 8}
  exported: {kind: export, run: improved}
"""
NAMES = ["demos", "cloned", "improved", "compared", "exported"]


def written(folder: Path) -> Path:
    for name, text in RECIPES.items():
        (folder / name).write_text(text)
    path = folder / "p.yaml"
    path.write_text(PIPELINE)
    return path


def records(folder: Path) -> dict[str, dict]:
    """Stage -> record of what is finished."""
    found = {name: folder / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_at_any_point_it_ends_with_the_same_hashes(rollbus: Runner) -> None:
    written(rollbus.folder)
    done = rollbus("run", "p.yaml", "--dir", "a", "--json", timeout=400)
    assert done.returncode == 0, done.stderr
    whole = {record["stage"]: record for record in json.loads(done.stdout)}
    assert list(whole) == NAMES
    assert whole["improved"]["inputs"] == {"cloned": whole["cloned"]["content"]}
    assert whole["cloned"]["inputs"] == {"demos": whole["demos"]["content"]}
    assert set(whole["compared"]["facts"]) == {"cloned", "improved", "gain"}
    chance, kills = random.Random(3), 0
    while True:
        before = records(rollbus.folder / "b")
        process = rollbus.start("run", "p.yaml", "--dir", "b")
        try:
            process.wait(chance.uniform(4.0, 12.0) if kills < 6 else 400)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            time.sleep(6.0)  # what it started ends with it
        now = records(rollbus.folder / "b")
        for name, record in before.items():
            assert now[name] == record, f"{name} was finished and has changed"
        if process.returncode == 0:
            break
    assert kills >= 2
    found = {name: record["content"] for name, record in records(rollbus.folder / "b").items()}
    assert found == {name: record["content"] for name, record in whole.items()}


@pytest.mark.long
@pytest.mark.timeout(700)
def test_the_shipped_pipeline_improves_what_it_cloned(rollbus: Runner) -> None:
    """From nothing to an exported policy, in less than ten minutes on two cores."""
    root = Path(__file__).parents[2]
    (rollbus.folder / "recipes").symlink_to(root / "recipes")
    began = time.monotonic()
    done = rollbus("run", str(root / "pipelines/toy_reach.yaml"), "--dir", "p", "--json", timeout=600)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 600
    facts = {record["stage"]: record["facts"] for record in json.loads(done.stdout)}
    gain, low, _ = facts["compared"]["gain"]["success"]
    assert gain >= 0.1 and low > 0 and facts["exported"]["onnx_difference"] < 1e-4
    again = rollbus("run", str(root / "pipelines/toy_reach.yaml"), "--dir", "p", "--json", timeout=100)
    assert json.loads(again.stdout) == json.loads(done.stdout)
