"""TD3+BC, IQL, CQL and Cal-QL beside d3rlpy: the same losses and gradients on its weights and noise.

What differs by choice: its squared errors count fully, ours half; it sums over the proposals of CQL where we
take their mean, which adds a constant to the loss and nothing to the gradient.
"""

import math

import pytest
import torch
from learner_beside import (
    case,
    descend,
    made,
    mlp_policy,
    policy_layers,
    propose,
    same_gradients,
    same_head_gradients,
    same_parameter,
    set_heads,
    set_layers,
)
from learner_tiny import SPEC
from torch import nn

from rollbus_learner.algorithms import cal_ql, cql, iql, td3_bc
from rollbus_policies import mlp
from rollbus_policies.base import PolicySpec

B, NUM = 12, 4


class TanhMean(nn.Module):
    """d3rlpy's policy for IQL: a Gaussian around tanh of the network, one deviation between e^-5 and e^2."""

    def __init__(self):
        super().__init__()
        self.spec, self.normaliser = PolicySpec(("float32", (2,))), None
        self.encoder = mlp.make(mlp.Config(hidden=[8], activation="relu"), SPEC, critic=False).encoder
        self.output = nn.Linear(8, 2)
        self.spread = nn.Parameter(torch.zeros(2))

    def forward(self, batch, want):
        mean = torch.tanh(self.output(self.encoder(batch["obs/x"])))
        std = (-5.0 + 7.0 * torch.sigmoid(self.spread)).exp()
        density = torch.distributions.Normal(mean, std).log_prob(batch["action"])
        return {"cloning_loss": -density.sum(-1)}

    def from_env_action(self, action):
        return action

    def squash(self, action):
        return action

    def update_normaliser(self, batch, valid):
        pass


def test_td3_bc():
    found = case("d3rlpy", "td3_bc")
    algorithm, modules, batch = made(td3_bc, found, mlp_policy("deterministic"), alpha=2.0)
    set_layers(policy_layers(modules["target_policy"]), found["target_policy"])
    means = descend(algorithm.critic_loss(modules, batch), critic_loss=2.0)
    assert 2 * means["critic_loss"] == pytest.approx(found["critic_loss"].item(), rel=1e-5)
    same_head_gradients(modules["critic"], found["critic_gradient"])
    means = descend(algorithm.policy_loss(modules, batch))
    assert means["policy_loss"] == pytest.approx(found["policy_loss"].item(), rel=1e-5)
    same_gradients(policy_layers(modules["policy"]), found["policy_gradient"])


def test_iql():
    found = case("d3rlpy", "iql")
    policy = TanhMean()
    algorithm, modules, batch = made(iql, found, policy, expectile=0.8, beta=4.0, max_weight=3.0)
    with torch.no_grad():
        policy.spread.copy_(found["spread"].flatten())
    set_heads(modules["value"], {"0": found["value"]})

    means = descend(algorithm.value_loss(modules, batch))
    assert means["value_loss"] == pytest.approx(found["v_loss"].item(), rel=1e-5)
    same_head_gradients(modules["value"], {"0": found["value_gradient"]})
    means = descend(algorithm.critic_loss(modules, batch), critic_loss=2.0)
    assert 2 * means["critic_loss"] == pytest.approx(found["q_loss"].item(), rel=1e-5)
    same_head_gradients(modules["critic"], found["critic_gradient"])

    loss = algorithm.policy_loss(modules, batch)
    advantage = algorithm.judged(modules, batch) - iql.state_value(modules, batch, "obs/")
    assert 0 < int(((4.0 * advantage).exp() > 3.0).sum()) < B, "some weights must reach their limit"
    assert descend(loss)["policy_loss"] == pytest.approx(found["policy_loss"].item(), rel=1e-5)
    same_gradients([*policy.encoder.layers, policy.output], found["policy_gradient"])
    same_parameter(policy.spread, found["spread_gradient"])


@pytest.mark.parametrize(
    ("name", "module", "settings"),
    [
        ("cql", cql, {"entropy_backup": True}),
        # Its target without entropy takes the mode of the policy; noise of 0 is ours.
        ("cql_hard", cql, {"entropy_backup": False}),
        ("cal_ql", cal_ql, {"entropy_backup": True}),
    ],
)
def test_conservative_critics(name, module, settings, monkeypatch):
    found = case("d3rlpy", name)
    algorithm, modules, batch = made(
        module, found, mlp_policy("tanh_gaussian"), conservative=2.0, num_proposals=NUM, alpha=0.3, **settings
    )
    propose(monkeypatch, found)
    means = descend(algorithm.critic_loss(modules, batch), critic_loss=2.0)
    conservative = means["conservative_loss"] + 2.0 * 2 * math.log(3 * NUM)
    assert conservative == pytest.approx(found["conservative_loss"].item(), rel=1e-4)
    total = 2 * means["critic_loss"] + conservative
    assert total == pytest.approx(found["critic_loss"].item(), rel=1e-4)
    same_head_gradients(modules["critic"], found["critic_gradient"])
    policy = descend(algorithm.policy_loss(modules, batch))["policy_loss"]
    assert policy == pytest.approx(found["policy_loss"].item(), rel=1e-4)
    same_gradients(policy_layers(modules["policy"]), found["policy_gradient"])


def test_the_floor_of_cal_ql_is_reached():
    """Else the case would be CQL's."""
    plain, floored = (case("d3rlpy", name)["conservative_loss"].item() for name in ("cql", "cal_ql"))
    assert floored > plain + 0.01
