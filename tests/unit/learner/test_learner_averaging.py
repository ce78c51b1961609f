"""Moving averages of weights: rates by hand, a role that follows."""

import pytest
import torch
from torch import nn

from rollbus_learner.averaging import average_of, averaging_rate, follow


def test_rates_begin_high_and_end_at_the_decay():
    assert averaging_rate(0.99, 1) == pytest.approx(1 - 2 / 11)
    assert averaging_rate(0.99, 90) == pytest.approx(0.09)
    assert averaging_rate(0.99, 10_000) == pytest.approx(0.01)


def test_an_average_follows_and_is_not_trained():
    module = nn.BatchNorm1d(1)
    role = average_of(module)
    assert not role.trainable and role.saved and not any(p.requires_grad for p in role.module.parameters())
    with torch.no_grad():
        module.weight.fill_(3.0)
        module.running_mean.fill_(7.0)
    follow(role.module, module, 0.25)
    assert role.module.weight.item() == pytest.approx(1.5) and role.module.running_mean.item() == 7.0
    assert module.weight.item() == 3.0


def test_cloning_publishes_the_average_by_hand():
    from rollbus_learner.algorithms import sft
    from rollbus_policies import base, mlp
    from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

    action = ActionSpec("continuous", (1,), low=[-1.0], high=[1.0])
    spec = EnvSpec("e", {"obs": ArraySpec("float32", (2,))}, action)
    config = sft.Config(ema=0.5, validation=0)
    policy = base.make(mlp.Config(hidden=[2]), spec, critic=False)
    feed = config.feed(num_envs=1, num_slices=1, deterministic=False)
    algorithm = sft.make(config, spec, policy, feed)
    roles = {name: role.module for name, role in algorithm.roles().items()}
    assert set(roles) == {"policy", "average"} and roles["average"] is not policy
    with torch.no_grad():
        policy.output.bias.fill_(1.0)
        roles["average"].output.bias.fill_(0.0)
    # Rates: 1 - min(0.5, 2 / 11), then 1 - min(0.5, 3 / 12).
    for left in (2 / 11, 2 / 11 * 3 / 12):
        algorithm.after_step(roles, "policy", {})
        assert float(algorithm.publish(roles)["output.bias"]) == pytest.approx(1 - left)
    assert algorithm.state() == {"num_steps": 2}
