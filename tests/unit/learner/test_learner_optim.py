"""Optimisers of steps: who gets gradients, clipping, rates, Adam's numbers."""

import copy

import pytest
import torch
from torch import nn

from rollbus_learner import optim
from rollbus_learner.algorithm import Step
from rollbus_learner.optim import build, total_norm


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


def test_norm_is_that_of_all_gradients_together():
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])]
    assert total_norm(gradients).item() == 5.0


def test_norm_of_large_gradients(monkeypatch):
    monkeypatch.setattr(optim, "_SMALL", 2)
    assert total_norm([torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]).item() == 5.0


@pytest.mark.parametrize("limit", [0.0, 0.5, 1e6])
@pytest.mark.parametrize("fused", [True, False])
def test_steps_equal_those_of_torch_with_clipping(roles, limit, fused, monkeypatch):
    """Adam's first steps hardly depend on the gradient's scale, so eps is large here."""
    monkeypatch.setattr(optim, "_FUSED", ("cpu",) if fused else ())
    theirs = copy.deepcopy(roles["a"])
    reference = torch.optim.Adam(theirs.parameters(), 0.1, eps=0.5)
    optimiser = build([step("a", clip=limit, eps=0.5)], roles)["s"]
    for seed in range(4):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        reference.zero_grad()
        theirs(x).square().sum().backward()
        if limit:
            norm = nn.utils.clip_grad_norm_(theirs.parameters(), limit)
        reference.step()
        optimiser.zero()
        optimiser.backward(roles["a"](x).square().sum())
        found = optimiser.apply()
        if limit:
            torch.testing.assert_close(found, norm)
        for mine, other in zip(roles["a"].parameters(), theirs.parameters()):
            torch.testing.assert_close(mine, other)


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
