"""Recipes: values, origins, overrides, inheritance, and reading a resolved one back."""

# ruff: noqa: E501

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollbus_core.config import load as load_module
from rollbus_core.config.load import Resolved, load, load_resolved
from rollbus_wire.errors import ConfigError

PLUGINS = """\
env: {name: config_fakes.reach, num_envs: 8}
policy: {name: config_fakes.silent}
algorithm:
  name: config_fakes.learn
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a recipe into the working folder; its relative path."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "r.yaml") -> Path:
        Path(name).write_text(text)
        return Path(name)

    return write


def test_values_origins_and_feed(write):
    resolved = load(write(PLUGINS + "  learning_rate: 1e-3\nrun: {total_steps: 20_000}\n"), ["run.seed=7"])
    recipe = resolved.recipe
    assert recipe.algorithm.learning_rate == 0.001
    assert recipe.run.total_steps == 20_000 and recipe.run.seed == 7
    assert recipe.env.speed == 1.0 and recipe.env.num_envs == 8 and recipe.env.kwargs == {}
    assert resolved.origins["algorithm.learning_rate"] == "r.yaml:5"
    assert resolved.origins["env.num_envs"] == "r.yaml:1"
    assert resolved.origins["run.seed"] == "command line"
    assert resolved.origins["env.speed"] == "default"
    assert resolved.feed.table.batch_steps == 8 * 16 and resolved.feed.summary == "128 samples"


def test_recipe_is_frozen(write):
    recipe = load(write(PLUGINS)).recipe
    with pytest.raises(ValueError, match="frozen"):
        recipe.run.seed = 3
    with pytest.raises(ValueError, match="frozen"):
        recipe.env.speed = 3.0


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-4", 1e-4),
        ("1E+2", 100.0),
        ("1_000", 1000),
        ("-.5", -0.5),
        ("1_0.5", 10.5),
        ("0x10", 16),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2024-01-02", "2024-01-02"),
        ("true", True),
        ("~", None),
        ("'3'", "3"),
        ("1.2.3", "1.2.3"),
        (".inf", float("inf")),
    ],
)
def test_yaml_scalars(write, written, value):
    resolved = load(write(PLUGINS), [f"env.kwargs={{x: {written}}}"])
    found = resolved.recipe.env.kwargs["x"]
    assert found == value and type(found) is type(value)
    assert load_resolved(write(resolved.to_yaml(), "config.yaml")).recipe.env.kwargs == {"x": value}


def test_text_stays_text_and_whole_numbers_become_integers(write):
    path = write(PLUGINS + "run: {name: 007, total_steps: 1e6}\n")
    recipe = load(path, ["policy.tag=1e-4", "env.label=true", "algorithm.milestones=[1, 0.5]"]).recipe
    assert recipe.run.name == "007" and recipe.policy.tag == "1e-4" and recipe.env.label == "true"
    assert recipe.run.total_steps == 1_000_000 and type(recipe.run.total_steps) is int
    assert recipe.algorithm.milestones == (1.0, 0.5)
    assert load(path, ["run.name=", "env.label="]).recipe.run.name == ""


def test_resolved_reads_back_equal(write):
    resolved = load(
        write(PLUGINS + "run: {start_from: '# a\\n: b'}\n"),
        ["policy.tag=a # b", "env.kwargs={a: [1, {b: off}], c: 'x: # y'}", "deploy.processes=[broker+hub, actor+learner]"],
    )  # fmt: skip
    again = load_resolved(write(resolved.to_yaml(), "config.yaml"))
    assert again == resolved and isinstance(again, Resolved)
    assert again.origins["env.kwargs"] == "command line" and again.origins["env.num_envs"] == "r.yaml:1"
    assert again.recipe.deploy.processes == ["broker+hub", "actor+learner"]
    assert again.to_yaml() == resolved.to_yaml()
    # It is a recipe too: its defaults do not count as set (env.workers would have no effect).
    assert load("config.yaml", ["run.seed=5"]).recipe.run.seed == 5


def test_value_edited_in_a_resolved_file_is_no_default(write):
    text = load(write(PLUGINS)).to_yaml().replace("seed: 1  # default", "seed: 4  # default", 1)
    path = write(text, "config.yaml")
    line = text.splitlines().index("  seed: 4  # default") + 1
    assert load_resolved(path).origins["run.seed"] == f"config.yaml:{line}"


def test_base_recipe(write):
    write(PLUGINS + "  learning_rate: 1e-3\n  num_steps: 8\n", "base.yaml")
    path = write("base: base.yaml\nalgorithm:\n  num_steps: 4\n", "own.yaml")
    resolved = load(path)
    assert resolved.recipe.algorithm.num_steps == 4 and resolved.recipe.algorithm.learning_rate == 1e-3
    assert resolved.origins["algorithm.num_steps"] == "own.yaml:3"
    assert resolved.origins["algorithm.learning_rate"] == "base.yaml:5"


def test_base_circle_and_missing_base(write):
    write("base: b.yaml\n", "a.yaml")
    path = write("base: a.yaml\n", "b.yaml")
    with pytest.raises(ConfigError, match=r"a\.yaml:1: .*circle: b\.yaml -> a\.yaml -> b\.yaml"):
        load(path)
    with pytest.raises(ConfigError, match=r"c\.yaml:1: base recipe no\.yaml does not exist"):
        load(write("base: no.yaml\n", "c.yaml"))


def test_override_inside_a_mapping(write):
    path = write(PLUGINS.replace("num_envs: 8", "num_envs: 8, kwargs: {a: 1, b: {c: 2}}"))
    resolved = load(path, ["env.kwargs.b.c=3", "env.kwargs.d=x"])
    assert resolved.recipe.env.kwargs == {"a": 1, "b": {"c": 3}, "d": "x"}
    assert "command line" in resolved.origins["env.kwargs"]


def test_renamed_key_warns_and_works(write, monkeypatch):
    monkeypatch.setattr(load_module, "RENAMED", {"algorithm.step_size": "algorithm.learning_rate"})
    with pytest.warns(
        FutureWarning, match=r"r\.yaml:5: 'algorithm.step_size' is now called 'algorithm.learning_rate'"
    ):
        resolved = load(write(PLUGINS + "  step_size: 0.5\n"))
    assert resolved.recipe.algorithm.learning_rate == 0.5
    assert resolved.origins["algorithm.learning_rate"] == "r.yaml:5"
    with pytest.raises(ConfigError, match="which is set too"):
        load(write(PLUGINS + "  step_size: 0.5\n  learning_rate: 0.1\n"))


def test_loading_imports_neither_torch_nor_a_simulator(write):
    path = write("algorithm: {name: ppo}\npolicy: {name: mlp}\nenv: {name: config_fakes.reach}\n")
    code = (
        "import sys; from rollbus_core.config.load import load; load(sys.argv[1]); "
        "print(sorted({'torch', 'gymnasium', 'mujoco'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stdout.strip() == "[]", done.stderr
