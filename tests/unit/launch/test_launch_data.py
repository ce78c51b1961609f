"""Recipes with data: what does not fit is refused before a process starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
from datasets_kit import episode, write

from rollbus_core.config.load import load
from rollbus_launch.commands.train import check_data
from rollbus_launch.environments import offline_spec
from rollbus_launch.planning.plan import prepare
from rollbus_launch.session import layout
from rollbus_wire.errors import ConfigError

SFT = """
run: {total_updates: 100}
env: {name: toy, kind: continuous}
algorithm: {name: sft}
data: {sources: [{path: demos}]}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An offline recipe beside a data set of the toy that it names."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r.yaml"
    path.write_text(SFT)
    spec = offline_spec(load(path).recipe)
    write(tmp_path / "demos", [toy_episode(n) for n in range(4)], spec)
    return path


def toy_episode(seed: int):
    made = episode(10, seed)
    obs = {"obs": made.obs["joints"][:, [0, 1, 2, 0]]}
    made.obs, made.final_obs = obs, {"obs": obs["obs"][0]}
    return made


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.sources=[]"], "nothing fills table 'demos', which algorithm 'sft' learns from"),
        (["data.sources=[{path: demos, table: demo}]"], "table 'demo' of demos .*did you mean 'demos'"),
        (["run.total_updates=0"], "no steps end the run"),
        (["run.total_steps=5"], "'sft' collects no steps; set run.total_updates"),
        (["eval.every_steps=5"], "set eval.every_updates"),
        (["data.sources=[{pth: demos}]"], "pth"),
        (["algorithm.name=ppo", "run.total_updates=0"], "algorithm 'ppo' learns from no data set"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together(recipe: Path, overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(recipe, overrides)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["env.dims=3"], r"observation.obs has shape \[4\], observation 'obs' has \[6\]"),
        (["data.sources=[{path: nowhere}]"], "nowhere/meta/info.json does not exist"),
        (["data.sources=[{path: demos, episodes: 1}]"], "too few for table 'demos'"),
        (["data.sources=[{path: demos, keys: {obs: observation.state}}]"], "no feature 'observation.state'"),
    ],
)  # fmt: skip
def test_data_that_does_not_fit(recipe: Path, overrides: list[str], expected: str) -> None:
    check_data(load(recipe))
    with pytest.raises(ConfigError, match=expected):
        check_data(load(recipe, overrides))


def test_a_run_on_data_alone_has_no_hub_and_no_actor(recipe: Path) -> None:
    resolved = load(recipe)
    assert not resolved.online and list(resolved.feeds) == ["demos", "validation"]
    assert [p.name for p in layout(resolved.recipe)] == ["broker-0", "source-0", "learner-0"]
    settings = ["deploy.processes=[broker+source, hub+actor, learner]"]
    assert [p.name for p in layout(load(recipe, settings).recipe)] == ["broker+source-0", "learner-0"]
    both = load(recipe, ["algorithm.name=rlpd", "policy.head=tanh_gaussian"])
    assert both.online and list(both.feeds) == ["train", "demos"]
    assert [p.name for p in layout(both.recipe)] == [
        "broker-0", "source-0", "hub-0", "actor-0", "learner-0"
    ]  # fmt: skip


def test_the_planner_says_that_it_knows_no_data(recipe: Path) -> None:
    with pytest.raises(ConfigError, match="'sft' learns from data sets, which the planner does not know"):
        prepare(recipe, [])


def test_what_a_run_without_an_environment_observes(recipe: Path) -> None:
    dial_in = ["env.placement=dial_in", "eval.listen=tcp://127.0.0.1:5599"]
    spec = offline_spec(load(recipe, dial_in).recipe)
    assert spec.name == "toy-continuous" and spec.observation["obs"].shape == (4,)
