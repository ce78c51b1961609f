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
    assert changed and all(".attention." in n or ".wide." in n or ".narrow." in n for n in changed), changed
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


def test_a_policy_without_attention_is_refused():
    config = sft.Config(lora_rank=2, validation=0)
    feed = config.feed(num_envs=1, num_slices=1, deterministic=False)
    with pytest.raises(ConfigError, match="MlpPolicy has no attention blocks"):
        sft.make(config, SPEC, base.make(mlp.Config(), SPEC, critic=False), feed)
