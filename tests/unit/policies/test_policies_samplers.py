"""Samplers in numpy against the heads in torch, over parameters of every size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rollbus_policies._heads import make_head
from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec

ROWS = 200
BOX = ActionSpec("continuous", (2, 3), low=[-2.0, 0.0] * 3, high=[2.0, 1.0] * 3)
HEADS = {
    "categorical": ("auto", ActionSpec("discrete", num=[7])),
    "one class": ("auto", ActionSpec("discrete", num=[1])),
    "multi": ("auto", ActionSpec("multi_discrete", (3,), num=[2, 5, 1])),
    "gaussian": ("gaussian", BOX),
    "tanh_gaussian": ("tanh_gaussian", BOX),
    "state_gaussian": ("state_gaussian", BOX),
    "bins": ("bins", BOX),
    "deterministic": ("deterministic", BOX),
    "q_values": ("q_values", ActionSpec("discrete", num=[7])),
    "dueling": ("dueling_q_values", ActionSpec("discrete", num=[7])),
}


@pytest.fixture(params=HEADS)
def head(request):
    torch.manual_seed(0)
    made = make_head(*HEADS[request.param])
    for parameter in made.parameters():
        parameter.data.uniform_(-3.0, 1.0)
    if not made.has_density:
        made.explore(0.3)
    return made


def sampler_of(head):
    sampler = head.sampler()
    sampler.use({f"head.{name}": value.detach().numpy() for name, value in head.state_dict().items()})
    return sampler


def raw_of(head, scale):
    return (scale * np.random.default_rng(1).normal(size=(ROWS, head.num_params))).astype(np.float32)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("mode", ["sample", "mode", "random"])
def test_equal_to_the_head(head, mode, scale):
    raw, seeds = raw_of(head, scale), np.arange(ROWS, dtype=np.uint64)
    act = sampler_of(head).decide(raw.copy(), Ask(mode, ("log_prob", "entropy")), seeds)
    params = head(torch.from_numpy(raw))
    expected = {
        "sample": lambda: head.sample(params, torch.from_numpy(head.noise(seeds))).detach().numpy(),
        "mode": lambda: head.mode(params).detach().numpy(),
        "random": lambda: head.random(seeds),
    }[mode]()
    assert act.action.dtype == head.action[0] and act.action.shape == (ROWS, *head.action[1])
    np.testing.assert_allclose(act.action, expected, rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(act.env_action, head.env_action(act.action))
    if not head.has_density:
        assert not act.extras
        return
    scored = head.log_prob(params, torch.from_numpy(act.action)).detach().numpy()
    np.testing.assert_allclose(act.extras["log_prob"], scored, rtol=1e-5, atol=1e-5)
    entropy = head.entropy(params).detach().numpy()
    np.testing.assert_allclose(act.extras["entropy"], entropy, rtol=1e-5, atol=1e-5)


def test_a_coin_by_hand():
    # Logits 0 and log 3: p = 1/4, 3/4; H = log 4 - 3/4 log 3.
    sampler = make_head("auto", ActionSpec("discrete", num=[2])).sampler()
    raw = np.array([[0.0, math.log(3.0)]] * 4000, np.float32)
    act = sampler.decide(raw, Ask("sample", ("log_prob", "entropy")), np.arange(4000, dtype=np.uint64))
    assert act.action.mean() == pytest.approx(0.75, abs=0.03)
    np.testing.assert_allclose(np.exp(act.extras["log_prob"]), np.where(act.action, 0.75, 0.25), rtol=1e-6)
    np.testing.assert_allclose(act.extras["entropy"], math.log(4) - 0.75 * math.log(3), rtol=1e-6)


def test_results_are_no_views_of_the_engine_s_buffer(head):
    raw = raw_of(head, 1.0)
    for mode in ("sample", "mode", "random"):
        act = sampler_of(head).decide(
            raw, Ask(mode, ("log_prob", "entropy")), np.arange(ROWS, dtype=np.uint64)
        )
        for array in (act.action, act.env_action, *act.extras.values()):
            assert not np.shares_memory(array, raw)


def test_modes_must_fit_the_rows(head):
    with pytest.raises(SpecError, match="2 modes for 3 rows"):
        sampler_of(head).decide(raw_of(head, 1.0)[:3], Ask(["mode", "mode"]), np.zeros(3, np.uint64))
