"""The token policy: completions with kept keys equal a pass over the whole, rows do not mix."""

import numpy as np
import pytest
import torch

from rollbus_core import rng
from rollbus_envs import toy
from rollbus_policies import tokens
from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

WANT = ("log_prob", "token_log_prob", "entropy", "value")


@pytest.fixture(scope="module")
def made():
    env = toy.make(toy.Config(kind="digits"), 16)
    obs = env.reset(np.arange(16), np.arange(16), [None] * 16)
    torch.manual_seed(0)
    return tokens.make(tokens.Config(), env.spec, critic=True), obs


def seeds(num=16):
    return rng.decision_seeds(rng.stream(1, "test"), np.arange(num), np.zeros(num, int))


def scored(policy, obs, action):
    batch = {"obs/prompt": torch.from_numpy(obs["prompt"]), "action": torch.from_numpy(action)}
    with torch.no_grad():
        return policy(batch, WANT)


def test_acting_with_kept_keys_equals_scoring_the_whole(made):
    policy, obs = made
    act = policy.act(obs, None, Ask("sample", WANT), seeds())
    found = scored(policy, obs, act.action)
    for name in WANT:
        assert np.abs(found[name].numpy() - act.extras[name]).max() < 1e-5, name
    mask = found["token_mask"].numpy()
    assert (act.action[~mask] == 0).all() and (act.extras["token_log_prob"][~mask] == 0).all()
    ended = (act.action == 1).any(1)
    assert (mask.sum(1) == np.where(ended, (act.action == 1).argmax(1) + 1, 9)).all()


def test_the_mode_is_the_likeliest_token_at_every_place(made):
    policy, obs = made
    action = policy.act(obs, None, Ask("mode"), seeds()).action
    mask = policy.token_mask(torch.from_numpy(action)).numpy()
    best = scored(policy, obs, action)["token_log_prob"].numpy()
    for place in range(9):
        for other in range(16):
            changed = action.copy()
            changed[:, place] = other
            same = mask[:, place]
            assert (
                scored(policy, obs, changed)["token_log_prob"].numpy()[same, place]
                <= best[same, place] + 1e-6
            ).all()


def test_rows_do_not_depend_on_their_neighbours(made):
    policy, obs = made
    whole = policy.act(obs, None, Ask("sample", ("log_prob",)), seeds())
    for row in (0, 7):
        alone = policy.act(
            {"prompt": obs["prompt"][[row]]}, None, Ask("sample", ("log_prob",)), seeds()[[row]]
        )
        assert alone.action[0].tolist() == whole.action[row].tolist()
        assert alone.extras["log_prob"][0] == pytest.approx(whole.extras["log_prob"][row], abs=1e-5)


def test_probabilities_of_all_completions_sum_to_one():
    spec = EnvSpec(
        "tiny",
        {"prompt": ArraySpec("int64", (2,), 0, 2, layout="tokens")},
        ActionSpec("multi_discrete", (3,), num=[3] * 3, layout="tokens", end_token=1),
    )
    torch.manual_seed(1)
    policy = tokens.make(tokens.Config(width=8, heads=2), spec, critic=False)
    every = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)
    # What follows an end token does not count: keep one completion of each kind.
    kept = np.unique(np.where(policy.token_mask(torch.from_numpy(every)).numpy(), every, 0), axis=0)
    prompt = torch.tensor([[2, 0]]).expand(len(kept), 2)
    found = policy({"obs/prompt": prompt, "action": torch.from_numpy(kept)}, ("log_prob", "entropy"))
    assert float(found["log_prob"].exp().sum()) == pytest.approx(1.0, abs=1e-5)


def test_leading_dimensions_and_gradients(made):
    policy, obs = made
    action = policy.act(obs, None, Ask("sample"), seeds()).action
    flat = scored(policy, obs, action)
    batch = {
        "obs/prompt": torch.from_numpy(obs["prompt"]).reshape(2, 8, -1),
        "action": torch.from_numpy(action).reshape(2, 8, -1),
    }
    found = policy(batch, (*WANT, "cloning_loss"))
    assert found["token_log_prob"].shape == (2, 8, 9) and found["value"].shape == (2, 8)
    assert torch.allclose(found["log_prob"].flatten(), flat["log_prob"], atol=1e-6)
    assert torch.equal(found["cloning_loss"], -found["log_prob"])
    (found["log_prob"].sum() + found["value"].sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.parameters())


def test_other_tasks_are_refused():
    spec = EnvSpec("box", {"obs": ArraySpec("float32", (3,))}, ActionSpec("discrete", num=[2]))
    with pytest.raises(SpecError, match="layout tokens"):
        tokens.make(tokens.Config(), spec, critic=False)
    env = toy.make(toy.Config(kind="digits"), 1)
    with pytest.raises(SpecError, match="frame_stack"):
        tokens.make(tokens.Config(), env.spec, critic=False, frame_stack=2)
    with pytest.raises(ValueError, match="policy.heads"):
        tokens.Config(width=10, heads=4)
