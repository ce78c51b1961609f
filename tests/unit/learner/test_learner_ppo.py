"""PPO: settings, labels by hand, recurrent values, the gap, schedules, what is published."""

import copy
import json

import numpy as np
import pytest
import torch
from learner_tiny import SPEC, TinyPolicy, built, chunk_batch, flatten, update
from pydantic import ValidationError

from rollbus_core.version import Version
from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms.ppo import Config, adapted, make
from rollbus_learner.estimators import gae

START = Progress(updates=0, env_steps=0, total_steps=100)


def ppo(policy=None, num_envs=4, **settings):
    torch.manual_seed(0)
    config = Config(**({"num_steps": 8, "minibatches": 4} | settings))
    feed = config.feed(num_envs=num_envs, num_slices=1, deterministic=False)
    return make(config, SPEC, policy or TinyPolicy(), feed)


def test_feed_states_what_one_update_is():
    feed = Config(num_steps=32).feed(num_envs=64, num_slices=2, deterministic=False)
    assert feed.summary == (
        "one update = 64 rows x 32 steps = 2048 samples, 4 epochs x 8 minibatches of 256, lag <= 1"
    )
    assert (feed.table.batch_steps, feed.table.max_lag, feed.num_decisions) == (2048, 1, 32)
    assert feed.extras == ("log_prob",) and not feed.table.one_chunk_per_slice


def test_deterministic_feed_has_no_lag():
    table = Config(num_steps=32).feed(num_envs=64, num_slices=2, deterministic=True).table
    assert table.one_chunk_per_slice and table.max_lag == 0


def test_minibatches_that_do_not_divide_are_refused_by_name():
    with pytest.raises(
        ValueError, match=r"algorithm.minibatches 7 .* env.num_envs 4 x algorithm.num_steps 8 = 32"
    ):
        ppo(minibatches=7)


@pytest.mark.parametrize(
    "settings", [dict(dual_clip=0.5), dict(reward_scale=2.0), dict(clip=1.5),
                 dict(adaptive_kl=0.01, learning_rate_schedule="linear"), dict(lerning_rate=1.0)]
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValidationError):
        Config(**settings)


def values_by_hand(policy, batch):
    with torch.no_grad():
        value = policy({"obs/x": batch["obs/x"]}, ("value",))["value"].numpy()
        final = policy({"obs/x": batch["final_obs/x"]}, ("value",))["value"].numpy()
    slot = batch["final_slot"].numpy()
    return value, np.where(slot >= 0, final[slot], 0.0)


def test_labels_are_gae_of_the_policys_own_values():
    algorithm = ppo(normalise_advantage=False, gamma=0.9, gae_lambda=0.8)
    batch = chunk_batch(algorithm.policy)
    value, final_value = values_by_hand(algorithm.policy, batch)
    metrics = algorithm.label(batch, {"policy": algorithm.policy}, START)
    advantage, target = gae(
        reward=batch["reward"][..., 0].numpy(), discount=np.full((8, 4), 0.9, np.float32), value=value,
        final_value=final_value, terminated=batch["terminated"].numpy(), lam=0.8,
        truncated=batch["truncated"].numpy(), valid=batch["valid"].numpy(),
    )  # fmt: skip
    np.testing.assert_allclose(batch["advantage"], advantage, atol=1e-5)
    np.testing.assert_allclose(batch["target"], target, atol=1e-5)
    np.testing.assert_allclose(batch["old_value"], value[:-1], atol=1e-6)
    assert metrics["advantage_std"] == pytest.approx(advantage[batch["valid"].numpy()].std(), rel=1e-4)


def test_advantages_are_normalised_over_the_update():
    algorithm = ppo()
    batch = chunk_batch(algorithm.policy)
    algorithm.label(batch, {"policy": algorithm.policy}, START)
    valid = batch["advantage"][batch["valid"]]
    assert valid.mean().abs() < 1e-6 and valid.std().item() == pytest.approx(1.0, abs=1e-5)
    assert not batch["advantage"][~batch["valid"]].any()


def test_recorded_values_give_the_same_labels():
    """Also for the short row, whose last value stands in a column of its own."""
    learner = ppo(normalise_advantage=False)
    actor = ppo(learner.policy, normalise_advantage=False, value_source="actor")
    batch = chunk_batch(learner.policy)
    recorded = copy.deepcopy(batch)
    value, _ = values_by_hand(learner.policy, batch)
    recorded["value"] = torch.from_numpy(value[:-1].copy())
    recorded["value"][~batch["valid"]] = 1e6
    recorded["last_value"] = torch.from_numpy(value[batch["lengths"], np.arange(4)])
    with torch.no_grad():
        recorded["final_value"] = learner.policy({"obs/x": batch["final_obs/x"]}, ("value",))["value"]
    learner.label(batch, {"policy": learner.policy}, START)
    actor.label(recorded, {"policy": None}, Progress(7, 0, 1))
    torch.testing.assert_close(recorded["advantage"], batch["advantage"])
    torch.testing.assert_close(recorded["target"], batch["target"])
    assert actor.feed.extras == ("log_prob", "value")


def test_interrupted_and_unbootstrappable_decisions_are_left_out():
    algorithm = ppo()
    batch = chunk_batch(algorithm.policy)
    batch["interrupted"][3, 0] = True
    batch["truncated"][6, 0] = True  # and no final observation
    before = int(batch["valid"].sum())
    algorithm.label(batch, {"policy": algorithm.policy}, START)
    assert not batch["valid"][3, 0] and not batch["valid"][6, 0]
    assert int(batch["valid"].sum()) == before - 2


def test_recurrent_values_see_the_state_their_own_episode_left():
    algorithm = ppo(TinyPolicy(state_size=1), normalise_advantage=False)
    policy = algorithm.policy
    batch = chunk_batch(policy)
    assert algorithm.plan().whole_rows
    algorithm.label(batch, {"policy": policy}, START)
    with torch.no_grad():
        now = policy.critic(batch["obs/x"])[..., 0]
        final = policy.critic(batch["final_obs/x"])[:, 0]
    value, final_value = np.zeros((9, 4), np.float32), np.zeros((8, 4), np.float32)
    for n in range(4):
        memory = 1.0
        for t in range(9):
            memory = 0.5 * (0.0 if t < 8 and batch["start"][t, n] else memory) + now[t, n].item()
            value[t, n] = memory
            if t < 8 and (slot := batch["final_slot"][t, n]) >= 0:
                final_value[t, n] = 0.5 * memory + final[slot].item()
    valid = batch["valid"].numpy()
    np.testing.assert_allclose(batch["old_value"].numpy()[valid], value[:-1][valid], atol=1e-5)
    advantage, _ = gae(
        reward=batch["reward"][..., 0].numpy(), discount=np.full((8, 4), 0.99, np.float32), value=value,
        final_value=final_value, terminated=batch["terminated"].numpy(), lam=0.95,
        truncated=batch["truncated"].numpy(), valid=valid,
    )  # fmt: skip
    np.testing.assert_allclose(batch["advantage"], advantage, atol=1e-5)


def test_action_chunks_are_discounted_by_their_executed_steps():
    algorithm = ppo(normalise_advantage=False, gamma=0.5, gae_lambda=0.0)
    batch = chunk_batch(algorithm.policy, finals=False)
    batch["num_steps"][:] = 2
    batch["reward"] = torch.tensor([1.0, 4.0, 777.0]).expand(8, 4, 3)
    algorithm.label(batch, {"policy": algorithm.policy}, START)
    value, _ = values_by_hand(algorithm.policy, batch)
    want = 1.0 + 0.5 * 4.0 + 0.25 * value[1:]
    valid = batch["valid"].numpy()
    np.testing.assert_allclose(batch["target"].numpy()[valid], want[valid], atol=1e-5)


def test_first_loss_is_minus_the_mean_advantage():
    """At ratio 1; value and entropy by their formulas."""
    algorithm = ppo(entropy_coef=0.1)
    batch = chunk_batch(algorithm.policy)
    modules, _ = built(algorithm)
    algorithm.label(batch, modules, START)
    algorithm.before_update(START)
    sample = flatten(batch, 8)
    loss = algorithm.loss(modules, sample)
    mean = {k: (a / b).item() for k, (a, b) in (loss.terms | loss.metrics).items()}
    entropy = 2 * (-0.5 + 0.5 * np.log(2 * np.pi * np.e))
    assert mean["policy_loss"] == pytest.approx(-sample["advantage"].mean().item(), abs=1e-6)
    square = ((sample["old_value"] - sample["target"]) ** 2).mean().item()
    assert mean["value_loss"] == pytest.approx(0.5 * square, rel=1e-5)
    assert mean["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert mean["entropy_loss"] == pytest.approx(-0.1 * entropy, rel=1e-5)
    assert mean["approx_kl"] == pytest.approx(0.0, abs=1e-6) and mean["clip_fraction"] == 0.0


def test_rows_with_padding_give_the_loss_of_their_valid_samples():
    algorithm = ppo()
    batch = chunk_batch(algorithm.policy)
    modules, _ = built(algorithm)
    algorithm.label(batch, modules, START)
    whole = {k: v[:8] if k.startswith("obs/") else v for k, v in batch.items()}
    whole["log_prob"] = torch.where(batch["valid"], batch["log_prob"], 1e6)
    a, b = algorithm.loss(modules, whole), algorithm.loss(modules, flatten(batch, 8))
    for name, (numerator, count) in b.terms.items():
        torch.testing.assert_close(a.terms[name][0], numerator)
        assert a.terms[name][1] == count == batch["valid"].sum()


def test_gap_compares_samples_of_the_learners_version_only():
    algorithm = ppo()
    batch = chunk_batch(algorithm.policy)
    batch["version"][:] = Version(3, 4).pack()
    batch["version"][0] = Version(3, 5).pack()
    batch["log_prob"][1:] += 9.0
    progress = Progress(updates=5, env_steps=0, total_steps=1)
    metrics = algorithm.label(copy.copy(batch), {"policy": algorithm.policy}, progress)
    assert metrics["log_prob_gap"] <= 1e-5 and metrics["log_prob_gap_ratio"] == pytest.approx(1, abs=1e-5)
    batch["log_prob"][0] -= 0.25
    metrics = algorithm.label(copy.copy(batch), {"policy": algorithm.policy}, progress)
    assert metrics["log_prob_gap"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["log_prob_gap_ratio"] == pytest.approx(np.exp(0.25), rel=1e-4)
    none = algorithm.label(batch, {"policy": algorithm.policy}, Progress(6, 0, 1))
    assert "log_prob_gap" not in none


def test_kl_stop_and_adaptive_rate():
    assert ppo(target_kl=0.1).after_step({}, "policy", {"approx_kl": 0.151})
    assert not ppo(target_kl=0.1).after_step({}, "policy", {"approx_kl": 0.149})
    assert not ppo().after_step({}, "policy", {"approx_kl": 100.0})
    assert adapted(3e-4, 0.021, 0.01) == pytest.approx(2e-4)
    assert adapted(3e-4, 0.004, 0.01) == pytest.approx(4.5e-4)
    assert adapted(3e-4, 0.01, 0.01) == 3e-4 and adapted(3e-4, 0.0, 0.01) == 3e-4
    assert adapted(1.2e-5, 1.0, 0.01) == 1e-5 and adapted(9e-3, 1e-3, 0.01) == 1e-2
    algorithm = ppo(adaptive_kl=0.01)
    batch = chunk_batch(algorithm.policy)
    algorithm.after_update(batch, {"policy": algorithm.policy}, {"approx_kl": 1.0})
    assert algorithm.before_update(START)["policy"] == pytest.approx(1 / 1.5)


def test_schedules_fall_to_zero_at_the_end():
    linear = dict(learning_rate_schedule="linear", clip_schedule="linear", entropy_schedule="linear")
    algorithm = ppo(**linear, clip_high=0.4, entropy_coef=0.2)
    assert algorithm.before_update(Progress(0, 25, 100)) == {"policy": pytest.approx(0.75)}
    assert algorithm.clips == pytest.approx((0.15, 0.3)) and algorithm.entropy_coef == pytest.approx(0.15)
    assert algorithm.before_update(Progress(0, 120, 100)) == {"policy": 0.0}
    constant = ppo()
    assert constant.before_update(Progress(0, 99, 100)) == {"policy": 1.0} and constant.clips == (0.2, 0.2)


def test_normaliser_sees_what_was_acted_on_once():
    algorithm = ppo()
    batch = chunk_batch(algorithm.policy)
    modules, optimisers = built(algorithm)
    update(algorithm, modules, optimisers, batch, START)
    ((obs, valid),) = algorithm.policy.seen
    assert torch.equal(obs, batch["obs/x"][:8]) and torch.equal(valid, batch["valid"])


def test_published_without_the_critic_unless_actors_need_it():
    algorithm = ppo()
    assert set(algorithm.publish({"policy": algorithm.policy})) == {"mean.weight", "mean.bias", "log_std"}
    algorithm = ppo(value_source="actor")
    assert "critic.weight" in algorithm.publish({"policy": algorithm.policy})


def test_reward_scaling_and_its_state():
    scaled, constant = ppo(reward_scaling="running_std"), ppo(reward_scaling="constant", reward_scale=0.1)
    batch = chunk_batch(scaled.policy)
    a, b = copy.copy(batch), copy.copy(batch)
    metrics = scaled.label(a, {"policy": scaled.policy}, START)
    assert metrics["reward_scale"] == pytest.approx(1 / scaled.scaler.scale)
    constant.label(b, {"policy": constant.policy}, START)
    reward, _ = constant.rewards(b, {})
    np.testing.assert_allclose(reward, 0.1 * batch["reward"][..., 0], rtol=1e-6)
    again = ppo(reward_scaling="running_std")
    again.load_state(json.loads(json.dumps(scaled.state())))
    assert again.state() == scaled.state() and again.scaler.count == int(batch["valid"].sum())
