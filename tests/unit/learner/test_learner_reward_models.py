"""Learned rewards: their numbers by hand, what the models tell apart, what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_learner_labellers import SPEC, episode

from rollbus_core import model_folders
from rollbus_core.config.models import RewardConfig
from rollbus_core.datasets.writer import DatasetWriter
from rollbus_core.feed import Feed, TableConfig
from rollbus_core.model_folders import REWARD
from rollbus_launch import reward
from rollbus_learner import rewards
from rollbus_learner.reward_model import ModelReward
from rollbus_learner.reward_models import progress, success
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

GAMMA = 0.9
#: A reward model of a user's own: phi is what is observed, over a length, which is 10.
RULER = """
import torch
from pydantic import BaseModel

FORM = "shaping"

class Config(BaseModel):
    pass

class Ruler(torch.nn.Module):
    keys = ("obs",)

    def __init__(self):
        super().__init__()
        self.length = torch.nn.Parameter(torch.ones(()))

    def forward(self, obs):
        return obs["obs"][..., 0] / self.length

def build(config, spec):
    return Ruler()
"""


@pytest.fixture
def ruler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of the model above."""
    (tmp_path / "own_rewards").mkdir()
    (tmp_path / "own_rewards/ruler.py").write_text(RULER)
    monkeypatch.syspath_prepend(tmp_path)
    model_folders.write(
        tmp_path / "ruler", REWARD, {"length": np.array(10.0, np.float32)},
        {"by": "own_rewards.ruler", "settings": {}, "spec": SPEC.to_data()},
    )  # fmt: skip
    yield tmp_path / "ruler"
    sys.modules.pop("own_rewards.ruler", None)


def model(folder, form="auto", gamma=GAMMA, spec=SPEC):
    return ModelReward(folder, spec, form=form, gamma=gamma, device="cpu", where="learner.rewards")


def row(places, final, *, terminated, num_steps=1):
    """A chunk [T, 1] of one row that begins at ``places[0]``; its last decision ends the episode."""
    num = len(places)
    end = torch.zeros(num, 1, dtype=torch.bool)
    end[-1] = True
    slot = torch.full((num, 1), -1)
    slot[-1] = 0
    frames = torch.tensor([*places, 0.0])  # the next episode begins at 0
    return {
        "obs/obs": frames[:, None, None], "final_obs/obs": torch.tensor([[final]]), "final_slot": slot,
        "valid": torch.ones(num, 1, dtype=torch.bool), "reward": torch.zeros(num, 1, 1),
        "num_steps": torch.full((num, 1), num_steps),
        "terminated": end & terminated, "truncated": end & (not terminated),
    }  # fmt: skip


def test_shaping_by_hand(ruler):
    # 0.9 phi' - phi; what a time limit cut off keeps its potential, what terminated has none.
    cut = model(ruler).of(row([1.0, 3.0], 5.0, terminated=False))
    np.testing.assert_allclose(cut[:, 0], [0.9 * 0.3 - 0.1, 0.9 * 0.5 - 0.3], rtol=1e-6)
    over = model(ruler).of(row([1.0, 3.0], 5.0, terminated=True))
    np.testing.assert_allclose(over[:, 0], [0.9 * 0.3 - 0.1, -0.3], rtol=1e-6)
    # A decision of 2 steps has the discount of 2.
    twice = model(ruler).of(row([1.0, 3.0], 5.0, terminated=False, num_steps=2))
    np.testing.assert_allclose(twice[:, 0], [0.81 * 0.3 - 0.1, 0.81 * 0.5 - 0.3], rtol=1e-6)


@pytest.mark.parametrize("terminated", [True, False])
def test_shaping_adds_up_over_an_episode_to_its_ends(ruler, terminated):
    places = np.random.default_rng(3).uniform(0, 10, 12).tolist()
    given = model(ruler).of(row(places, 7.0, terminated=terminated))[:, 0].double().numpy()
    total = (GAMMA ** np.arange(12) * given).sum()
    end = 0.0 if terminated else GAMMA**12 * 0.7
    assert total == pytest.approx(end - places[0] / 10, abs=1e-6)


def test_each_and_end_by_hand(ruler):
    batch = row([1.0, 3.0], 5.0, terminated=False)
    np.testing.assert_allclose(model(ruler, "each").of(batch)[:, 0], [0.3, 0.5], rtol=1e-6)
    np.testing.assert_allclose(model(ruler, "end").of(batch)[:, 0], [0.0, 0.5], rtol=1e-6)
    assert model(ruler, "end", gamma=None).of(batch)[-1].item() == pytest.approx(0.5)


def test_replayed_stretches_of_several_decisions_add_up(ruler):
    batch = {
        "obs/obs": torch.tensor([[2.0], [4.0]]), "next_obs/obs": torch.tensor([[6.0], [8.0]]),
        "valid": torch.ones(2, dtype=torch.bool), "terminated": torch.tensor([False, True]),
        "truncated": torch.zeros(2, dtype=torch.bool),
        "num_steps": torch.ones(2, dtype=torch.int32), "n_step_num": torch.tensor([3, 2]),
        "reward": torch.zeros(2, 1), "n_step_reward": torch.zeros(2, 3),
    }  # fmt: skip
    feed = Feed(table=TableConfig(sampler="replay"), num_decisions=4, unit="step", n_step=3)
    config = RewardConfig(source=str(ruler), weight=2.0)
    built = rewards.build([config], {"train": feed}, SPEC, GAMMA, "cpu")
    metrics = built.add(batch)
    expected = [GAMMA**3 * 0.6 - 0.2, -0.4]
    np.testing.assert_allclose(batch["n_step_reward"][:, 0], [2 * e for e in expected], rtol=1e-6)
    assert batch["reward"].abs().sum() == 0 and batch["n_step_reward"][:, 1:].abs().sum() == 0
    assert metrics == {"reward_ruler": pytest.approx(sum(expected) / 2)}
    with pytest.raises(ConfigError, match="set algorithm.n_step: 1"):
        rewards.build([config.model_copy(update={"form": "end"})], {"train": feed}, SPEC, GAMMA, "cpu")


def test_of_stacked_frames_the_newest_counts(ruler):
    batch = row([1.0, 3.0], 5.0, terminated=False)
    stacked = dict(batch)
    for name in ("obs/obs", "final_obs/obs"):
        old = torch.full_like(batch[name], 9.0)
        stacked[name] = torch.stack([old, old, batch[name]], -2)
    assert torch.equal(model(ruler).of(stacked), model(ruler).of(batch))


def test_what_does_not_fit_is_refused(ruler):
    def spec(name, *shape):
        return EnvSpec("there", {name: ArraySpec("float32", shape)}, ActionSpec("discrete", num=[2]))

    with pytest.raises(ConfigError, match=r"was learned from line and does not fit there: it reads 'obs'"
                                          r" as float32 \[1\], which is float32 \[4\] here"):  # fmt: skip
        model(ruler, spec=spec("obs", 4))
    with pytest.raises(ConfigError, match=r"reads 'obs', which is not observed \(but other\)"):
        model(ruler, spec=spec("other", 1))
    with pytest.raises(ConfigError, match="form shaping, which needs a discount"):
        model(ruler, gamma=None)
    with pytest.raises(ConfigError, match="holds no reward model; rollbus reward DATASET --out"):
        model(ruler.parent / "nothing")
    with open(ruler / "reward.safetensors", "ab") as file:
        file.write(b"x")
    with pytest.raises(ConfigError, match="is not the file that was written; train the reward model anew"):
        model(ruler)


# --- the models ---------------------------------------------------------------------------------


def walk(length, final, seed, success=True):
    """From 0 to ``final`` in steps of one size, with some noise."""
    noise = np.random.default_rng(seed).normal(0, 0.02, length)
    made = episode(np.linspace(0, final, length, endpoint=False) + noise, success)
    made.final_obs = {"obs": np.array([final], np.float32)}
    return made


def outcomes(num, seed):
    """Episodes that end somewhere in [0, 1]: further out they succeed more often, chance x at x."""
    draw = np.random.default_rng(seed)
    ends = draw.uniform(0, 1, num)
    return [walk(5, end, i, bool(draw.random() < end)) for i, end in enumerate(ends)]


def test_progress_is_the_part_that_is_done():
    config = progress.Config(steps=150, width=16)
    module, figures = progress.train(config, [walk(10, 1.0, i) for i in range(20)], SPEC)
    assert figures["demonstrations"] == 16 and figures["error"] < 0.05
    module.requires_grad_(False)
    found = module({"obs": torch.linspace(0, 1, 5)[:, None]}).tolist()
    np.testing.assert_allclose(found, [0.0, 0.25, 0.5, 0.75, 1.0], atol=0.12)
    members = [float(member({"obs": torch.ones(1, 1)})) for member in module.members]
    assert float(module({"obs": torch.ones(1, 1)})) == min(members) and len(set(members)) == 3


def test_progress_needs_what_succeeded():
    with pytest.raises(ConfigError, match="learns from episodes that succeeded"):
        progress.train(progress.Config(), [walk(5, 1.0, 0, False)], SPEC)


def test_success_is_told_from_failure_with_a_probability():
    config = success.Config(steps=150, width=16)
    module, figures = success.train(config, outcomes(400, 1), SPEC)
    unseen = outcomes(1000, 2)
    final = torch.tensor([float(each.final_obs["obs"][0]) for each in unseen])
    with torch.no_grad():
        chance = module({"obs": final[:, None]}).numpy()
    truth = np.array([each.success for each in unseen])
    # Of x uniform and successes with chance x a perfect score has an AUC of 5/6.
    assert success.auc(chance, truth) > 0.78 and figures["auc"] > 0.7
    for low in (0.0, 0.25, 0.5, 0.75):
        there = (chance >= low) & (chance < low + 0.25)
        assert chance[there].mean() == pytest.approx(truth[there].mean(), abs=0.1)


def test_all_frames_say_what_will_become_of_it():
    module, _ = success.train(success.Config(steps=100, width=16, last=0), outcomes(100, 1), SPEC)
    with torch.no_grad():
        early, late = module({"obs": torch.tensor([[0.02], [0.95]])}).tolist()
    assert late > early + 0.3


def test_success_needs_both_outcomes():
    with pytest.raises(ConfigError, match="there are 3 that succeeded and 0 that failed"):
        success.train(success.Config(), [walk(5, 1.0, i) for i in range(3)], SPEC)


def test_calibration_finds_the_scale_that_made_the_outcomes():
    draw = np.random.default_rng(0)
    logits = draw.normal(0, 4, 20_000)
    truth = draw.random(20_000) < 1 / (1 + np.exp(-(0.5 * logits - 1.0)))
    scale, shift = success.calibration(logits, truth)
    assert scale == pytest.approx(0.5, abs=0.03) and shift == pytest.approx(-1.0, abs=0.06)
    apart = success.calibration(np.array([-1.0, -2.0, 1.0, 2.0]), np.array([False, False, True, True]))
    assert np.isfinite(apart).all() and apart[0] > 0
    assert success.calibration(logits, ~truth)[0] == 1e-3


def test_auc_by_hand():
    assert success.auc(np.array([1.0, 2.0, 3.0, 2.0]), np.array([False, True, True, False])) == 3.5 / 4


@pytest.mark.parametrize("by", lookup.names(reward.MODELS))
def test_a_model_is_written_with_what_made_it_and_read_back(by, tmp_path):
    with DatasetWriter(tmp_path / "data", SPEC) as writer:
        for each in [walk(6, 1.0, i) for i in range(6)] + [walk(6, 0.2, i, False) for i in range(6)]:
            writer.add(each)
    config = lookup.find(reward.MODELS, by).Config(steps=20, width=8)
    card = reward.train_reward([tmp_path / "data"], by, config, tmp_path / "model")
    assert card["datasets"] == [writer.content] and card["episodes"] == 12 and card["by"] == by
    again = reward.train_reward([tmp_path / "data"], by, config, tmp_path / "again")
    assert again["content"] == card["content"]
    batch = row([0.0, 0.4], 0.9, terminated=False)
    one, other = (model(tmp_path / name).of(batch) for name in ("model", "again"))
    assert torch.equal(one, other) and one.shape == (2, 1) and not one.requires_grad
    with pytest.raises(ConfigError, match="exists; give a new folder"):
        reward.train_reward([tmp_path / "data"], by, config, tmp_path / "model")
