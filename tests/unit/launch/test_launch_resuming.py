"""What `rollbus train` says and refuses when it goes on from a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rollbus_core.checkpoint_folder import CheckpointFolder
from rollbus_core.checkpoints import file_digest
from rollbus_core.config.load import Resolved, load
from rollbus_core.paths import RunPaths
from rollbus_launch.resuming import Start, before, check_start, set_aside
from rollbus_wire.errors import ConfigError


def resolved(folder: Path, *overrides: str) -> Resolved:
    recipe = folder / "r.yaml"
    recipe.write_text("run: {total_steps: 1000}\nenv: {name: toy, num_envs: 8}\n")
    return load(recipe, overrides)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run with checkpoints at 320 and 640 steps."""
    found = RunPaths(tmp_path / "run")
    files = {"config.yaml": lambda path: path.write_text(resolved(tmp_path).to_yaml())}
    folder = CheckpointFolder(found.checkpoints, keep=3)
    for number in (1, 2):
        folder.write({"env_steps": 320 * number, "version": [0, number], "updates": number}, files)
    return found


def test_the_same_run_goes_on(paths: RunPaths, tmp_path: Path) -> None:
    again = resolved(tmp_path, "env.num_slices=4", "env.hubs=2")
    start = before(again, paths)
    assert (start.env_steps, start.updates) == (640, 2)
    assert start.notes == ["goes on from checkpoint 000000000640-0.2 (run.resume=never begins anew)"]
    assert before(resolved(tmp_path, "run.resume=never"), paths) == Start()
    assert before(again, RunPaths(tmp_path / "new")) == Start()


def test_records_without_a_checkpoint_are_told_of(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    paths.create()
    paths.metrics.touch()
    assert before(resolved(tmp_path), paths).notes == []
    paths.metrics.write_text("{}\n")
    (note,) = before(resolved(tmp_path), paths).notes
    assert note.startswith("begins at 0") and "metrics.jsonl" in note


def test_a_checkpoint_that_must_be_there_is_missed_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run.resume is must, but .*new holds no checkpoint to go on from"):
        before(resolved(tmp_path, "run.resume=must"), RunPaths(tmp_path / "new"))


def test_other_settings_are_told(paths: RunPaths, tmp_path: Path) -> None:
    *_, told = before(resolved(tmp_path, "algorithm.gamma=0.5", "run.seed=5"), paths).notes
    assert told == "with other settings: run.seed 5 (was 1), algorithm.gamma 0.5 (was 0.99)"


@pytest.mark.parametrize(
    "override", ["env.kind=memory", "policy.hidden=[8]", "algorithm.name=vtrace", "env.frame_stack=2"]
)
def test_another_task_policy_or_algorithm_is_refused(paths: RunPaths, tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match=f"{override.partition('=')[0]} is .* the checkpoint to go on from"):
        before(resolved(tmp_path, override), paths)


def test_a_run_at_its_end_says_so(paths: RunPaths, tmp_path: Path) -> None:
    _, first, *_ = before(resolved(tmp_path, "run.total_steps=500"), paths).notes
    assert first == "it is at its end already, at 640 of run.total_steps 500 steps: nothing is trained"


def test_a_damaged_checkpoint_is_named(paths: RunPaths, tmp_path: Path) -> None:
    (paths.checkpoints / "000000000640-0.2" / "config.yaml").write_text("torn")
    passed, lost, on = before(resolved(tmp_path), paths).notes
    assert "passed over" in passed and "000000000640-0.2/config.yaml is damaged" in passed
    assert lost.startswith("320 steps that only a damaged checkpoint had learned from cannot be had again")
    assert "goes on from checkpoint 000000000320-0.1" in on


@pytest.mark.parametrize(
    "overrides",
    [["run.deterministic=true", "algorithm.max_lag=0"], ["algorithm.name=dqn", "policy.head=q_values"]],
)
def test_where_its_data_are_kept_or_made_again_none_are_lost(
    paths: RunPaths, tmp_path: Path, overrides: list[str]
) -> None:
    for number in (1, 2):
        saved = paths.checkpoints / f"{320 * number:012d}-0.{number}"
        (saved / "config.yaml").write_text(
            "torn" if number == 2 else resolved(tmp_path, *overrides).to_yaml()
        )
        manifest = json.loads((saved / "manifest.json").read_text())
        manifest["files"]["config.yaml"] = "?" if number == 2 else file_digest(saved / "config.yaml")
        (saved / "manifest.json").write_text(json.dumps(manifest))
    passed, on = before(resolved(tmp_path, *overrides), paths).notes
    assert "passed over" in passed and "goes on from checkpoint 000000000320-0.1" in on


RLT = """
env: {name: toy, kind: two_ways}
policy: {name: flow, width: 32, num_heads: 2, layers: 1, expert_layers: 1, refine: true}
algorithm: {name: rlt}
"""


def refining(folder: Path, *overrides: str) -> Resolved:
    recipe = folder / "rlt.yaml"
    recipe.write_text(RLT)
    return load(recipe, overrides)


def test_what_must_begin_with_trained_weights_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run.start_from.* is empty, .*run of algorithm.stage: token"):
        refining(tmp_path)
    with pytest.raises(ConfigError, match="run.start_from.* is empty, .*a cloned flow or diffusion policy"):
        refining(tmp_path, "algorithm.stage=token", "data.sources=[{path: demos}]")
    recipe = tmp_path / "frozen.yaml"
    recipe.write_text("policy: {name: flow, sampler: ode, steer: true}\nalgorithm: {name: dsrl}\n")
    with pytest.raises(
        ConfigError, match="run.start_from.* is empty, but 'dsrl' .*a cloned flow or diffusion"
    ):
        load(recipe)
    recipe.write_text(
        "run: {total_updates: 1}\nalgorithm: {name: sft, lora_rank: 2}\ndata: {sources: [{path: d}]}"
    )
    with pytest.raises(
        ConfigError, match="run.start_from.* is empty, but 'sft' .*the policy that is adapted"
    ):
        load(recipe)


def test_a_start_that_is_not_there_or_not_fit_is_refused(tmp_path: Path) -> None:
    start = tmp_path / "start"
    given = f"run.start_from={start}"
    with pytest.raises(ConfigError, match="start is not there"):
        check_start(refining(tmp_path, given))
    start.mkdir()
    (start / "config.yaml").write_text(resolved(tmp_path).to_yaml())
    with pytest.raises(ConfigError, match="start is of ppo: .*begin with the run of algorithm.stage: token"):
        check_start(refining(tmp_path, given))
    check_start(resolved(tmp_path, given))
    settings = ["algorithm.stage=token", "data.sources=[{path: demos}]", "run.total_updates=5"]
    token = refining(tmp_path, *settings, given)
    check_start(token)
    (start / "config.yaml").write_text(token.to_yaml())
    check_start(refining(tmp_path, given))


def test_a_last_checkpoint_that_is_gone_is_no_new_run(paths: RunPaths, tmp_path: Path) -> None:
    newest = (paths.checkpoints / "last").resolve()
    shutil.rmtree(newest)
    assert before(resolved(tmp_path), paths).notes[-1].startswith("goes on from checkpoint 000000000320-0.1")
    shutil.rmtree(paths.checkpoints / "000000000320-0.1")
    with pytest.raises(ConfigError, match=f"last says {newest.name}, which is gone, and there is no other"):
        before(resolved(tmp_path), paths)
    assert before(resolved(tmp_path, "run.resume=never"), paths) == Start()


def test_a_run_that_begins_anew_keeps_what_was_there(paths: RunPaths, tmp_path: Path) -> None:
    assert set_aside(paths) == "" and len(list(paths.checkpoints.glob("0*"))) == 2  # no run: not ours to move
    for number in (1, 2):
        paths.root.joinpath("config.yaml").write_text(f"# {number}\n")
        paths.metrics.write_text(f"{number}\n")
        assert set_aside(paths).endswith(f"the run that was here is in {paths.root / f'earlier-{number}'}")
        assert sorted(p.name for p in paths.root.iterdir()) == ["earlier-1", "earlier-2"][:number]
    first, second = (RunPaths(paths.root / f"earlier-{number}") for number in (1, 2))
    assert (first.metrics.read_text(), second.metrics.read_text()) == ("1\n", "2\n")
    assert (first.checkpoints / "last").resolve().name == "000000000640-0.2"
