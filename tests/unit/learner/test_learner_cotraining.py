"""The cloning term beside other losses: by hand, for every algorithm that takes it; a real update of each."""

from __future__ import annotations

import pytest
import torch
from learner_tiny import SPEC, chunk_batch, episode_batch

from rollbus_learner import loop, optim
from rollbus_learner.algorithm import Progress
from rollbus_learner.minibatch import minibatches
from rollbus_policies import base, mlp, recurrent
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError

PACKAGE = "rollbus_learner.algorithms"
NOW = Progress(0, 0, 1000)
NAMES = [n for n in lookup.names(PACKAGE) if "sft_weight" in lookup.find(PACKAGE, n).Config.model_fields]
ON_MLP = [name for name in NAMES if name != "dppo"]


def made(name, policy_config=None, **settings):
    torch.manual_seed(0)
    module = lookup.find(PACKAGE, name)
    fields = {"minibatches": 2, "epochs": 1, "num_groups": 2, "group_size": 8, "num_steps": 32} | settings
    config = module.Config(name=name, **{k: v for k, v in fields.items() if k in module.Config.model_fields})
    policy = base.make(policy_config or mlp.Config(hidden=[8]), SPEC, critic="value" in config.requires)
    feeds = config.feeds(num_envs=16, num_slices=2, deterministic=False)
    return module.make(config, SPEC, policy, next(iter(feeds.values()))), feeds


def shown(policy, num):
    """Demonstrations [num] of one action everywhere, 0.3 of what the bounds allow."""
    seen = {f"demos/obs/{key}": torch.randn(num, *array.shape) for key, array in SPEC.observation.items()}
    executed = 0.3 * torch.tensor(SPEC.action.high).expand(num, -1)
    return seen | {
        "demos/env_action": executed, "demos/valid": torch.ones(num, dtype=torch.bool),
        "demos/action": torch.from_numpy(policy.from_env_action(executed.numpy())),
        "demos/num_steps": torch.ones(num, dtype=torch.int32),
    }  # fmt: skip


def labelled(algorithm):
    policy = algorithm.policy
    batch = episode_batch(policy) if algorithm.feed.group_size else chunk_batch(policy, T=32, N=16)
    batch |= shown(policy, 20)
    roles = {key: role.module for key, role in algorithm.roles().items()}
    algorithm.label(batch, roles, NOW)
    return batch, roles


def test_the_algorithms_that_take_it():
    assert set(NAMES) >= {"ppo", "decoupled_ppo", "vtrace", "dppo", "cotrain", "grpo", "rloo", "gspo", "dapo",
                          "dr_grpo", "reinforce_pp"}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_adds_a_stream(name):
    config = lookup.find(PACKAGE, name).Config
    small = {k: v for k, v in {"num_groups": 2, "minibatches": 4}.items() if k in config.model_fields}
    asked = {"num_envs": 16, "num_slices": 2, "deterministic": False}
    assert set(config(sft_weight=0.0, **small).feeds(**asked)) == {"train"}
    feeds = config(sft_weight=0.5, demo_batch=8, **small).feeds(**asked)
    assert list(feeds) == ["train", "demos"]
    assert (feeds["demos"].num_batches, feeds["demos"].batch_size, feeds["demos"].unit) == (4, 8, "step")
    assert feeds["train"] == config(sft_weight=0.0, **small).feeds(**asked)["train"]


@pytest.mark.parametrize("name", ON_MLP)
def test_the_loss_is_the_algorithms_and_the_weighted_term(name):
    algorithm, _ = made(name, sft_weight=0.25)
    batch, roles = labelled(algorithm)
    plan = algorithm.plan()
    parts = list(minibatches(batch, plan, torch.Generator().manual_seed(0)))
    step = next(step for step in algorithm.steps() if step.name == "policy")
    assert sum(len(part["demos/action"]) for part in parts) == 20 * plan.epochs
    for part in parts:
        joint = step.loss(roles, part)
        own = algorithm.loss(roles, {n: c for n, c in part.items() if not n.startswith("demos/")})
        total, count = joint.terms.pop("sft_loss")
        demos = {n.removeprefix("demos/"): c for n, c in part.items() if n.startswith("demos/")}
        log_prob = roles["policy"]({**demos, "action": demos["env_action"]}, ("cloning_loss",))[
            "cloning_loss"
        ]
        torch.testing.assert_close(total, 0.25 * log_prob.sum())
        assert int(count) == len(part["demos/action"])
        assert joint.terms.keys() == own.terms.keys()
        for key in own.terms:
            torch.testing.assert_close(joint.terms[key][0], own.terms[key][0])


@pytest.mark.parametrize("name", ON_MLP)
def test_what_was_shown_becomes_likelier(name):
    likelier = {}
    for weight in (0.0, 10.0):
        algorithm, _ = made(name, sft_weight=weight, learning_rate=3e-3)
        batch, roles = labelled(algorithm)
        optimisers = optim.build(algorithm.steps(), roles)
        demos = {n.removeprefix("demos/"): c for n, c in batch.items() if n.startswith("demos/")}
        if not weight:
            batch = {n: c for n, c in batch.items() if not n.startswith("demos/")}
        before = roles["policy"](demos, ("log_prob",))["log_prob"].mean().item()
        for number in range(5):
            shuffle = torch.Generator().manual_seed(number)
            metrics = loop.update(algorithm, roles, optimisers, dict(batch), NOW, shuffle)
        likelier[weight] = roles["policy"](demos, ("log_prob",))["log_prob"].mean().item() - before
        assert ("sft_loss" in metrics) == bool(weight)
    assert likelier[10.0] > likelier[0.0] + 0.01


def test_recurrent_policies_are_refused():
    with pytest.raises(ConfigError, match="algorithm.sft_weight of grpo: single demonstrated decisions"):
        made("grpo", recurrent.Config(hidden=[4], state_size=3), sft_weight=0.1)
    made("grpo", recurrent.Config(hidden=[4], state_size=3))
