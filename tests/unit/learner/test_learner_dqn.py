"""DQN: double and plain targets by hand, the dueling head, epsilon's schedule, the target's period."""

import numpy as np
import pytest
import torch
from learner_tiny import DISCRETE, SPEC, built, step_batch, update

from rollbus_learner.algorithm import Progress
from rollbus_learner.algorithms import dqn
from rollbus_policies import mlp
from rollbus_policies._heads import make_head
from rollbus_policies.base import Ask
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec

START = Progress(updates=0, env_steps=0, total_steps=100)


def made(head="q_values", **settings):
    torch.manual_seed(0)
    config = dqn.Config(**({"batch_size": 64, "steps_per_update": 1} | settings))
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    policy = mlp.make(mlp.Config(hidden=[16], head=head), DISCRETE, critic=False)
    return dqn.make(config, DISCRETE, policy, feed)


def fixed(q):
    """A network that gives ``q`` [B, n]."""

    def forward(batch, want):
        return {"q_values": torch.tensor(q)}

    return forward


@pytest.mark.parametrize(
    ("double", "want"),
    [
        # Policy's best: 1, worth 2 by the target; target's own best: 0, worth 7. Row 2 terminated.
        (True, [1.0 + 0.5 * 2.0, 1.0 + 4.0 * 0.5 + 0.25 * 2.0, 1.0]),
        (False, [1.0 + 0.5 * 7.0, 1.0 + 4.0 * 0.5 + 0.25 * 7.0, 1.0]),
    ],
)
def test_target_by_hand(double, want):
    algorithm = made(double=double, gamma=0.5, huber_delta=1.0)
    batch = step_batch(3, spec=DISCRETE)
    batch["reward"] = torch.tensor([[1.0, 4.0]] * 3)
    batch["num_steps"] = torch.tensor([1, 2, 1], dtype=torch.int32)
    batch["terminated"] = torch.tensor([False, False, True])
    batch["action"] = torch.tensor([0, 1, 2])
    algorithm.label(batch, {}, START)
    own, slow = [[0.5, 3.0, 0.0]] * 3, [[7.0, 2.0, 0.0]] * 3
    loss = algorithm.loss({"policy": fixed(own), "target": fixed(slow)}, batch)
    assert loss.metrics["q_target"][0].item() == pytest.approx(sum(want))
    errors = [abs(q - y) for q, y in zip([0.5, 3.0, 0.0], want)]
    huber = sum(0.5 * e * e if e <= 1 else e - 0.5 for e in errors)
    assert loss.terms["critic_loss"][0].item() == pytest.approx(huber)


def test_dueling_by_hand():
    """V 1, advantages 3, 0, 0: Q = 1 + 2, 1 - 1, 1 - 1; in numpy, too."""
    head = make_head("dueling_q_values", ActionSpec("discrete", num=[3]))
    raw = torch.tensor([[1.0, 3.0, 0.0, 0.0]])
    torch.testing.assert_close(head(raw), torch.tensor([[3.0, 0.0, 0.0]]))
    np.testing.assert_allclose(head.sampler().params(raw.numpy()), [[3.0, 0.0, 0.0]], rtol=1e-6)


def test_epsilon_falls_and_is_one_of_the_tensors_that_actors_get():
    algorithm = made(epsilon=1.0, final_epsilon=0.1, epsilon_fraction=0.5)
    assert algorithm.publish(built(algorithm)[0])["head.exploration"] == 1.0
    for steps, want in ((0, 1.0), (25, 0.55), (50, 0.1), (90, 0.1)):
        algorithm.before_update(Progress(updates=0, env_steps=steps, total_steps=100))
        assert algorithm.policy.head.exploration.item() == pytest.approx(want)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_random_actions_are_as_frequent_as_epsilon_says(epsilon):
    algorithm = made(epsilon=epsilon)
    policy, rows = algorithm.policy, 4000
    obs = {"x": np.zeros((rows, 3), np.float32)}
    seeds = np.random.default_rng(0).integers(0, 2**63, rows).astype(np.uint64)
    best = policy.act(obs, None, Ask("mode"), seeds).action
    sampled = policy.act(obs, None, Ask("sample"), seeds).action
    assert len(set(best)) == 1 and (sampled != best).mean() == pytest.approx(epsilon * 2 / 3, abs=0.03)


def test_the_target_is_copied_when_it_is_due_even_after_a_resume():
    algorithm = made(target_period=3)
    modules, _ = built(algorithm)
    with torch.no_grad():
        modules["policy"].output.weight.fill_(1.0)
    for _ in range(2):
        algorithm.after_step(modules, "policy", {})
    assert not (modules["target"].output.weight == 1).any()
    again = made(target_period=3)
    again.load_state(algorithm.state())
    again.after_step(modules, "policy", {})
    assert (modules["target"].output.weight == 1).all()


@pytest.mark.parametrize("head", ["q_values", "dueling_q_values"])
def test_a_bandit_is_solved(head):
    algorithm = made(head, learning_rate=1e-2, gamma=0.0)
    modules, optimisers = built(algorithm)
    for seed in range(200):
        update(algorithm, modules, optimisers, step_batch(128, seed, DISCRETE), START)
    q = dqn.q_values(algorithm.policy, step_batch(64, 999, DISCRETE), "")
    assert (q - torch.tensor([0.0, 1.0, 0.0])).abs().max() < 0.2


def test_what_does_not_fit_is_refused():
    config = dqn.Config()
    feed = config.feed(num_envs=4, num_slices=1, deterministic=False)
    with pytest.raises(ConfigError, match="discrete action"):
        dqn.make(config, SPEC, mlp.make(mlp.Config(), SPEC, critic=False), feed)
    with pytest.raises(ConfigError, match="head: q_values"):
        dqn.make(config, DISCRETE, mlp.make(mlp.Config(), DISCRETE, critic=False), feed)
