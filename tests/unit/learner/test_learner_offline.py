"""IQL, CQL and Cal-QL: losses by hand, their order, bounds, and what each does on a bandit's data."""

import math

import pytest
import torch
from learner_tiny import SPEC, built, step_batch, update
from pydantic import ValidationError

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import cal_ql, cql, iql
from rollbus_learner.algorithms._actor_critic import values
from rollbus_learner.algorithms.iql import state_value
from rollbus_policies import flow, mlp

START = Progress(updates=0, env_steps=0, total_steps=100)
SMALL = {"batch_size": 64, "critic_hidden": [32], "learning_rate": 3e-3, "critic_learning_rate": 1e-2}


def made(module, policy=None, **settings):
    torch.manual_seed(0)
    config = module.Config(**(SMALL | settings))
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    if policy is None:
        policy = mlp.make(mlp.Config(hidden=[32], head="tanh_gaussian"), SPEC, critic=False)
    return module.make(config, SPEC, policy, feed)


def labelled(algorithm, num=8, **columns):
    modules, optimisers = built(algorithm)
    batch = step_batch(num) | columns
    algorithm.label(batch, modules, START)
    return modules, optimisers, batch


def test_iql_learns_v_then_the_policy_then_q():
    assert [step.name for step in made(iql).steps()] == ["value", "policy", "critic"]


def test_iql_by_hand():
    algorithm = made(iql, expectile=0.8, beta=2.0, max_weight=1.5, gamma=0.5)
    no = torch.zeros(8, dtype=torch.bool)
    modules, _, batch = labelled(algorithm, terminated=no)
    with torch.no_grad():
        taken = torch.tanh(batch["action"])
        q = values(modules, "target", batch, taken, "obs/").amin(0)
        value, following = state_value(modules, batch, "obs/"), state_value(modules, batch, "next_obs/")
        log_prob = modules["policy"](batch, ("log_prob",))["log_prob"]
    above = (q - value).tolist()
    want = sum((0.8 if u > 0 else 0.2) * u * u for u in above)
    assert algorithm.value_loss(modules, batch).terms["value_loss"][0].item() == pytest.approx(want, rel=1e-4)
    weights = [min(math.exp(2.0 * u), 1.5) for u in above]
    want = -sum(w * lp for w, lp in zip(weights, log_prob.tolist()))
    loss = algorithm.policy_loss(modules, batch)
    assert loss.terms["policy_loss"][0].item() == pytest.approx(want, rel=1e-3)
    assert loss.metrics["weight"][0].item() == pytest.approx(sum(weights), rel=1e-4)
    target = (batch["reward"][:, 0] + 0.5 * following).sum().item()
    assert algorithm.critic_loss(modules, batch).metrics["q_target"][0].item() == pytest.approx(
        target, rel=1e-4
    )


@pytest.mark.parametrize(("beta", "nearer"), [(10.0, True), (0.0, False)])
def test_iql_prefers_what_was_better(beta, nearer):
    """The data's actions are spread around 0; with beta 0 it is cloning and stays there."""
    algorithm = made(iql, beta=beta, gamma=0.0, tau=0.1)
    modules, optimisers = built(algorithm)
    for seed in range(250):
        update(algorithm, modules, optimisers, step_batch(128, seed), START)
    with torch.no_grad():
        action = torch.tanh(
            algorithm.policy(step_batch(256, 999) | {"noise": torch.zeros(256, 2)}, ("sample",))["sample"]
        )
    off = (action.mean(0) - torch.tensor([0.3, -0.3])).abs().max()
    assert (off < 0.22) == nearer


@pytest.mark.parametrize("module", [iql, cql])
def test_the_policy_s_rate_falls_along_half_a_cosine(module):
    algorithm = made(module, learning_rate_schedule="cosine")
    rates = [algorithm.before_update(Progress(n, 0, 10**6, 100))["policy"] for n in (0, 25, 50, 75, 100)]
    assert rates == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466, 0.0], abs=1e-7)
    assert "policy" not in made(module).before_update(Progress(50, 0, 10**6, 100))


def test_iql_clones_with_flow_policies():
    policy = flow.make(
        flow.Config(width=16, num_heads=2, layers=1, expert_layers=1, chunk=1), SPEC, critic=False
    )
    algorithm = made(iql, policy)
    stored = torch.from_numpy(policy.from_env_action(step_batch(8)["env_action"].numpy()))
    modules, _, batch = labelled(algorithm, action=stored)
    assert algorithm.policy_loss(modules, batch).terms["policy_loss"][0].isfinite()


def test_cql_values_what_the_data_shows_above_what_it_does_not():
    gaps = {}
    for weight in (0.0, 5.0):
        algorithm = made(cql, conservative=weight)
        modules, optimisers = built(algorithm)
        for _ in range(150):
            metrics = update(algorithm, modules, optimisers, step_batch(64), START)
        gaps[weight] = metrics["conservative_gap"]
    assert gaps[5.0] < gaps[0.0] - 0.5


def test_the_integral_of_a_constant_q_is_known():
    """Q = c everywhere: log of the integral over [-1, 1]^2 is c + log 4, whatever the proposals are."""
    algorithm = made(cql, num_proposals=4000)
    modules, _, batch = labelled(algorithm, 4)
    modules["critic"].forward = lambda batch, action, **_: torch.full((2, *action.shape[:2]), 3.0)
    found = algorithm.log_mean_exp(modules, batch, torch.full((2, 4), 3.0))
    assert found.shape == (2, 4)
    torch.testing.assert_close(found, torch.full((2, 4), 3.0 + math.log(4.0)), atol=0.08, rtol=0)


def test_without_importance_the_term_by_hand():
    """Q of six proposals is 3, that of the data's action 5: log of their mean exp, seven in all, minus 5."""
    algorithm = made(cql, num_proposals=2, importance=False, conservative=2.0)
    modules, _, batch = labelled(algorithm, 4)
    taken = torch.tanh(batch["action"])

    def q(batch, action, **_):
        same = action.shape == taken.shape and bool((action == taken).all())
        return torch.full((2, *action.shape[:-1]), 5.0 if same else 3.0)

    modules["critic"].forward = q
    loss = algorithm.critic_loss(modules, batch)
    gap = 2 * (math.log((6 * math.exp(3.0) + math.exp(5.0)) / 7) - 5.0)
    assert gap == pytest.approx(-2.7029, abs=1e-4)
    assert loss.metrics["conservative_gap"][0].item() == pytest.approx(4 * gap, rel=1e-5)
    assert loss.terms["conservative_loss"][0].item() == pytest.approx(4 * 2.0 * gap, rel=1e-5)


@pytest.mark.parametrize("importance", [True, False])
def test_the_term_of_actions_at_their_bounds_is_bounded_without_importance(importance):
    """All of the data lies at the corner (1, 1): its density under exp Q has no limit, its share of 7 has."""
    algorithm = made(cql, num_proposals=2, importance=importance, conservative=5.0, gamma=0.0)
    modules, optimisers = built(algorithm)
    batch = step_batch(64) | {"action": torch.full((64, 2), 7.25)}
    for _ in range(150):
        metrics = update(algorithm, modules, optimisers, batch, START)
    least = -2 * math.log(7.0)
    assert (metrics["conservative_gap"] < 2 * least) == importance
    assert importance or metrics["conservative_gap"] >= least


def test_cal_ql_does_not_push_below_the_data_s_returns():
    """Returns above every Q: the bound replaces the policy's values, so nothing there has a gradient."""
    algorithm = made(cal_ql)
    batch = step_batch(8) | {"return_to_go": torch.full((8,), 1e3)}
    heads = torch.randn(2, 5, 8, requires_grad=True)
    found = algorithm.bounded(heads, batch)
    assert (found == 1e3).all()
    found.sum().backward()
    assert (heads.grad == 0).all()
    low = algorithm.bounded(heads, batch | {"return_to_go": torch.full((8,), -1e3)})
    torch.testing.assert_close(low, heads)
    assert algorithm.feed.return_discount == algorithm.config.gamma


def test_the_learned_weight_by_hand():
    """Q = 3 everywhere: each of two critics has the gap log 4; the weight is 2, the gap to hold 1."""
    algorithm = made(cql, num_proposals=4000, conservative=2.0, target_gap=1.0)
    modules, _, batch = labelled(algorithm, 4)
    modules["critic"].forward = lambda batch, action, **_: torch.full((2, *action.shape[:-1]), 3.0)
    loss = algorithm.critic_loss(modules, batch)
    above = math.log(4.0) - 1.0
    terms = {name: float(total.detach()) / 4 for name, (total, _) in loss.terms.items()}
    assert terms["conservative_loss"] == pytest.approx(2.0 * 2 * math.log(4.0), abs=0.3)
    assert terms["multiplier_loss"] == pytest.approx(-2.0 * above, abs=0.1)
    loss.terms["multiplier_loss"][0].backward()
    assert modules["multiplier"].log_weight.grad.item() == pytest.approx(-4 * 2.0 * above, abs=0.4)


@pytest.mark.parametrize(("target", "rises"), [(0.1, True), (20.0, False)])
def test_the_learned_weight_rises_while_the_gap_is_too_large(target, rises):
    algorithm = made(cql, conservative=1.0, target_gap=target, critic_learning_rate=1e-2)
    modules, optimisers = built(algorithm)
    weights = [
        update(algorithm, modules, optimisers, step_batch(64), START)["conservative_weight"]
        for _ in range(30)
    ]
    assert weights[0] == pytest.approx(1.0) and (weights[-1] > 1.1 if rises else weights[-1] < 0.9)


def test_a_learned_weight_does_not_start_at_zero():
    with pytest.raises(ValidationError, match="conservative 0"):
        cql.Config(conservative=0.0, target_gap=1.0)
    assert "multiplier" not in made(cql).roles()


@pytest.mark.parametrize(("counts", "value"), [(False, 3.0), (True, 2.5)])
def test_entropy_counts_in_the_next_value_if_it_is_told_to(counts, value):
    found = made(cql, entropy_backup=counts).next_value(torch.tensor([[3.0], [4.0]]), torch.tensor([0.5]))
    assert found.tolist() == [value]
