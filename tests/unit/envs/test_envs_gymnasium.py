"""Gymnasium environments as rows and as vectors, against Gymnasium itself."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from rollbus_envs import gymnasium as plugin
from rollbus_envs import vector
from rollbus_wire.check import check_env
from rollbus_wire.env import Rows
from rollbus_wire.errors import ConfigError, MissingPackage, SpecError

ONE = np.zeros(1, np.int32)


def rows_of(num: int) -> np.ndarray:
    return np.arange(num, dtype=np.int32)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "HalfCheetah-v5"])
def test_rows_give_what_gymnasium_gives(env_id):
    env = plugin.make(plugin.Config(id=env_id), 2)
    raw = [gymnasium.make(env_id).unwrapped for _ in range(2)]
    first = env.reset(rows_of(2), np.array([1, 2]), [])
    expected = [raw[i].reset(seed=i + 1)[0] for i in range(2)]
    np.testing.assert_array_equal(first["obs"], np.array(expected).astype(first["obs"].dtype))
    raw[0].action_space.seed(0)
    for _ in range(30):
        actions = np.array([raw[0].action_space.sample() for _ in range(2)])
        result = env.step(rows_of(2), actions, True)
        outcomes = [r.step(a) for r, a in zip(raw, actions, strict=True)]
        np.testing.assert_array_equal(
            result.obs["obs"], np.array([o[0] for o in outcomes], result.obs["obs"].dtype)
        )
        np.testing.assert_array_equal(result.reward, np.array([o[1] for o in outcomes], np.float32))
        np.testing.assert_array_equal(result.terminated, [o[2] for o in outcomes])
        if result.terminated.any():
            break


def test_mujoco_leaves_nothing_where_it_runs(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    env = plugin.make(plugin.Config(id="HalfCheetah-v5"), 1)
    env.reset(ONE, np.array([1]), [])
    env.envs[0].data.qpos[:] = np.nan
    env.step(ONE, np.zeros((1, 6), np.float32), True)
    assert list(tmp_path.iterdir()) == []
    assert "Nan, Inf or huge value in QPOS" in caplog.text


@pytest.mark.parametrize("module", [plugin, vector])
def test_every_registered_environment_names_its_packages(module):
    """Against the registry: the folder that an entry point is in is the extra that it needs."""
    for env_id, registered in gymnasium.registry.items():
        entry = str(registered.entry_point)
        extra = next((e for e in ("mujoco", "box2d") if entry.startswith(f"gymnasium.envs.{e}")), None)
        found = module.packages(module.Config(id=env_id))
        if extra:
            assert list(found.values()) == [f"gymnasium[{extra}]"], env_id
        elif entry.startswith("gymnasium."):
            assert found == {}, env_id
    assert module.packages(module.Config(id="mine:Ant-v5")) == {}


def test_limits_are_the_hubs_and_the_checker_is_gone():
    env = plugin.make(plugin.Config(id="CartPole-v1"), 1)
    assert env.spec.time_limit == 500 and not env.spec.internal_truncation and not env.spec.has_success
    assert env.envs[0] is env.envs[0].unwrapped
    pendulum = plugin.make(plugin.Config(id="Pendulum-v1"), 1)
    pendulum.reset(ONE, np.array([0]), [])
    cut = [pendulum.step(ONE, np.zeros((1, 1), np.float32), False).truncated[0] for _ in range(210)]
    assert pendulum.spec.time_limit == 200 and not any(cut)
    assert Rows([gymnasium.make("CartPole-v1").unwrapped]).spec.internal_truncation


def test_arguments_reach_the_environment():
    env = plugin.make(plugin.Config(id="FrozenLake-v1", kwargs={"is_slippery": False}), 1)
    env.reset(ONE, np.array([0]), [])
    assert env.step(ONE, np.array([1]), True).obs["obs"].tolist() == [4]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Blackjack-v1"])
def test_they_keep_the_contract(env_id):
    report = check_env(lambda n: plugin.make(plugin.Config(id=env_id), n), num_rows=3, steps=100)
    assert report.ok, str(report)


@pytest.mark.parametrize(("settings", "error", "text"), [
    ({"id": "CartPole-v99"}, ConfigError, "v99"),
    ({"id": "NoSuchThing-v1"}, ConfigError, "NoSuchThing"),
    ({"id": "CartPole-v1", "kwargs": {"gravity_": 1}}, ConfigError, "gravity_"),
])  # fmt: skip
def test_errors_say_what_is_wrong(settings, error, text):
    with pytest.raises(error, match=text):
        plugin.make(plugin.Config(**settings), 1)


def test_missing_packages_come_with_the_line_that_installs_them(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mujoco", None)
    for name in list(__import__("sys").modules):
        if name.startswith("gymnasium.envs.mujoco"):
            monkeypatch.delitem(__import__("sys").modules, name)
    with pytest.raises(MissingPackage, match=r'pip install "gymnasium\[mujoco\]"'):
        plugin.make(plugin.Config(id="HalfCheetah-v5"), 1)
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(MissingPackage, match="pip install gymnasium"):
        plugin.make(plugin.Config(), 1)
    with pytest.raises(MissingPackage, match="pip install gymnasium"):
        vector.make(vector.Config(), 1)


class Three(gymnasium.Env):
    """Three steps, reward 1 at the last; the observation is the step, the first one 10."""

    observation_space = gymnasium.spaces.Box(0, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.array([10], np.float32), {}

    def step(self, action):
        self.count += 1
        over = self.count >= 3
        return np.array([self.count], np.float32), float(over), over, False, {"success": over}


gymnasium.register("RollbusThree-v0", entry_point=Three)


def transitions(env) -> tuple[list[tuple[float, int, float, float, bool]], int]:
    """Two episodes as a hub runs them: (obs, action, reward, next obs, terminated), and steps."""
    stored, steps = [], 0
    obs = env.reset(ONE, np.array([0]), [])["obs"][0, 0]
    while len(stored) < 6:
        action = len(stored) % 2
        result = env.step(ONE, np.array([action]), True)
        steps += 1
        after = result.obs["obs"][0, 0]
        stored.append((obs, action, result.reward[0], after, bool(result.terminated[0])))
        obs = after
        if result.terminated[0] and len(stored) < 6:
            obs = env.reset(ONE, np.array([1]), [])["obs"][0, 0]
    return stored, steps


@pytest.mark.parametrize("autoreset", ["rows", "disabled", "same_step", "next_step"])
def test_no_autoreset_mode_changes_what_is_stored(autoreset):
    if autoreset == "rows":
        env = plugin.make(plugin.Config(id="RollbusThree-v0"), 1)
        counted = env.envs[0]
    else:
        env = vector.make(vector.Config(id="RollbusThree-v0", autoreset=autoreset), 1)
        counted = env.env
    calls, step = [], counted.step
    counted.step = lambda action: calls.append(0) or step(action)
    if autoreset == "rows":
        env._steps = [counted.step]
    stored, steps = transitions(env)
    one = [(10, 0, 0, 1, False), (1, 1, 0, 2, False), (2, 0, 1, 3, True)]
    two = [(10, 1, 0, 1, False), (1, 0, 0, 2, False), (2, 1, 1, 3, True)]
    assert stored == one + two and steps == 6
    assert len(calls) == (7 if autoreset == "next_step" else 6)


def test_success_is_found_by_one_step():
    assert plugin.make(plugin.Config(id="RollbusThree-v0"), 1).spec.has_success
    assert not plugin.make(plugin.Config(id="RollbusThree-v0", success=False), 1).spec.has_success


def test_a_vector_steps_rows_that_end_at_different_times():
    env = vector.make(vector.Config(), 4)
    twin = plugin.make(plugin.Config(), 4)
    rows, seeds = rows_of(4), np.arange(4)
    np.testing.assert_array_equal(env.reset(rows, seeds, [])["obs"], twin.reset(rows, seeds, [])["obs"])
    random = np.random.RandomState(0)
    ends = 0
    for t in range(100):
        actions = random.randint(0, 2, 4)
        one, two = env.step(rows, actions, True), twin.step(rows, actions, True)
        np.testing.assert_array_equal(one.obs["obs"], two.obs["obs"])
        np.testing.assert_array_equal(one.terminated, two.terminated)
        ended = rows[one.terminated]
        if len(ended):
            ends += len(ended)
            fresh = env.reset(ended, ended + t, [])
            np.testing.assert_array_equal(fresh["obs"], twin.reset(ended, ended + t, [])["obs"])
    assert ends > 8


def test_same_step_vectors_hand_out_the_last_observation_first():
    env = vector.make(vector.Config(autoreset="same_step"), 3)
    rows = rows_of(3)
    env.reset(rows, np.arange(3), [])
    for _ in range(40):
        result = env.step(rows, np.ones(3, np.int64), True)
        over = rows[result.terminated]
        if len(over):
            assert (np.abs(result.obs["obs"][over, 2]) > 0.2).all()
            assert (np.abs(env.reset(over, over, [])["obs"]) <= 0.05).all()
            assert (np.abs(env.observe(over)["obs"]) <= 0.05).all()


def test_vectors_say_what_they_cannot_do():
    with pytest.raises(SpecError, match="disabled or same_step"):
        vector.make(vector.Config(autoreset="next_step"), 2)
    with pytest.raises(ConfigError, match="perhaps"):
        vector.make(vector.Config(autoreset="perhaps"), 2)
    env = vector.make(vector.Config(), 3)
    env.reset(rows_of(3), np.arange(3), [])
    with pytest.raises(SpecError, match="all its 3 rows together, 1"):
        env.step(ONE, np.array([0]), True)


def test_vectors_keep_the_contract():
    report = check_env(lambda n: vector.make(vector.Config(), n), num_rows=3, steps=100)
    assert report.ok, str(report)


class Told(Three):
    """Its first observation is the option "place"."""

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        return np.array([(options or {}).get("place", 10)], np.float32), info


gymnasium.register("RollbusTold-v0", entry_point=Told)


def test_vectors_pass_options_to_their_rows():
    """Gymnasium gives all rows one map; rows with others are reset one after the other."""
    env = vector.make(vector.Config(id="RollbusTold-v0"), 4)
    seeds = np.arange(4)
    options = [{"place": 1}, {"place": 2}, {"place": 1}, {}]
    assert env.reset(rows_of(4), seeds, options)["obs"][:, 0].tolist() == [1, 2, 1, 10]
    env.step(rows_of(4), np.zeros(4, np.int64), True)
    some = np.array([1, 3], np.int32)
    assert env.reset(some, seeds[:2], [{"place": 7}, {"place": 8}])["obs"][:, 0].tolist() == [7, 8]
    assert env.observe(rows_of(4))["obs"][:, 0].tolist() == [1, 7, 1, 8]
    rows = plugin.make(plugin.Config(id="RollbusTold-v0"), 4)
    assert rows.reset(rows_of(4), seeds, options)["obs"][:, 0].tolist() == [1, 2, 1, 10]
    other = vector.make(vector.Config(id="RollbusTold-v0", autoreset="same_step"), 2)
    with pytest.raises(SpecError, match="cannot begin with options"):
        other.reset(rows_of(2), seeds[:2], options[:2])


def test_the_ids_that_are_read_are_those_that_are_registered():
    code = (
        "from rollbus_envs._registry import _ids\nimport sys\nfound = _ids()\n"
        "assert 'gymnasium' not in sys.modules\n"
        "import gymnasium\nassert found == set(gymnasium.registry), found ^ set(gymnasium.registry)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_unknown_id_is_told_with_the_nearest():
    for module in (plugin, vector):
        assert module.problem(module.Config(id="CartPole-v1")) == ""
        assert module.problem(module.Config(id="CartPole")) == "", "the newest version"
        assert module.problem(module.Config(id="someone.elses:Reach-v0")) == ""
        assert "the nearest is CartPole-v1" in module.problem(module.Config(id="CartPol-v1"))
