"""CrossQ beside sb3-contrib: one joint batch, batch renormalisation, losses and gradients.

What differs by choice: the variance of a batch has the divisor n (as in 1702.03275), theirs n - 1. With eps 0
that is a factor of the normalised values during warm-up, and nothing afterwards, when values are normalised
by the running deviation as long as r is not at its limit. Its policy is without batch normalisation here.
"""

import pytest
import torch
from learner_beside import (
    case,
    descend,
    made,
    mlp_policy,
    policy_layers,
    same_gradients,
    same_head_gradients,
)

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import crossq
from rollbus_policies import _batch_renorm

START = Progress(updates=0, env_steps=0, total_steps=100)
B, WARM_UP = 12, 5
#: Of a batch: what their variance is divided by, over what ours is.
DIVISORS = (2 * B - 1) / (2 * B)


def set_renorms(critic, given, factor=1.0):
    """Statistics and weights of M critics; ``factor`` of the scales."""
    with torch.no_grad():
        for head, layers in enumerate(given.values()):
            for index, layer in enumerate(layers.values()):
                own = critic.renorms[int(index)]
                own.mean[head, 0], own.var[head, 0] = layer["mean"], layer["var"]
                own.scale[head, 0], own.shift[head, 0] = factor * layer["scale"], layer["shift"]


def crossq_of(found):
    """(algorithm, modules, labelled batch) of their weights, limits of r and d as theirs."""
    algorithm, modules, batch = made(
        crossq, found, mlp_policy("tanh_gaussian"), policy_delay=1, renorm_warm_up=WARM_UP, initial_alpha=0.3
    )
    for renorm in modules["critic"].renorms:
        renorm.max_r = 1e6
    return algorithm, modules, batch


@pytest.mark.parametrize(("name", "steps"), [("crossq_warming", 0), ("crossq", WARM_UP)])
def test_crossq(name, steps, monkeypatch):
    monkeypatch.setattr(_batch_renorm, "EPS", 0.0)
    found = case("sb3_contrib", name)
    algorithm, modules, batch = crossq_of(found)
    critic, factor = modules["critic"], DIVISORS**0.5 if steps == 0 else 1.0
    set_renorms(critic, found["renorm"], factor)
    for renorm in critic.renorms:
        renorm.count.fill_(steps)

    means = descend(algorithm.critic_loss(modules, batch))
    assert means["critic_loss"] == pytest.approx(found["critic_loss"].item(), rel=1e-4)
    renorm_gradients = found["critic_gradient"].pop("renorm")
    same_head_gradients(critic, found["critic_gradient"], rtol=1e-3, atol=1e-5)
    for head, layers in renorm_gradients.items():
        for index, wanted in layers.items():
            ours = critic.renorms[int(index)].scale.grad[int(head), 0] * factor
            torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-5)

    for head, layers in found["renorm_after"].items():
        for index, after in layers.items():
            own, before = critic.renorms[int(index)], found["renorm"][head][index]
            torch.testing.assert_close(own.mean[int(head), 0], after["mean"], rtol=1e-5, atol=1e-6)
            kept = 0.99 * before["var"]
            moved = kept + (own.var[int(head), 0] - kept) / DIVISORS
            torch.testing.assert_close(moved, after["var"], rtol=1e-5, atol=1e-6)

    set_renorms(critic, found["renorm_after"])
    means = descend(algorithm.policy_loss(modules, batch))
    assert means["policy_loss"] == pytest.approx(found["policy_loss"].item(), rel=1e-4)
    assert means["alpha_loss"] == pytest.approx(found["alpha_loss"].item(), rel=1e-4)
    same_gradients(policy_layers(modules["policy"]), found["policy_gradient"], rtol=1e-3, atol=1e-5)
