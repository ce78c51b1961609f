"""Adapters: only they are trained, and what is published is the plain policy that computes the same."""

from __future__ import annotations

import pytest
import torch

from rollbus_learner import optim
from rollbus_learner.algorithms import sft
from rollbus_policies import base, flow, mlp
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

pytest.importorskip("peft")
ACTION = ActionSpec("continuous", (1,), low=[-1.0], high=[1.0])
SPEC = EnvSpec("e", {"obs": ArraySpec("float32", (2,))}, ACTION)
SMALL = flow.Config(width=16, num_heads=2, layers=1, expert_layers=1, chunk=2, sampler="flow_noise")


def test_only_adapters_are_trained_and_merged_into_what_is_published():
    torch.manual_seed(0)
    config = sft.Config(lora_rank=2, validation=0, learning_rate=1e-2)
    policy = base.make(SMALL, SPEC, critic=False)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    feed = config.feed(num_envs=1, num_slices=1, deterministic=False)
    algorithm = sft.make(config, SPEC, policy, feed)
    roles = {name: role.module for name, role in algorithm.roles().items()}
    published = algorithm.publish(roles)
    assert published.keys() == before.keys()
    assert all(torch.equal(published[name], value) for name, value in before.items())
    (step,) = algorithm.steps()
    optimiser = optim.build([step], roles)["policy"]
    batch = {
        "obs/obs": torch.randn(32, 2),
        "env_action": torch.rand(32, 2, 1),
        "num_steps": torch.full((32,), 2),
    }
    for _ in range(5):
        optimiser.zero()
        numerator, count = step.loss(roles, batch).terms["cloning_loss"]
        optimiser.backward(numerator / count)
        optimiser.apply()
    trained = algorithm.publish(roles)
    changed = {name for name, value in before.items() if not torch.equal(trained[name], value)}
    linear = {
        f"{n}.weight"
        for n, module in base.make(SMALL, SPEC, critic=False).named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    assert changed == linear
    plain = base.make(SMALL, SPEC, critic=False)
    plain.load_state_dict({name: value.detach() for name, value in trained.items()})
    x, time = torch.randn(4, 2, 1), torch.full((4,), 0.5)
    seen = {"obs/obs": torch.randn(4, 2), "x": x, "time": time}
    with torch.no_grad():
        one, other = (each(seen, ("velocity",))["velocity"] for each in (policy, plain))
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
        for module in policy.modules():  # adapters off: the policy as it was
            if hasattr(module, "enable_adapters"):
                module.enable_adapters(False)
        plain.load_state_dict(before)
        one, other = (each(seen, ("velocity",))["velocity"] for each in (policy, plain))
        torch.testing.assert_close(one, other)


def made(policy, **settings):
    config = sft.Config(lora_rank=2, validation=0, **settings)
    return sft.make(config, SPEC, policy, config.feed(num_envs=1, num_slices=1, deterministic=False))


def trained(algorithm, batch, num_steps=5):
    """What actors get after a few steps on ``batch``, and all tensors of the policy then."""
    roles = {name: role.module for name, role in algorithm.roles().items()}
    (step,) = algorithm.steps()
    optimiser = optim.build([step], roles)["policy"]
    for _ in range(num_steps):
        optimiser.zero()
        numerator, count = step.loss(roles, batch).terms["cloning_loss"]
        optimiser.backward(numerator / count)
        optimiser.apply()
    return algorithm.publish(roles), dict(algorithm.policy.state_dict())


def test_modules_are_chosen_by_name_and_merged_as_by_hand():
    """W + 2 B A: alpha is twice the rank. Everything but the adapters of these layers stays bit for bit."""
    torch.manual_seed(1)
    policy = base.make(mlp.Config(hidden=(8, 8), init="torch"), SPEC, critic=False)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    algorithm = made(policy, lora_modules=("layers.1",), learning_rate=1e-2)
    batch = {"obs/obs": torch.randn(32, 2), "num_steps": torch.ones(32), "env_action": torch.rand(32, 1)}
    batch["action"] = batch["env_action"]
    published, inside = trained(algorithm, batch)
    changed = {name for name, value in before.items() if not torch.equal(published[name], value)}
    assert changed == {"encoder.layers.1.weight"}
    a, b = (inside[f"encoder.layers.1.lora_{each}.default.weight"] for each in "AB")
    assert a.shape == (2, 8) and b.shape == (8, 2) and b.abs().max() > 0
    by_hand = before["encoder.layers.1.weight"] + 2.0 * (b @ a)
    torch.testing.assert_close(published["encoder.layers.1.weight"], by_hand)
    assert torch.equal(inside["encoder.layers.1.base_layer.weight"], before["encoder.layers.1.weight"])
    plain = base.make(mlp.Config(hidden=(8, 8), init="torch"), SPEC, critic=False)
    plain.load_state_dict({name: value.detach() for name, value in published.items()})
    seen = {"obs/obs": torch.randn(6, 2), "action": torch.rand(6, 1), "num_steps": torch.ones(6)}
    with torch.no_grad():
        one, other = (each(seen, ("log_prob",))["log_prob"] for each in (policy, plain))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("modules", "match"),
    [
        (
            ("nothing",),
            r"'nothing' is no linear layer of this FlowPolicy; there are context.numbers, .*query",
        ),
        (
            ("wide", "ide"),
            r"'ide' is no linear layer of this FlowPolicy; .*by their last parts: both, .*wide",
        ),
    ],
)
def test_names_that_match_nothing_are_refused(modules, match):
    with pytest.raises(ConfigError, match=match):
        made(base.make(SMALL, SPEC, critic=False), lora_modules=modules)
