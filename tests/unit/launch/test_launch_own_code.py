"""Environments of somebody's own, policies in other environments than theirs, and what disks refuse."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from rollbus_core.config.load import load
from rollbus_envs.worker import make_env
from rollbus_launch import environments
from rollbus_launch.__main__ import main
from rollbus_launch.collect import collect
from rollbus_launch.commands.train import check_data
from rollbus_launch.environments import env_maker, misfit
from rollbus_launch.evaluation.evaluate import Settings
from rollbus_wire.errors import ConfigError, SpecError

WALK = """
import gymnasium as gym
import numpy as np

from rollbus_envs import toy


class Walk(gym.Env):
    def __init__(self, size=2.0):
        self.observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.size = size

    def reset(self, seed=None, options=None):
        return np.full(2, self.size, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}


def all_rows(num_rows, kind="discrete"):
    return toy.make(toy.Config(kind=kind), num_rows)


def broken(size=0):
    return Walk(1 / size)


def reward(columns):
    return columns["nothing"]
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_walk.py").write_text(WALK)
    monkeypatch.delitem(sys.modules, "own_walk", raising=False)


def recipe(text: str) -> Path:
    path = Path("r.yaml")
    path.write_text(text + "\nalgorithm: {name: ppo}\n")
    return path


def test_a_class_is_an_environment() -> None:
    config = load(recipe("env: {name: 'own_walk:Walk', kwargs: {size: 5.0}}")).recipe.env
    made = env_maker(config)(3)
    assert (made.num_rows, made.spec.name, made.spec.action.shape) == (3, "Walk", (1,))
    rows = np.arange(3, dtype=np.int32)
    assert (made.reset(rows, np.zeros(3, np.int64), [])["obs"] == 5.0).all()


def test_a_function_that_takes_the_rows_makes_them_all() -> None:
    config = load(recipe("env: {name: 'own_walk:all_rows', kwargs: {kind: memory}}")).recipe.env
    assert (env_maker(config)(4).num_rows, env_maker(config)(4).spec.name) == (4, "toy-memory")
    assert make_env("own_walk:all_rows", {"kwargs": {"kind": "memory"}}, 2).num_rows == 2


def test_an_environment_that_cannot_be_made_is_told_with_its_line() -> None:
    config = load(recipe("env: {name: 'own_walk:broken'}")).recipe.env
    with pytest.raises(ConfigError, match=r"making the environment: ZeroDivisionError: .*own_walk.py:\d+\)"):
        env_maker(config)(1)


def test_an_argument_that_the_class_does_not_take_is_refused_before_anything_starts() -> None:
    said = r"r.yaml:1: env.kwargs: Walk\(size=2.0\): got an unexpected keyword argument 'sise'"
    with pytest.raises(ConfigError, match=said):
        load(recipe("env: {name: 'own_walk:Walk', kwargs: {sise: 1}}"))
    with pytest.raises(ConfigError, match=r"env.kwargs \{'sise': 1\}: .*unexpected keyword"):
        make_env("own_walk:Walk", {"kwargs": {"sise": 1}}, 1)


def test_a_policy_does_not_act_in_another_environment() -> None:
    spec = {
        kind: environments.env_spec(load(recipe(f"env: {{name: toy, kind: {kind}}}")).recipe.env)
        for kind in ("continuous", "two_ways", "lane", "discrete", "token")
    }
    assert misfit(spec["continuous"], spec["continuous"]) == ""
    assert (
        "the policy was trained on toy-continuous, but this environment is toy-lane: an action is"
        in misfit(spec["continuous"], spec["lane"])
    )
    assert "observation 'obs' is float32 [5], there it is float32 [4]" in misfit(
        spec["continuous"], spec["discrete"]
    )
    config = load(recipe("env: {name: toy, kind: lane}")).recipe.env
    with pytest.raises(SpecError, match="use the env section that it was trained with"):
        env_maker(config, spec["continuous"])(2)
    assert env_maker(config, spec["lane"])(2).num_rows == 2


def test_a_function_that_is_not_there_shows_before_a_process_starts() -> None:
    check_data(load(recipe("learner: {rewards: [{source: 'own_walk:reward'}]}")))
    with pytest.raises(ConfigError, match="learner.rewards own_walk:rewrd: own_walk has no function 'rewrd'"):
        check_data(load(recipe("learner: {rewards: [{source: 'own_walk:rewrd'}]}")))


def test_data_of_another_environment_of_the_same_shape_is_told() -> None:
    pytest.importorskip("pyarrow")
    made = recipe("env: {name: toy, kind: continuous}")
    collect(made, [], "script", Path("d"), Settings(4, 4, 1, "deterministic"))
    sft = "run: {total_updates: 1}\nenv: {name: toy, kind: KIND}\ndata: {sources: [{path: d}]}"
    overrides = ["algorithm.name=sft", "algorithm.validation=0"]
    assert check_data(load(recipe(sft.replace("KIND", "continuous")), overrides)) == []
    assert check_data(load(recipe(sft.replace("KIND", "two_ways")), overrides)) == [
        "d was recorded in toy-continuous, this run is of toy-two-ways"
    ]


def test_what_the_system_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    made = recipe("env: {name: toy, kind: continuous}")
    Path("a_file").write_text("")
    command = ["collect", str(made), "--episodes", "1", "--out", "a_file/below"]
    assert main(command) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("rollbus collect: Not a directory: ") and not any(
        "Traceback" in x for x in said
    )
