"""The first service settles the configuration of a run; what another one is given is compared with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbus_core.paths import RunPaths
from rollbus_launch.__main__ import main
from rollbus_launch.settling import settle

RECIPE = "run: {total_steps: 1000}\nenv: {name: toy, num_envs: 8}\n"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run whose first service was given r.yaml and a setting."""
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "shm"))
    found = RunPaths(tmp_path / "run")
    (tmp_path / "r.yaml").write_text(RECIPE)
    settle(found, tmp_path / "r.yaml", ["run.seed=3"])
    return found


def test_the_same_recipe_is_silent(paths: RunPaths, tmp_path: Path, capsys) -> None:
    before = paths.config.read_bytes()
    settle(paths, tmp_path / "r.yaml", ["run.seed=3"])
    settle(paths, paths.config, [])
    settle(paths, None, ["run.seed=3"])
    settle(paths, None, [])
    assert capsys.readouterr().err == "" and paths.config.read_bytes() == before


def test_other_settings_are_named_and_change_nothing(paths: RunPaths, tmp_path: Path, capsys) -> None:
    before, edited = paths.config.read_bytes(), tmp_path / "r.yaml"
    edited.write_text(RECIPE + "algorithm: {gamma: 0.5, num_steps: 16}\nactor: {count: 2}\n")
    settle(paths, edited, ["env.num_slices=4"])
    (told,) = capsys.readouterr().err.splitlines()
    assert f"{edited} with env.num_slices=4 changes nothing, because {paths.config} is settled: " in told
    assert "run.seed 1 here, 3 there, env.num_slices 4 here, " in told
    assert "algorithm.gamma 0.5 here, 0.99 there, " in told and ", and 1 more; to have it resolved" in told
    assert paths.config.read_bytes() == before


@pytest.mark.parametrize(
    "other",
    ["env: {kind: memory}", "algorithm: {name: vtrace}", "policy: {hidden: [8]}", "env: {name: gymnasium}"],
)
def test_a_recipe_of_another_run_is_refused(paths: RunPaths, tmp_path: Path, other: str, capsys) -> None:
    (tmp_path / "other.yaml").write_text(f"base: r.yaml\n{other}\n")
    words = ["serve", "hub", "--index", "1", "--config", str(tmp_path / "other.yaml")]
    assert main([*words, "--run-dir", str(paths.root)]) == 2
    told = capsys.readouterr().err
    section, key = other.partition(":")[0], other.partition("{")[2].partition(":")[0]
    assert f"other.yaml is not the run in {paths.root}: " in told and f"{section}.{key} " in told


@pytest.mark.parametrize("settings", [["nokey=3"], ["algorithm.learning_rat=3"], ["run.seed=many"]])
@pytest.mark.parametrize("with_config", [True, False])
def test_what_no_recipe_may_say_is_refused_where_it_is_settled_too(
    settings: list[str], with_config: bool, paths: RunPaths, tmp_path: Path, capsys
) -> None:
    words = ["serve", "broker", "--run-dir", str(paths.root), *settings]
    assert main([*words, "--config", str(tmp_path / "r.yaml")] if with_config else words) == 2
    told = capsys.readouterr().err
    assert f"command line: unknown key {settings[0].partition('=')[0]!r}" in told or "run.seed" in told
