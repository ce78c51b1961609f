"""What every algorithm must do, found by listing the folder: a new file is tested the day it appears."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from rollbus_core.columns import SOURCES
from rollbus_core.config.checks import CAPABILITIES, misfits
from rollbus_core.feed import Feed
from rollbus_learner.algorithm import Algorithm, AlgorithmConfig, Progress
from rollbus_policies import base as policies
from rollbus_policies import flow, mlp
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import EXPERT_ACTION

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "learner"))
from learner_tiny import DISCRETE, SPEC, built, chunk_batch, episode_batch, samples, step_batch, update

PACKAGE = "rollbus_learner.algorithms"
NAMES = lookup.names(PACKAGE)
NOW = Progress(updates=0, env_steps=0, total_steps=1000)
SMALL = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1, "chunk": 1}
#: Policies that are tried in turn, and the task that goes with each.
POLICIES = (
    (mlp.Config(hidden=[32], head="tanh_gaussian"), SPEC),
    (mlp.Config(hidden=[32], head="deterministic"), SPEC),
    (mlp.Config(hidden=[32], head="q_values"), DISCRETE),
    (flow.Config(**SMALL, steps=3), SPEC),
    (flow.Config(**SMALL, sampler="flow_noise", bound="tanh"), SPEC),
    (flow.Config(**SMALL, steer=True), SPEC),
    (flow.Config(**SMALL, refine=True), SPEC),
    (mlp.Config(hidden=[32], head="tanh_gaussian", condition="label"), SPEC),
)

pytestmark = pytest.mark.parametrize("name", NAMES)


def config_of(name):
    config = lookup.find(PACKAGE, name).Config
    small = {"num_groups": 2, "group_size": 8, "num_proposals": 2}
    return config(learning_rate=3e-3, **{k: v for k, v in small.items() if k in config.model_fields})


def algorithm_of(name) -> Algorithm:
    """With the first small policy that fits."""
    torch.manual_seed(0)
    config, module = config_of(name), lookup.find(PACKAGE, name)
    feed = config.feed(num_envs=16, num_slices=2, deterministic=False)
    for policy_config, spec in POLICIES:
        if not [*misfits(policy_config, config)]:
            policy = policies.make(policy_config, spec, critic="value" in config.requires)
            with contextlib.suppress(ConfigError):
                return apart(module.make(config, spec, policy, feed))
    raise AssertionError(f"{name} fits none of the policies here")


def apart(algorithm) -> Algorithm:
    """With a teacher, if it has one, that thinks differently from the policy."""
    if teacher := algorithm.roles().get("teacher"):
        with torch.no_grad():
            for parameter in teacher.module.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
    return algorithm


def preference(policy, seen):
    """[...]: how much ``policy`` is for the actions of ``seen``."""
    if "log_prob" in policy.spec.extras:
        return policy(seen, ("log_prob",))["log_prob"]
    if "q_values" in policy.wants:
        q = policy(seen, ("q_values",))["q_values"]
        return q.gather(-1, seen["action"][..., None])[..., 0] - q.mean(-1)
    if "steering" in policy.wants:
        noise = torch.zeros(len(seen["action"]), 2)
        chosen = policy({**seen, "noise": noise}, ("steering",))["steering"]
        return -((policy.steer.bound * chosen - seen["action"][:, :2]) ** 2).sum(-1)
    if "refinement" in policy.wants:
        state = policy(seen, ("refinement_state",))["refinement_state"]
        given = {"refinement_state": state, "reference": torch.zeros(len(state), 1, 2)}
        chosen = policy(given, ("refinement",))["refinement"][:, 0]
        return -((chosen - policy.squash(seen["action"])) ** 2).sum(-1)
    return -((policy(seen, ("deterministic",))["deterministic"] - seen["action"]) ** 2).sum(-1)


def batch_of(algorithm):
    """A fixed batch of the algorithm's unit."""
    if algorithm.feed.unit == "step":
        batch = step_batch(algorithm.feed.batch_size, spec=algorithm.spec)
        if algorithm.policy.spec.generative:
            stored = algorithm.policy.from_env_action(batch["env_action"].numpy())
            # Where noise is what is chosen, it is what the reward is of.
            if algorithm.policy.config.steer:
                stored[:, :2] = 2.0 * batch["env_action"].numpy()
            batch["action"] = torch.from_numpy(stored)
        # Whoever learns from an expert gets one that did what was done.
        executed = algorithm.policy.env_action(batch["action"].numpy())
        taught = torch.full(batch["valid"].shape, SOURCES.index("expert"), dtype=torch.uint8)
        seen = dict.fromkeys(
            (f"obs/{EXPERT_ACTION}", f"next_obs/{EXPERT_ACTION}"), torch.from_numpy(executed)
        )
        good = torch.ones(batch["valid"].shape, dtype=torch.int8)
        return batch | seen | {"source": taught, "label": good}
    if algorithm.feed.group_size:
        return episode_batch(algorithm.policy)
    return chunk_batch(algorithm.policy, T=32, N=16)


def labelled(algorithm, modules):
    """A fixed batch with its labels."""
    batch = batch_of(algorithm)
    algorithm.label(batch, modules, NOW)
    return batch


def test_imports_and_feeds_without_torch(name):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"import {PACKAGE}.{name} as m\n"
        "feed = m.Config().feed(num_envs=64, num_slices=2, deterministic=False)\n"
        "assert feed.summary, 'no summary'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_config_is_documented_and_strict(name):
    module = lookup.find(PACKAGE, name)
    assert issubclass(module.Config, AlgorithmConfig) and module.Config().name == name
    own = {k: f for k, f in module.Config.model_fields.items() if k != "name"}
    assert not [k for k, f in own.items() if not f.description]
    requires = module.Config.requires | module.Config.requires_one_of
    assert requires and requires <= set(CAPABILITIES)
    assert module.__doc__ and "needs" in vars(module)
    with pytest.raises(ValidationError, match="lerning_rate"):
        module.Config(lerning_rate=1e-4)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("num_envs", [1, 16])
def test_feed_is_plain_and_complete(name, deterministic, num_envs):
    if num_envs == 1 and "group_size" in lookup.find(PACKAGE, name).Config.model_fields:
        with pytest.raises(ValueError, match="env.num_envs"):
            config_of(name).feed(num_envs=1, num_slices=1, deterministic=deterministic)
        return
    feed = config_of(name).feed(num_envs=num_envs, num_slices=1, deterministic=deterministic)
    assert Feed.model_validate_json(feed.model_dump_json()) == feed
    assert set(feed.extras) <= {"log_prob", "value"}
    if feed.unit == "step":
        assert feed.table.sampler == "replay" and feed.num_batches >= 1 and feed.batch_size >= 1
    elif deterministic:
        assert feed.table.max_lag == 0 and feed.table.one_chunk_per_slice


def test_roles_steps_and_plan_fit_together(name):
    algorithm = algorithm_of(name)
    roles = algorithm.roles()
    assert roles["policy"].module is algorithm.policy
    steps, plan = algorithm.steps(), algorithm.plan()
    assert len({step.name for step in steps}) == len(steps) and plan.epochs >= 1
    for step in steps:
        assert step.trains and all(roles[role].trainable for role in step.trains)
    assert set(algorithm.before_update(NOW)) <= {step.name for step in steps}


def test_loss_falls_on_a_fixed_batch(name):
    """Sum of the first step's terms, over 20 updates on the same labels."""
    algorithm = algorithm_of(name)
    modules, optimisers = built(algorithm)
    batch, terms = labelled(algorithm, modules), None
    losses = []
    for _ in range(20):
        metrics = update(algorithm, modules, optimisers, batch, NOW, label=False)
        terms = terms or list(algorithm.steps()[0].loss(modules, samples(algorithm.plan(), batch)).terms)
        losses.append(sum(metrics[term] for term in terms))
    assert losses[-1] < losses[0]


def test_good_actions_become_likelier_than_bad_ones(name):
    """The log-prob of the better half of the actions rises over that of the rest; imitated ones all do."""
    algorithm = algorithm_of(name)
    imitates = "cloning_loss" in algorithm.config.requires_one_of
    modules, optimisers = built(algorithm)
    batch, policy = labelled(algorithm, modules), algorithm.policy
    # The labels of a replay algorithm are learned first; there the reward itself ranks the actions.
    replay = algorithm.feed.unit == "step"
    rank = batch["reward"][..., 0] if replay else batch["advantage"]
    rank = rank if rank.ndim == 2 or replay else rank[..., 0]
    chosen, middle = batch["valid"], rank[batch["valid"]].median()
    good, bad = chosen & (rank > middle), chosen & (rank <= middle)
    seen = {"obs/x": batch["obs/x"][: len(rank)], "action": batch["action"]}

    def lead():
        with torch.no_grad():
            score = preference(policy, seen)
        return (score[good].mean() - (0 if imitates else score[bad].mean())).item()

    before = lead()
    for _ in range(150 if replay else 20):
        update(algorithm, modules, optimisers, batch, NOW, label=replay)
    assert lead() > before


def test_state_survives_a_checkpoint_and_publish_is_of_the_policy(name):
    algorithm = algorithm_of(name)
    modules, optimisers = built(algorithm)
    update(algorithm, modules, optimisers, batch_of(algorithm), NOW)
    again = algorithm_of(name)
    again.load_state(algorithm.state())
    assert again.state() == algorithm.state()
    published = algorithm.publish(modules)
    names = set(modules["policy"].state_dict())
    assert published and set(published) <= names
    assert {n for n in names if not n.startswith("critic.")} <= set(published)
