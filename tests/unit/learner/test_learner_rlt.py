"""RLT: losses and targets by hand, which references are hidden, what is frozen, what the token learns."""

import numpy as np
import pytest
import torch
from learner_tiny import SPEC, built, step_batch, update

from rollbus_core import rng
from rollbus_core.columns import SOURCES
from rollbus_core.feed import TRAINING_TABLE
from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import rlt
from rollbus_learner.checkpoint import CheckpointError, start_from
from rollbus_policies import diffusion, flow
from rollbus_policies.base import Ask
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import MAY_REFINE

START = Progress(updates=0, env_steps=0, total_steps=100)
SMALL = {"width": 16, "num_heads": 2, "layers": 1, "expert_layers": 1, "chunk": 3, "execute": 2, "steps": 2}
ROWS = 32


def refined(module=flow, **settings):
    torch.manual_seed(0)
    given = SMALL | {"refine": True, "refine_token": 4, "refine_hidden": [16]} | settings
    policy = module.make(module.Config(**given), SPEC, critic=False)
    with torch.no_grad():
        policy.output.weight.mul_(100.0)
    return policy


def made(policy, **settings):
    given = {"batch_size": ROWS, "steps_per_update": 2, "updates_per_step": 1, "critic_hidden": [16]}
    config = rlt.Config(**(given | settings))
    return rlt.make(config, SPEC, policy, config.feed(num_envs=4, num_slices=1, deterministic=False))


def batch_of(policy, num=2 * ROWS):
    """Decisions of two steps that the policy made, some of which an end cut short."""
    batch = step_batch(num)
    obs = {"x": batch["obs/x"].numpy()}
    seeds = rng.decision_seeds(rng.stream(0, "t"), np.arange(num), np.zeros(num, int))
    batch["action"] = torch.from_numpy(policy.act(obs, None, Ask("sample"), seeds).action)
    batch["reward"] = torch.randn(num, 2)
    batch["num_steps"] = torch.randint(1, 3, (num,), dtype=torch.int32)
    return batch


def constant(role, value):
    """Q functions that always give ``value`` [M]."""
    for parameter in role.parameters():
        parameter.data.zero_()
    role.output.bias.data.copy_(torch.tensor(value).view(-1, 1, 1))


def test_the_target_is_the_smaller_of_both_after_the_executed_steps():
    policy = refined()
    algorithm = made(policy, gamma=0.9)
    modules, _ = built(algorithm)
    batch = batch_of(policy, 2)
    batch["reward"] = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    batch["num_steps"] = torch.tensor([2, 1], dtype=torch.int32)
    batch["terminated"] = torch.tensor([False, False])
    algorithm.label(batch, modules, START)
    constant(modules["target"], [5.0, 4.0])
    constant(modules["critic"], [3.0, 1.0])
    loss = algorithm.critic_loss(modules, batch)
    # 1 + 0.9 x 2 + 0.81 x 4 and 1 + 0.9 x 4
    targets = torch.tensor([6.04, 4.6])
    assert float(loss.metrics["q_target"][0]) == pytest.approx(float(targets.sum()), abs=1e-5)
    wanted = 0.5 * ((3.0 - targets) ** 2 + (1.0 - targets) ** 2).sum()
    assert float(loss.terms["critic_loss"][0].detach()) == pytest.approx(float(wanted), abs=1e-4)


def test_the_next_action_is_the_networks_with_noise_or_the_policys_alone():
    policy = refined()
    algorithm = made(policy, exploration_noise=0.3)
    modules, _ = built(algorithm)
    batch = batch_of(policy, 64)
    may = torch.arange(64) % 2 == 0
    batch[f"next_obs/{MAY_REFINE}"] = may
    algorithm.label(batch, modules, START)
    state = policy({"obs/x": batch["next_obs/x"]}, ("refinement_state",))["refinement_state"]
    torch.testing.assert_close(state, batch["next_obs/refinement_state"])
    valued = {}
    modules["target"].forward = lambda batch, action, **_: valued.setdefault("action", action)[None, :, 0, 0]
    algorithm.following(modules, batch)
    own = policy({"refinement_state": state, "reference": batch["next_reference"]}, ("refinement",))
    noisy = (own["refinement"] + batch["exploration"]).clamp(-1, 1)
    torch.testing.assert_close(
        valued["action"], torch.where(may.view(-1, 1, 1), noisy, batch["next_reference"])
    )
    assert batch["exploration"].std().item() == pytest.approx(0.3, rel=0.2)


def test_the_networks_loss_by_hand():
    policy = refined()
    algorithm = made(policy, q_weight=2.0, bc_weight=3.0, reference_dropout=0.5)
    modules, _ = built(algorithm)
    batch = batch_of(policy)
    algorithm.label(batch, modules, START)
    constant(modules["critic"], [7.0, 1.0])
    hidden = ~batch["shows_reference"]
    assert 0.2 < hidden.float().mean() < 0.8
    wanted = []
    for row in range(len(hidden)):
        reference = batch["reference"][row]
        shown = torch.zeros(2, 2) if hidden[row] else reference
        action = policy.refine(batch["obs/refinement_state"][row], shown)
        wanted.append(3.0 * ((action - reference) ** 2).sum() / 4 - 2.0 * 7.0)
    total, count = algorithm.policy_loss(modules, batch).terms["policy_loss"]
    assert float(total.detach()) == pytest.approx(float(sum(wanted).detach()), rel=1e-5)
    assert int(count) == len(hidden)
    # The reference of a row is what the policy itself decided.
    torch.testing.assert_close(batch["reference"].flatten(1), batch["action"][:, :4].clamp(-1, 1))


@pytest.mark.parametrize("dropout", [0.0, 1.0])
def test_all_or_no_references_are_hidden(dropout):
    policy = refined()
    algorithm = made(policy, reference_dropout=dropout)
    modules, _ = built(algorithm)
    batch = batch_of(policy)
    algorithm.label(batch, modules, START)
    assert (batch["shows_reference"] == (dropout == 0.0)).all()


def test_rows_in_which_it_may_not_act_do_not_train_the_network():
    policy = refined()
    algorithm = made(policy)
    modules, _ = built(algorithm)
    batch = batch_of(policy, 4)
    batch[f"obs/{MAY_REFINE}"] = torch.tensor([[1.0], [0.0], [0.0], [1.0]])
    algorithm.label(batch, modules, START)
    loss = algorithm.policy_loss(modules, batch)
    assert int(loss.terms["policy_loss"][1]) == 2
    assert int(algorithm.critic_loss(modules, batch).terms["critic_loss"][1]) == 4


@pytest.mark.parametrize("module", [flow, diffusion])
@pytest.mark.parametrize("stage", ["token", "actor"])
def test_no_byte_of_the_policy_changes(module, stage):
    policy = refined(module, normalise_obs=True)
    algorithm = made(policy, stage=stage)
    modules, optimisers = built(algorithm)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    batch = batch_of(policy)
    for _ in range(5):
        update(algorithm, modules, optimisers, batch, START)
    changed = {name for name, value in policy.state_dict().items() if not torch.equal(before[name], value)}
    own = "refine.token." if stage == "token" else ("refine.actor.", "refine.output.")
    assert changed and all(name.startswith(own) for name in changed)


def test_the_token_learns_to_tell():
    policy = refined(refine_token=8)
    algorithm = made(policy, stage="token", learning_rate=3e-3)
    modules, optimisers = built(algorithm)
    batch = batch_of(policy)
    losses = [update(algorithm, modules, optimisers, batch, START)["token_loss"] for _ in range(150)]
    assert losses[-1] < 0.2 * losses[0]


def test_stages_have_their_tables():
    given = {"num_envs": 4, "num_slices": 1, "deterministic": False}
    assert list(rlt.Config().feeds(**given)) == [TRAINING_TABLE]
    ((table, feed),) = rlt.Config(stage="token", n_step=3).feeds(**given).items()
    assert table == "demos" and feed.table.random_steps == 0 and feed.n_step == 1
    with pytest.raises(ValueError, match="policy_delay"):
        rlt.Config(policy_delay=9, steps_per_update=4, updates_per_step=1).feeds(**given)
    with pytest.raises(ConfigError, match="critic_group"):
        made(refined(), critic_group="privileged")


def test_it_begins_from_a_policy_without_network_and_not_from_another_width(tmp_path, monkeypatch):
    from rollbus_learner import checkpoint

    base = refined(refine=False)
    saved = {name: value.numpy().copy() for name, value in base.state_dict().items()}
    monkeypatch.setattr(checkpoint, "load_policy_tensors", lambda path: (saved, None))
    policy = refined()
    start_from(policy, tmp_path)
    for name, value in base.state_dict().items():
        assert torch.equal(policy.state_dict()[name], value)
    saved |= {name: value.numpy().copy() for name, value in refined(refine_token=5).state_dict().items()}
    with pytest.raises(CheckpointError, match=r"refine\.token\.narrow"):
        start_from(policy, tmp_path)


def test_the_network_is_drawn_to_what_a_person_did():
    """A takeover: the stored action of a person's is the reference, and critics value it."""
    policy = refined()
    algorithm = made(policy, q_weight=0.0, bc_weight=1.0, learning_rate=3e-3)
    modules, optimisers = built(algorithm)
    batch = batch_of(policy)
    shown = np.full((len(batch["valid"]), 3, 2), 0.6, np.float32)
    batch["action"] = torch.from_numpy(policy.from_env_action(shown))
    batch["source"] = torch.full(batch["valid"].shape, SOURCES.index("human"), dtype=torch.uint8)
    for _ in range(100):
        metrics = update(algorithm, modules, optimisers, batch, START)
    assert metrics["reference_distance"] < 0.01
    state = policy({"obs/x": batch["obs/x"]}, ("refinement_state",))["refinement_state"]
    done = policy({"refinement_state": state, "reference": torch.zeros(len(state), 2, 2)}, ("refinement",))
    torch.testing.assert_close(done["refinement"].mean(), torch.tensor(0.6), atol=0.05, rtol=0)
