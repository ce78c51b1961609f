"""Policies that are told a label: what acts is told good; guidance goes beyond it."""

import numpy as np
import pytest
import torch

from rollbus_core import rng
from rollbus_policies import base
from rollbus_policies._condition import CONDITION, GOOD, POOR, UNKNOWN
from rollbus_policies.base import Ask
from rollbus_wire import lookup
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(
    "e", {"obs": ArraySpec("float32", (3,))}, ActionSpec("continuous", (2,), low=[-1.0] * 2, high=[1.0] * 2)
)
SMALL = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1, "hidden": [16]}
SEEDS = rng.decision_seeds(rng.stream(0, "test"), np.arange(5), np.zeros(5, int))


def made(name, **settings):
    torch.manual_seed(0)
    config = lookup.find("rollbus_policies", name).Config
    known = {k: v for k, v in SMALL.items() if k in config.model_fields}
    policy = base.make(config(name=name, condition="label", **known, **settings), SPEC, critic=False)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy


def decided(policy, label=None):
    """Executed actions, small enough not to be clipped."""
    obs = {"obs": 0.1 * np.ones((5, 3), np.float32)}
    if label is not None:
        policy.told = lambda found, _=0: {**found, CONDITION: torch.full((5,), label)}
    try:
        return policy.act(obs, None, Ask("mode"), SEEDS).action
    finally:
        policy.__dict__.pop("told", None)


@pytest.mark.parametrize("name", ["mlp", "act", "flow", "diffusion"])
def test_what_acts_is_told_good(name):
    policy = made(name)
    assert CONDITION in policy.keys and CONDITION not in SPEC.observation
    np.testing.assert_array_equal(decided(policy), decided(policy, GOOD))
    assert np.abs(decided(policy, GOOD) - decided(policy, POOR)).max() > 1e-3
    # Scored without a label it counts as good, too; the trunk of other engines cannot be told.
    if name == "mlp":
        batch = {"obs/obs": torch.zeros(4, 3), "action": torch.zeros(4, 2)}
        told = {**batch, f"obs/{CONDITION}": torch.full((4,), GOOD)}
        assert torch.equal(policy(batch, ("log_prob",))["log_prob"], policy(told, ("log_prob",))["log_prob"])
        assert policy.spec.no_trunk


def test_guidance_goes_from_the_unconditional_velocity_through_the_told_one():
    x, time = torch.randn(5, 4, 2), torch.full((5,), 0.5)
    found = {}
    for guidance in (0.0, 1.0, 2.0):
        policy = made("flow", guidance=guidance)
        obs = {"obs": torch.full((5, 3), 0.1)}
        found[guidance] = policy.denoised(x, time, policy._guided(policy.told(obs)))
    plain = policy.context(policy.told(obs, UNKNOWN), policy.normaliser)
    torch.testing.assert_close(found[0.0], policy.denoised(x, time, plain))
    torch.testing.assert_close(found[2.0] - found[1.0], found[1.0] - found[0.0], atol=1e-5, rtol=1e-4)
    assert "log_prob" not in made("flow", guidance=2.0).spec.extras
