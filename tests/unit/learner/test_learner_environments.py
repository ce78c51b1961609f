"""What environments execute of a chunk of decisions, for checkpoints of deterministic runs."""

import numpy as np

from rollbus_core.running_episodes import RunningEpisodes, read_episodes
from rollbus_learner.environments import executed
from rollbus_policies import base, flow, mlp
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

ACTION = ActionSpec("continuous", (2,), low=[-2.0] * 2, high=[2.0] * 2)
SPEC = EnvSpec("e", {"obs": ArraySpec("float32", (3,))}, ACTION)


def test_each_decision_has_its_actions():
    several = flow.Config(chunk=3, execute=2, steps=1, width=8, num_heads=2, layers=1, expert_layers=1,
                          sampler="flow_noise")  # fmt: skip
    policy = base.make(several, SPEC, critic=False)
    wanted = np.random.default_rng(0).uniform(-2, 2, (4, 5, 3, 2)).astype(np.float32)
    stored = policy.from_env_action(wanted.reshape(20, 3, 2)).reshape(4, 5, -1)
    np.testing.assert_allclose(executed(policy, stored), wanted[:, :, :2], atol=1e-5)
    one = base.make(mlp.Config(), SPEC, critic=False)
    stored = one.from_env_action(wanted[:, :, 0].reshape(20, 2)).reshape(4, 5, 2)
    np.testing.assert_allclose(executed(one, stored), wanted[:, :, :1], atol=1e-5)


def test_only_steps_that_ran_are_replayed(tmp_path):
    columns = {name: np.zeros((3, 1), bool) for name in ("terminated", "truncated", "interrupted")}
    columns |= {"episode": np.full((3, 1), 7), "num_steps": np.array([[2], [1], [2]])}
    episodes = RunningEpisodes()
    actions = np.arange(6, dtype=np.float32).reshape(3, 1, 2, 1)
    episodes.applied(columns, actions, [3])
    episodes.applied(columns, actions[:, :, :1], [2])  # a single action is repeated
    episodes.save(tmp_path / "environments.npz")
    assert read_episodes(tmp_path)[7].ravel().tolist() == [0, 1, 2, 4, 5, 0, 0, 2]
