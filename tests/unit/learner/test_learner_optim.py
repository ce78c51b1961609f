"""Optimisers of steps: who gets gradients, clipping, rates, Adam's numbers."""

import copy

import pytest
import torch
from torch import nn

from rollbus_learner.algorithm import Step
from rollbus_learner.optim import build, clip_gradients


def step(*trains, name="s", **kw):
    return Step(name, trains, lambda roles, batch: None, **({"learning_rate": 0.1} | kw))


@pytest.fixture
def roles():
    torch.manual_seed(0)
    return {"a": nn.Linear(3, 3), "b": nn.Linear(3, 1)}


def test_gradients_reach_the_trained_role_only(roles):
    optimiser = build([step("a")], roles)["s"]
    before = roles["b"].weight.clone()
    optimiser.zero()
    optimiser.backward(roles["b"](roles["a"](torch.ones(2, 3))).sum())
    optimiser.apply()
    assert roles["b"].weight.grad is None and torch.equal(roles["b"].weight, before)
    assert roles["a"].weight.grad is not None


def test_first_step_of_adam_is_the_learning_rate_in_each_coordinate(roles):
    optimiser = build([step("a")], roles)["s"]
    before = roles["a"].weight.detach().clone()
    optimiser.backward((roles["a"].weight * torch.tensor([2.0, -3.0, 4.0])).sum())
    optimiser.apply()
    moved = roles["a"].weight.detach() - before
    torch.testing.assert_close(moved, torch.tensor([[-0.1, 0.1, -0.1]]).expand(3, 3))


def test_learning_rate_factor(roles):
    optimiser = build([step("a")], roles)["s"]
    optimiser.scale(0.5)
    before = roles["a"].weight.detach().clone()
    optimiser.backward(roles["a"].weight.sum())
    optimiser.apply()
    torch.testing.assert_close(before - roles["a"].weight, torch.full((3, 3), 0.05))


def test_clip_by_global_norm():
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    gradients = [p.grad for p in parameters if p.grad is not None]
    assert clip_gradients(gradients, 0.0).item() == 5.0
    assert clip_gradients(gradients, 1.0).item() == 5.0
    torch.testing.assert_close(parameters[0].grad, torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(parameters[1].grad, torch.tensor([0.8]))
    assert clip_gradients(gradients, 10.0).item() == pytest.approx(1.0)
    torch.testing.assert_close(parameters[1].grad, torch.tensor([0.8]))


def test_clip_equals_that_of_torch(roles):
    ours, theirs = list(roles["a"].parameters()), [nn.Parameter(p.detach()) for p in roles["a"].parameters()]
    for a, b in zip(ours, theirs):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()
    clip_gradients([a.grad for a in ours if a.grad is not None], 0.5)
    nn.utils.clip_grad_norm_(theirs, 0.5)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad, b.grad)


def test_state_round_trip_gives_the_same_next_step(roles):
    def advance(optimiser, module):
        optimiser.zero()
        optimiser.backward(module(torch.ones(1, 3)).square().sum())
        optimiser.apply()

    first = build([step("a")], roles)["s"]
    advance(first, roles["a"])
    twin = {"a": nn.Linear(3, 3)}
    twin["a"].load_state_dict(roles["a"].state_dict())
    second = build([step("a")], twin)["s"]
    second.load_state(copy.deepcopy(first.state()))
    advance(first, roles["a"])
    advance(second, twin["a"])
    assert torch.equal(roles["a"].weight, twin["a"].weight)


def test_a_step_without_parameters_is_an_error(roles):
    roles["a"].requires_grad_(False)
    with pytest.raises(ValueError, match="'s' trains"):
        build([step("a")], roles)


def test_equals_the_optimiser_class_over_many_steps(roles):
    twin = copy.deepcopy(roles["a"])
    reference = torch.optim.Adam(twin.parameters(), lr=0.1, betas=(0.8, 0.99), eps=1e-6)
    optimiser = build([step("a", betas=(0.8, 0.99), eps=1e-6)], roles)["s"]
    for i in range(5):
        x = torch.full((2, 3), float(i) - 1.5)
        optimiser.zero()
        optimiser.backward(roles["a"](x).square().sum())
        optimiser.apply()
        reference.zero_grad()
        twin(x).square().sum().backward()
        reference.step()
    for mine, theirs in zip(roles["a"].parameters(), twin.parameters()):
        torch.testing.assert_close(mine, theirs)
