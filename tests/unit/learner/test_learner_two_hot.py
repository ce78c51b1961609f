"""Values as distributions in the losses of PPO, decoupled PPO, DPPO and V-trace."""

import math

import pytest
import torch
from learner_tiny import SPEC, built, chunk_batch, flatten, update

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import decoupled_ppo, dppo, ppo, vtrace
from rollbus_policies import flow, mlp

NOW = Progress(updates=0, env_steps=0, total_steps=100)
ATOMS = {"value_head": "two_hot", "value_atoms": 41, "value_limit": 50.0}
ALGORITHMS = {"ppo": ppo, "decoupled_ppo": decoupled_ppo, "dppo": dppo, "vtrace": vtrace}


def made(name, head=ATOMS, **settings):
    torch.manual_seed(0)
    module = ALGORITHMS[name]
    config = module.Config(num_steps=8, minibatches=1, epochs=1, value_coef=0.5, **settings)
    if name == "dppo":
        small = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1, "chunk": 1}
        policy = flow.make(flow.Config(**small, **head), SPEC, critic=True)
    else:
        policy = mlp.make(mlp.Config(hidden=[16], **head), SPEC, critic=True)
    return module.make(config, SPEC, policy, config.feed(num_envs=4, num_slices=1, deterministic=False))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_value_loss_is_the_cross_entropy(name):
    """At the start all atoms are alike: log K per sample, whose slopes are softmax minus target."""
    algorithm = made(name)
    batch = chunk_batch(algorithm.policy)
    algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    part = flatten(batch, 8)
    loss = algorithm.loss({"policy": algorithm.policy}, part)
    total, count = loss.terms["value_loss"]
    num = len(part["target"])
    assert int(count) == num and total.item() == pytest.approx(0.5 * num * math.log(41), rel=1e-5)
    assert float(loss.metrics["value"][0]) == pytest.approx(0.0, abs=1e-3)
    (total / count).backward()
    output = algorithm.policy.critic.net.output if name == "dppo" else algorithm.policy.critic.output
    wanted = 0.5 * (1 / 41 - algorithm.policy.value_head.two_hot(part["target"])).mean(0)
    torch.testing.assert_close(output.bias.grad, wanted, rtol=1e-4, atol=1e-6)


def test_the_rest_of_the_loss_is_that_of_a_number():
    """With the same advantages the policy's loss and slopes do not see how the value is trained."""
    found = {}
    for name, head in {"scalar": {}, "two_hot": ATOMS}.items():
        algorithm = made("ppo", head, entropy_coef=0.01)
        batch = chunk_batch(algorithm.policy)
        algorithm.label(batch, {"policy": algorithm.policy}, NOW)
        part = flatten(batch, 8)
        part["advantage"] = torch.linspace(-1.0, 1.0, len(part["target"]))
        loss = algorithm.loss({"policy": algorithm.policy}, part)
        (loss.terms["policy_loss"][0] + loss.terms["entropy_loss"][0]).backward()
        slopes = [p.grad for n, p in algorithm.policy.named_parameters() if not n.startswith("critic.")]
        found[name] = (loss.terms["policy_loss"], loss.terms["entropy_loss"], slopes)
    torch.testing.assert_close(found["two_hot"], found["scalar"])


def test_padding_and_what_left_the_update_count_for_nothing():
    algorithm = made("decoupled_ppo")
    batch = chunk_batch(algorithm.policy)
    algorithm.label(batch, {"policy": algorithm.policy}, NOW)
    part = flatten(batch, 8)
    part["valid"] = torch.arange(len(part["target"])) % 2 == 0
    kept = {name: column[part["valid"]] for name, column in part.items()}
    roles = {"policy": algorithm.policy}
    some, all_kept = (algorithm.loss(roles, each).terms["value_loss"] for each in (part, kept))
    torch.testing.assert_close(some[0], all_kept[0])
    assert int(some[1]) == int(all_kept[1])


@pytest.mark.parametrize("name", ["ppo", "vtrace"])
def test_values_come_to_explain_returns(name):
    algorithm = made(name, learning_rate=0.02, max_grad_norm=0.0)
    modules, optimisers = built(algorithm)
    batch = chunk_batch(algorithm.policy)
    metrics = [update(algorithm, modules, optimisers, {**batch}, NOW) for _ in range(200)]
    assert metrics[-1]["value_loss"] < 0.6 * metrics[0]["value_loss"]
    assert metrics[-1]["explained_variance"] > 0.4 > metrics[0]["explained_variance"]
