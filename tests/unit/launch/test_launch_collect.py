"""Collecting: what a hub and an actor did is what stands in the data set, episode by episode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rollbus_core import service
from rollbus_core.access import Access
from rollbus_core.config.load import load
from rollbus_core.datasets.fit import FittedDataset
from rollbus_core.datasets.reader import Dataset
from rollbus_core.rng import episode_seed
from rollbus_envs import toy
from rollbus_launch import scripts
from rollbus_launch.collect import Collected, collect
from rollbus_launch.evaluation.evaluate import Running, Settings
from rollbus_launch.evaluation.recorder import EpisodeRecorder
from rollbus_launch.policy_module import make_policy
from rollbus_learner.algorithms import ppo
from rollbus_learner.checkpoint import Checkpoints, Training
from rollbus_policies.base import Ask
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import EXPERT_ACTION, ActionSpec, ArraySpec, EnvSpec

#: How far the mean over 96 starts may be from the optimal return: starts and bonuses are random.
CHANCE = {"discrete": 0.05, "dict": 0.5}
EXPERTS = ("discrete", "multi_discrete", "continuous", "sparse_reach", "image", "dict", "token", "memory")


def run(folder: Path, kind: str, policy: str = "script", *, rows: int = 4, episodes: int = 12,
        out: str = "d", overrides: tuple[str, ...] = (), **options: bool) -> Collected:  # fmt: skip
    recipe = folder / "r.yaml"
    recipe.write_text(f"env: {{name: toy, kind: {kind}}}\nalgorithm: {{name: ppo}}\n")
    settings = Settings(episodes, rows, 3, "deterministic")
    return collect(recipe, list(overrides), policy, folder / out, settings, **options)


def episodes_of(folder: Path) -> list:
    dataset = Dataset(folder)
    assert dataset.spec is not None
    chosen = [info.index for info in dataset.episodes()]
    return [found for _, found in FittedDataset(dataset, dataset.spec).episodes(chosen)]


@pytest.mark.parametrize("kind", EXPERTS)
def test_experts_are_the_best_there_is(kind: str, tmp_path: Path) -> None:
    """Mean return is the optimal one, but for what chance adds to it; every episode succeeds."""
    made = run(tmp_path, kind, rows=32, episodes=96)
    best = toy.make(toy.Config(kind=kind), 1).spec.optimal_return
    assert made.mean_return == pytest.approx(best, abs=CHANCE.get(kind, 1e-6)) and made.success_rate == 1.0
    spec = Dataset(tmp_path / "d").spec
    assert spec is not None and EXPERT_ACTION not in spec.observation
    assert all((e.source == 2).all() for e in episodes_of(tmp_path / "d"))


def test_every_step_stands_where_it_was_taken(tmp_path: Path) -> None:
    """Replayed in a fresh environment from its seed, an episode gives the same numbers."""
    run(tmp_path, "continuous", "random")
    env, one = toy.make(toy.Config(kind="continuous"), 1), np.zeros(1, np.int32)
    for index, found in enumerate(episodes_of(tmp_path / "d")):
        assert found.seed == episode_seed(3, index, evaluation=False)
        obs = env.reset(one, np.array([found.seed]), [])
        for t in range(len(found)):
            assert (obs["obs"][0] == found.obs["obs"][t]).all()
            result = env.step(one, found.action[t : t + 1], True)
            obs = result.obs
            assert result.reward[0] == found.reward[t]
        assert (obs["obs"][0] == found.final_obs["obs"]).all()
        assert found.truncated and not found.terminated and len(found) == 10 and (found.source == 1).all()


def test_the_number_of_rows_changes_nothing(tmp_path: Path) -> None:
    made = [run(tmp_path, "discrete", "random", rows=n, out=f"d{n}").content for n in (1, 5, 12)]
    assert len(set(made)) == 1
    assert run(tmp_path, "discrete", "random", out="e", episodes=11).content != made[0]


def test_only_what_succeeded(tmp_path: Path) -> None:
    all_of_them = run(tmp_path, "discrete", "random", out="a", episodes=30)
    kept = run(tmp_path, "discrete", "random", out="b", episodes=30, successful_only=True)
    assert 0 < kept.episodes < 30 == kept.run and all_of_them.success_rate == kept.success_rate
    assert kept.episodes == round(30 * all_of_them.success_rate)
    assert all(found.success for found in episodes_of(tmp_path / "b"))
    with pytest.raises(ConfigError, match="none of 12 episodes succeeded"):
        run(tmp_path, "sparse_reach", "random", out="c", successful_only=True)
    assert not (tmp_path / "c").exists()


def test_more_episodes_are_added_to_a_data_set(tmp_path: Path) -> None:
    run(tmp_path, "continuous")
    with pytest.raises(ConfigError, match="exists; give a new folder"):
        run(tmp_path, "continuous")
    made = run(tmp_path, "continuous", "random", append=True)
    assert (made.episodes, made.run, made.frames) == (24, 12, 240)
    sources = [int(found.source[0]) for found in episodes_of(tmp_path / "d")]
    assert sources == [2] * 12 + [1] * 12


def test_a_function_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_act.py").write_text(
        "import numpy as np\n"
        "def right(obs): return np.ones(len(obs['obs']), int)\n"
        "def wrong(obs): return np.ones((len(obs['obs']), 3))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = run(tmp_path, "discrete", "mine_to_act:right")
    assert made.success_rate == 1.0 and all((e.source == 4).all() for e in episodes_of(tmp_path / "d"))
    with pytest.raises(ConfigError, match=r"gave actions \[\d, 3\]"):
        run(tmp_path, "discrete", "mine_to_act:wrong", out="e")
    with pytest.raises(ConfigError, match="has no function 'left'"):
        run(tmp_path, "discrete", "mine_to_act:left", out="e")
    with pytest.raises(ConfigError, match="no module 'nobody'"):
        run(tmp_path, "discrete", "nobody:acts", out="e")
    with pytest.raises(ConfigError, match="toy-counter has no expert|has no expert"):
        run(tmp_path, "counter", out="e")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith((".e", "e"))]


def test_chance_stays_within_bounds_and_covers_them() -> None:
    action = ActionSpec("continuous", (2,), low=[-1.0, 0.0], high=[1.0, 5.0])
    spec = EnvSpec("x", {"o": ArraySpec("float32", (1,))}, action)
    drawn = scripts.random(spec)({}, np.arange(4000, dtype=np.uint64))
    assert drawn.min(0) == pytest.approx([-1, 0], abs=0.01) and drawn.max(0) == pytest.approx(
        [1, 5], abs=0.01
    )
    assert drawn.mean(0) == pytest.approx([0, 2.5], abs=0.1)
    choices = EnvSpec("x", spec.observation, ActionSpec("multi_discrete", (2,), num=[3, 4]))
    drawn = scripts.random(choices)({}, np.arange(4000, dtype=np.uint64))
    assert set(drawn[:, 0]) == {0, 1, 2} and set(drawn[:, 1]) == {0, 1, 2, 3}


def test_options_are_drawn_by_seed_and_recorded(tmp_path: Path) -> None:
    """What an episode began with stands beside it, whatever the number of rows."""
    options = "env.options={name: random, values: {distance: {uniform: [0.1, 0.8]}}}"
    contents = [
        run(tmp_path, "sparse_reach", rows=rows, out=str(rows), overrides=(options,)).content
        for rows in (1, 5)
    ]
    assert contents[0] == contents[1]
    infos, found = Dataset(tmp_path / "5").episodes(), episodes_of(tmp_path / "5")
    for info, each in zip(infos, found, strict=True):
        assert info.options is not None
        first = each.obs["obs"][0]
        assert np.abs(first[2:] - first[:2]) == pytest.approx(info.options["distance"], abs=1e-6)
        assert len(each) == int(np.ceil((info.options["distance"] - 0.05) / 0.1 - 1e-6))
    assert len({info.options["distance"] for info in infos if info.options}) == 12
    levels = "env.options={name: curriculum, levels: [{distance: 0.1}, {distance: 0.8}]}"
    with pytest.raises(ConfigError, match="env.options: curriculum answers to outcomes"):
        run(tmp_path, "sparse_reach", out="other", overrides=(levels,))


@pytest.mark.parametrize("ensemble", [None, 0.1])
def test_plans_are_recorded_step_by_step(ensemble: float | None, tmp_path: Path) -> None:
    """Steps t to t + 2 hold what was planned on the observation of step t; replayed they give the same."""
    recipe = tmp_path / "r.yaml"
    plan = 3 if ensemble is None else 4
    recipe.write_text(
        "env: {name: toy, kind: continuous}\n"
        f"policy: {{name: act, chunk: 4, execute: {plan}, width: 16, num_heads: 2, layers: 1}}\n"
    )
    settings = [] if ensemble is None else [f"actor.temporal_ensemble={ensemble}"]
    resolved = load(recipe, settings)
    env, one = toy.make(toy.Config(kind="continuous"), 1), np.zeros(1, np.int32)
    torch.manual_seed(0)
    policy = make_policy(resolved.recipe, env.spec, critic=False)
    with torch.no_grad():
        policy.output.bias.normal_()
        policy.output.weight.mul_(100)
    algorithm = ppo.make(resolved.recipe.algorithm, env.spec, policy, resolved.feed)
    checkpoint = Checkpoints(tmp_path / "c", 1).save(Training(algorithm, {}))
    found: list = []
    recorder = EpisodeRecorder(5, 0, found.append)
    listed = Settings(5, 4, 3, "deterministic", collect=recorder)
    running = Running(checkpoint, resolved, listed, Access.from_environment())
    service.run(running.services, should_stop=lambda: recorder.done, drain_s=1.0)
    assert [len(episode) for episode in found] == [10] * 5
    for episode in found:
        obs = env.reset(one, np.array([episode.seed]), [])
        for t in range(10):
            assert (obs["obs"][0] == episode.obs["obs"][t]).all()
            result = env.step(one, episode.action[t : t + 1], True)
            obs = result.obs
            assert result.reward[0] == episode.reward[t]
        if ensemble is None:
            decided = policy.act({"obs": episode.obs["obs"][::3]}, None, Ask("mode"), np.zeros(4, np.uint64))
            planned = decided.env_action.reshape(12, -1)[:10]
            np.testing.assert_allclose(episode.action, planned, rtol=0, atol=1e-6)
            assert np.abs(np.diff(planned, axis=0)).max() > 0.01
