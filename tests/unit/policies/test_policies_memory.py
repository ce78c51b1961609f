"""Memories: sequences against single decisions and torch's own layers, what a state is."""

import numpy as np
import pytest
import torch
from torch import nn

from rollbus_core import rng
from rollbus_policies import recurrent
from rollbus_policies._memory import CELLS
from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec("toy", {"obs": ArraySpec("float32", (4,))}, ActionSpec("discrete", num=[3]))
#: Floats of a row's state at the default width, 64.
SIZES = {"gru": 64, "lstm": 128}
every_cell = pytest.mark.parametrize("cell", SIZES)


def made(cell, **settings):
    torch.manual_seed(1)
    return recurrent.make(recurrent.Config(cell=cell, **settings), SPEC, critic=True)


@every_cell
@pytest.mark.parametrize("critic", ["own", "shared"])
def test_sequence_equals_decision_by_decision(cell, critic):
    length, rows = 12, 3
    policy = made(cell, critic=critic)
    generator = np.random.default_rng(2)
    obs = generator.normal(size=(length, rows, 4)).astype(np.float32)
    start = generator.random((length, rows)) < 0.25
    state = first = generator.normal(size=(rows, policy.spec.state_size)).astype(np.float32)
    ask, acts = Ask("sample", ("log_prob", "value")), []
    for t in range(length):
        state = np.where(start[t][:, None], np.float32(0), state)
        seeds = rng.decision_seeds(np.uint64(5), np.arange(rows), np.full(rows, t))
        acts.append(policy.act({"obs": obs[t]}, state, ask, seeds))
        state = acts[-1].state
        assert state.shape == (rows, SIZES[cell]) and state.dtype == np.float32
    assert start.any() and not start.all()
    scored = policy(
        {
            "obs/obs": torch.from_numpy(obs),
            "action": torch.from_numpy(np.stack([a.action for a in acts])),
            "state": torch.from_numpy(first),
            "start": torch.from_numpy(start),
        },
        ("log_prob", "value", "features"),
    )
    for name in ("log_prob", "value"):
        expected = np.stack([a.extras[name] for a in acts])
        np.testing.assert_allclose(scored[name].detach().numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(scored["features"][-1].detach().numpy(), state[:, :64], atol=1e-6)


@every_cell
def test_no_gradient_crosses_the_start_of_an_episode(cell):
    policy = made(cell)
    obs = torch.randn(4, 1, 4, requires_grad=True)
    batch = {
        "obs/obs": obs,
        "state": torch.randn(1, SIZES[cell]),
        "start": torch.tensor([[0], [0], [1], [0]]).bool(),
    }
    policy(batch, ("features",))["features"][3].sum().backward()
    assert (obs.grad[:2] == 0).all() and (obs.grad[2:] != 0).any()


@every_cell
def test_own_recurrent_critic_leaves_the_memory_alone(cell):
    policy = made(cell)
    batch = {
        "obs/obs": torch.randn(4, 2, 4),
        "state": torch.zeros(2, SIZES[cell]),
        "start": torch.zeros(4, 2).bool(),
    }
    policy(batch, ("value",))["value"].sum().backward()
    assert all(p.grad is None for p in policy.memory.parameters())
    assert all(p.grad is not None for p in policy.critic.parameters())


@every_cell
def test_state_is_checked(cell):
    policy = made(cell)
    with pytest.raises(SpecError, match=rf"\[2, {SIZES[cell]}\], came none"):
        policy.act({"obs": np.zeros((2, 4), np.float32)}, None, Ask(), np.zeros(2, np.uint64))
    with pytest.raises(SpecError, match="sequences"):
        policy({"obs/obs": torch.zeros(3, 2, 4), "state": torch.zeros(2, SIZES[cell])}, ("features",))


def test_an_lstm_is_torch_s_with_both_states_side_by_side():
    torch.manual_seed(0)
    mine, theirs = CELLS["lstm"](5, 7, "torch"), nn.LSTM(5, 7)
    theirs.load_state_dict(mine.state_dict())
    x, hidden, cells = torch.randn(9, 3, 5), torch.randn(3, 7), torch.randn(3, 7)
    out, after = mine.advance(x, torch.cat([hidden, cells], 1))
    expected, (last_hidden, last_cells) = theirs(x, (hidden[None], cells[None]))
    assert torch.equal(out, expected)
    assert torch.equal(after, torch.cat([last_hidden[0], last_cells[0]], 1))


def test_an_lstm_step_by_hand():
    """Gates in the order of torch: input, forget, new, output."""
    torch.manual_seed(0)
    layer = CELLS["lstm"](2, 3, "torch")
    x, hidden, cells = torch.randn(1, 4, 2), torch.randn(4, 3), torch.randn(4, 3)
    gates = x[0] @ layer.weight_ih_l0.T + layer.bias_ih_l0 + hidden @ layer.weight_hh_l0.T + layer.bias_hh_l0
    take, keep, new, give = gates.split(3, 1)
    wanted = keep.sigmoid() * cells + take.sigmoid() * new.tanh()
    out, after = layer.advance(x, torch.cat([hidden, cells], 1))
    torch.testing.assert_close(after[:, 3:], wanted)
    torch.testing.assert_close(after[:, :3], give.sigmoid() * wanted.tanh())
    assert torch.equal(out[0], after[:, :3])


@every_cell
def test_a_fresh_start_forgets_the_whole_state(cell):
    policy = made(cell)
    obs, start = torch.randn(3, 2, 4), torch.tensor([[1, 0], [0, 0], [0, 1]]).bool()
    found = [
        policy({"obs/obs": obs, "state": state, "start": start}, ("features",))["features"]
        for state in (torch.zeros(2, SIZES[cell]), torch.randn(2, SIZES[cell]))
    ]
    assert torch.equal(found[0][:, 0], found[1][:, 0]), "an episode's first decision has state 0"
    assert torch.equal(found[0][2, 1], found[1][2, 1]), "and so has one that begins within the sequence"
    assert (found[0][:2, 1] != found[1][:2, 1]).any()


@every_cell
def test_each_half_of_the_state_matters(cell):
    policy, obs = made(cell), {"obs": np.zeros((1, 4), np.float32)}
    seeds = np.zeros(1, np.uint64)
    before = policy.act(obs, np.zeros((1, SIZES[cell]), np.float32), Ask("mode"), seeds).state
    for place in (0, SIZES[cell] - 1):
        state = np.zeros((1, SIZES[cell]), np.float32)
        state[0, place] = 1.0
        after = policy.act(obs, state, Ask("mode"), seeds).state
        assert np.abs(after - before).max() > 1e-3


@every_cell
def test_weights_keep_torch_s_names(cell):
    names = {name for name in made(cell).state_dict() if name.startswith(f"{cell}.")}
    assert names == {f"{cell}.{kind}_{of}_l0" for kind in ("weight", "bias") for of in ("ih", "hh")}
