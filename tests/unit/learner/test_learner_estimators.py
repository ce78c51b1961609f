"""Advantages: hand-computed numbers, identities, a scalar reference, and stable-baselines3."""

import numpy as np
import pytest
import torch

from rollbus_learner import estimators
from rollbus_learner.estimators import decision_discount, decision_reward, gae, vtrace


def column(*values, dtype=np.float32):
    return np.array(values, dtype)[:, None]


def one_row(reward, value, *, terminated=(), truncated=(), final=0.0, gamma=0.9, lam=0.95, valid=None):
    """Arguments of `gae` for a single row; ``terminated`` and ``truncated`` name steps."""
    steps = np.arange(len(reward))
    return dict(
        reward=column(*reward),
        discount=np.full((len(reward), 1), gamma, np.float32),
        value=column(*value),
        final_value=np.full((len(reward), 1), final, np.float32),
        terminated=np.isin(steps, terminated)[:, None],
        truncated=np.isin(steps, truncated)[:, None],
        valid=np.ones((len(reward), 1), bool) if valid is None else column(*valid, dtype=bool),
        lam=lam,
    )


def random_case(seed, T=13, N=5, gamma=0.97, lam=0.9):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, T + 1, N)
    valid = (np.arange(T)[:, None] < lengths) & (rng.random((T, N)) > 0.05)
    num_steps = rng.integers(1, 4, (T, N))
    return dict(
        reward=rng.normal(size=(T, N)).astype(np.float32),
        discount=decision_discount(num_steps, gamma),
        value=rng.normal(size=(T + 1, N)).astype(np.float32),
        final_value=rng.normal(size=(T, N)).astype(np.float32),
        terminated=rng.random((T, N)) < 0.1,
        truncated=rng.random((T, N)) < 0.15,
        valid=valid,
        lam=lam,
    )


def scalar_gae(c, n):
    """Straight from the definition, one row, one decision at a time."""
    T = len(c["reward"])
    out = [0.0] * T
    for t in range(T):
        weight, total, k = 1.0, 0.0, t
        while k < T and c["valid"][k, n]:
            term, trunc = c["terminated"][k, n], c["truncated"][k, n]
            after = 0.0 if term else c["final_value"][k, n] if trunc else c["value"][k + 1, n]
            total += weight * (c["reward"][k, n] + c["discount"][k, n] * after - c["value"][k, n])
            if term or trunc:
                break
            weight *= c["discount"][k, n] * c["lam"]
            k += 1
        out[t] = total
    return out


def scalar_vtrace(c, n, log_ratio):
    """vs and advantage of one row by the recursion of the paper, in Python floats."""
    T = len(c["reward"])
    vs, adv = [0.0] * T, [0.0] * T
    for t in reversed(range(T)):
        if not c["valid"][t, n]:
            continue
        term, trunc = c["terminated"][t, n], c["truncated"][t, n]
        v, g = float(c["value"][t, n]), float(c["discount"][t, n])
        rho = min(1.0, float(np.exp(log_ratio[t, n])))
        after = 0.0 if term else float(c["final_value"][t, n] if trunc else c["value"][t + 1, n])
        vs[t] = v + rho * (c["reward"][t, n] + g * after - v)
        bootstrap = after
        if t + 1 < T and c["valid"][t + 1, n] and not term and not trunc:
            vs[t] += g * c["lam"] * rho * (vs[t + 1] - c["value"][t + 1, n])
            bootstrap = vs[t + 1]
        adv[t] = rho * (c["reward"][t, n] + g * bootstrap - v)
    return adv, vs


@pytest.mark.parametrize(
    "ends, expected",
    [
        (dict(truncated=(2,)), [3.44361, 2.91650, 2.30000]),
        (dict(terminated=(2,)), [2.12776, 1.37750, 0.50000]),
        (dict(terminated=(2,), truncated=(2,)), [2.12776, 1.37750, 0.50000]),
    ],
)
def test_truncation_bootstraps_and_termination_does_not(ends, expected):
    advantage, target = gae(**one_row([1, 1, 1], [0.5, 0.5, 0.5, 99.0], final=2.0, **ends))
    np.testing.assert_allclose(advantage[:, 0], expected, atol=1e-5)
    np.testing.assert_allclose(target[:, 0], np.add(expected, 0.5), atol=1e-5)


MIDDLE = dict(reward=[1] * 4, value=[0.5] * 5, truncated=(1,), final=2.0)


def test_truncation_in_the_middle_of_a_chunk():
    advantage, _ = gae(**one_row(**MIDDLE))
    np.testing.assert_allclose(advantage[:, 0], [2.9165, 2.3, 1.76225, 0.95], atol=1e-6)


def test_vtrace_by_hand():
    advantage, target = vtrace(**one_row(**MIDDLE), log_ratio=np.log(column(2, 0.5, 1, 1)))
    np.testing.assert_allclose(target[:, 0], [2.43325, 1.65, 2.26225, 1.45], atol=1e-6)
    np.testing.assert_allclose(advantage[:, 0], [1.985, 1.15, 1.805, 0.95], atol=1e-6)


def test_reward_and_discount_of_executed_steps():
    reward = np.array([[[1.0, 2.0, 4.0]], [[1.0, 2.0, 999.0]]], np.float32)
    num_steps = np.array([[3], [2]], np.int32)
    np.testing.assert_allclose(decision_reward(reward, num_steps, 0.5), [[3.0], [2.0]])
    np.testing.assert_allclose(decision_discount(num_steps, 0.5), [[0.125], [0.25]])
    np.testing.assert_allclose(decision_reward(reward[..., :1], num_steps, 0.5), [[1.0], [1.0]])


@pytest.mark.parametrize("T", [1, 2, 63, 64, 65, 127, 128, 1000])
@pytest.mark.parametrize("N", [1, 3])
def test_lambda_one_is_return_minus_value(T, N):
    rng = np.random.default_rng(T)
    c = random_case(T, T, N, gamma=0.99)
    c |= dict(valid=np.ones((T, N), bool), lam=1.0)
    c["terminated"][:] = c["truncated"][:] = False
    c["terminated"][-1] = rng.random(N) < 0.5
    returns = np.where(c["terminated"][-1], 0.0, c["value"][-1]).astype(np.float64)
    advantage, _ = gae(**c)
    for t in reversed(range(T)):
        returns = c["reward"][t] + c["discount"][t] * returns
        np.testing.assert_allclose(advantage[t], returns - c["value"][t], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(30))
def test_gae_equals_the_scalar_definition(seed):
    c = random_case(seed)
    advantage, target = gae(**c)
    want = np.stack([scalar_gae(c, n) for n in range(5)], axis=1)
    np.testing.assert_allclose(advantage, np.where(c["valid"], want, 0.0), atol=2e-5)
    np.testing.assert_allclose(target, np.where(c["valid"], want + c["value"][:-1], 0.0), atol=2e-5)


@pytest.mark.parametrize("seed", range(30))
def test_vtrace_equals_the_scalar_definition(seed):
    c = random_case(seed)
    log_ratio = np.random.default_rng(seed).normal(size=(13, 5))
    advantage, target = vtrace(**c, log_ratio=log_ratio)
    for n in range(5):
        adv, vs = scalar_vtrace(c, n, log_ratio)
        np.testing.assert_allclose(advantage[:, n], adv, atol=2e-5)
        np.testing.assert_allclose(target[:, n], vs, atol=2e-5)


@pytest.mark.parametrize("seed", range(5))
def test_vtrace_on_policy_has_the_targets_of_gae(seed):
    c = random_case(seed)
    _, vs = vtrace(**c, log_ratio=np.zeros((13, 5)))
    np.testing.assert_allclose(vs, gae(**c)[1], atol=1e-5)


def test_a_batch_equals_its_episodes_taken_apart():
    rng = np.random.default_rng(3)
    r, v, final = rng.normal(size=9), rng.normal(size=10), 1.7
    whole = gae(**one_row(r, v, truncated=(3,), terminated=(6,), final=final))[0]
    parts = [
        gae(**one_row(r[:4], v[:5], truncated=(3,), final=final))[0],
        gae(**one_row(r[4:7], v[4:8], terminated=(2,), final=final))[0],
        gae(**one_row(r[7:], v[7:], final=final))[0],
    ]
    np.testing.assert_allclose(whole, np.concatenate(parts), rtol=1e-6)


@pytest.mark.parametrize("padding", [1e6, np.nan])
@pytest.mark.parametrize("estimator", [gae, vtrace])
def test_padding_changes_nothing(padding, estimator):
    c = random_case(1)
    c["valid"] = np.broadcast_to(np.arange(13)[:, None] < np.array([13, 9, 1, 5, 12]), (13, 5)).copy()
    clean = dict(c)
    if estimator is vtrace:
        clean["log_ratio"] = np.full((13, 5), -0.3)
    dirty = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in clean.items()}
    for name in ("reward", "discount", "final_value", "log_ratio"):
        if name in dirty:
            dirty[name][~c["valid"]] = padding
    # The observation after a row's last decision counts, those behind it do not.
    dirty["value"][1:][~c["valid"] & ~np.roll(c["valid"], 1, axis=0)] = padding
    for a, b in zip(estimator(**clean), estimator(**dirty)):
        assert np.array_equal(a, b)


def test_an_interrupted_decision_is_no_outcome():
    """Step 2 was lost: step 1 bootstraps from the value of observation 2 and looks no further."""
    advantage, target = gae(**one_row([1, 1, 1e9, 1], [0.5] * 5, valid=(1, 1, 0, 1), gamma=0.9, lam=0.95))
    np.testing.assert_allclose(advantage[:, 0], [0.95 + 0.855 * 0.95, 0.95, 0.0, 0.95], atol=1e-6)
    assert target[2, 0] == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_same_as_the_rollout_buffer_of_stable_baselines3(seed):
    """Its way to bootstrap a truncation is to add gamma V(final) to the reward."""
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    from gymnasium import spaces

    T, N, gamma, lam = 32, 4, 0.98, 0.93
    c = random_case(seed, T, N, lam=lam)
    c |= dict(valid=np.ones((T, N), bool), discount=np.full((T, N), gamma, np.float32))
    term, trunc = c["terminated"], c["truncated"]
    done = term | trunc
    reward = c["reward"] + gamma * c["final_value"] * (trunc & ~term)
    box = spaces.Box(-1, 1, (1,))
    theirs = buffers.RolloutBuffer(T, box, box, "cpu", lam, gamma, N)
    starts = np.concatenate([np.zeros((1, N), bool), done])
    for t in range(T):
        zeros, value = np.zeros((N, 1)), torch.from_numpy(c["value"][t])
        theirs.add(zeros, zeros, reward[t], starts[t], value, torch.zeros(N))
    theirs.compute_returns_and_advantage(torch.from_numpy(c["value"][T]), starts[T])
    advantage, target = gae(**c)
    np.testing.assert_allclose(advantage, theirs.advantages, atol=2e-5)
    np.testing.assert_allclose(target, theirs.returns, atol=2e-5)


def test_value_after_a_reset_is_never_used():
    c = one_row([1, 1], [0.5, 7e7, 0.5], truncated=(0,), final=2.0)
    following = estimators.next_values(c["value"], c["final_value"], c["terminated"], c["truncated"])
    assert following[:, 0].tolist() == [2.0, 0.5]
