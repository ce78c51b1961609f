"""Every file of rollbus_actor.engines against the contract in `engines.base`, beside `policy.act`.

An engine that cannot serve a policy says why in `declines`; a server that is not there is a reason too.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from rollbus_actor.engines.base import InferenceEngine, make_engine
from rollbus_core import rng
from rollbus_core.version import Version
from rollbus_policies import base
from rollbus_wire import lookup
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

PACKAGE = "rollbus_actor.engines"
NAMES = lookup.names(PACKAGE)
ACTIONS = {
    "discrete": ActionSpec("discrete", num=[5]),
    "multi_discrete": ActionSpec("multi_discrete", (3,), num=[2, 4, 3]),
    "continuous": ActionSpec("continuous", (2,), low=[-2.0, 0.0], high=[2.0, 1.0]),
}
VECTOR = ArraySpec("float32", (4,))
IMAGE = ArraySpec("uint8", (16, 16, 3), low=0, high=255, layout="HWC", channels="RGB")
ODD = ArraySpec("uint8", (3, 11, 9), low=0, high=255, layout="CHW")
TOKEN = ArraySpec("int64", (), low=2, high=6, layout="tokens")
DOUBLE = ArraySpec("float64", (2, 3))

#: name -> (policy, its settings, observations, action, frames)
CASES = {
    "mlp": ("mlp", {}, {"obs": VECTOR}, "discrete", 1),
    "mlp-multi": ("mlp", {"activation": "elu", "critic": "shared"}, {"obs": VECTOR}, "multi_discrete", 1),
    "mlp-gaussian": ("mlp", {"normalise_obs": True, "activation": "relu"}, {"obs": VECTOR}, "continuous", 3),
    "mlp-squashed": (
        "mlp",
        {"head": "tanh_gaussian", "activation": "silu"},
        {"obs": VECTOR},
        "continuous",
        1,
    ),
    "mlp-keys": ("mlp", {"normalise_obs": True}, {"a": TOKEN, "b": DOUBLE, "c": IMAGE}, "discrete", 1),
    "mlp-gelu": ("mlp", {"activation": "gelu"}, {"obs": VECTOR}, "discrete", 1),
    "recurrent": ("recurrent", {}, {"obs": VECTOR}, "continuous", 1),
    "recurrent-shared": ("recurrent", {"critic": "shared"}, {"obs": VECTOR, "t": TOKEN}, "discrete", 1),
    "lstm": ("recurrent", {"cell": "lstm"}, {"obs": VECTOR}, "continuous", 1),
    "lstm-shared": ("recurrent", {"cell": "lstm", "critic": "shared"}, {"obs": VECTOR}, "discrete", 3),
    "cnn": ("cnn", {"critic": "own"}, {"image": IMAGE}, "discrete", 1),
    "mlp-two-hot": ("mlp", {"value_head": "two_hot", "value_limit": 20.0}, {"obs": VECTOR}, "discrete", 1),
    "lstm-two-hot": (
        "recurrent",
        {"cell": "lstm", "critic": "shared", "value_head": "two_hot", "value_atoms": 31, "value_limit": 20.0},
        {"obs": VECTOR},
        "continuous",
        1,
    ),
    "cnn-keys": ("cnn", {"hidden": [8]}, {"image": IMAGE, "vector": VECTOR}, "continuous", 3),
    "impala": ("cnn", {"architecture": "impala"}, {"image": IMAGE}, "discrete", 1),
    "impala-own": ("cnn", {"architecture": "impala", "critic": "own"}, {"image": ODD}, "continuous", 3),
}
EVERYTHING = ("log_prob", "entropy", "value")


class Case:
    """A policy with weights unlike its initial ones, and what it sees."""

    def __init__(self, name: str, num_rows: int = 6) -> None:
        family, settings, observation, action, self.frames = CASES[name]
        self.spec = EnvSpec("toy", observation, ACTIONS[action])
        plugin = lookup.find("rollbus_policies", family)
        self.config = plugin.Config(name=family, **settings)
        self.obs, self.state, self.seeds = self.rows(num_rows)

    def policy(self, seed: int = 0) -> torch.nn.Module:
        torch.manual_seed(seed)
        made = base.make(self.config, self.spec, critic=True, frame_stack=self.frames)
        with torch.no_grad():
            for tensor in made.state_dict().values():
                if tensor.dtype == torch.float32:
                    # Deep convolutions would blow up, and their rounding with them.
                    amount = 0.1 if tensor.ndim < 4 else 0.02
                    tensor += amount * (2.0 * torch.rand_like(tensor) - 1.0)
        return made

    def rows(self, num: int, seed: int = 0):
        generator, obs = np.random.default_rng(seed), {}
        for key, array in self.spec.observation.items():
            shape = (num, *([self.frames] if self.frames > 1 else []), *array.shape)
            if array.dtype.startswith("float"):
                obs[key] = generator.normal(size=shape).astype(array.dtype)
            else:
                obs[key] = generator.integers(int(array.low), int(array.high) + 1, shape).astype(array.dtype)
        size = base.make(self.config, self.spec, critic=False, frame_stack=self.frames).spec.state_size
        state = generator.normal(size=(num, size)).astype(np.float32) if size else None
        return obs, state, rng.decision_seeds(rng.stream(7, "test"), np.arange(num), np.full(num, seed))


def engine_or_skip(name: str, policy: torch.nn.Module) -> InferenceEngine:
    module = lookup.find(PACKAGE, name)
    reason = getattr(module, "declines", lambda *_: "")(policy, "cpu")
    if reason:
        pytest.skip(reason)
    return make_engine(name, policy, device="cpu", threads=1)


def tensors_of(policy: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in policy.state_dict().items()}


def assert_same(act: base.Act, expected: base.Act) -> None:
    if expected.action.dtype.kind == "i":
        assert np.array_equal(act.action, expected.action)
    for mine, theirs in ((act.action, expected.action), (act.env_action, expected.env_action)):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
    assert (act.state is None) == (expected.state is None)
    if expected.state is not None:
        assert act.state.dtype == np.float32
        np.testing.assert_allclose(act.state, expected.state, rtol=0, atol=1e-5)
    assert set(act.extras) == set(expected.extras)
    for name, value in expected.extras.items():
        assert act.extras[name].dtype == value.dtype and act.extras[name].shape == value.shape
        np.testing.assert_allclose(act.extras[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


every_engine = pytest.mark.parametrize("name", NAMES)
every_case = pytest.mark.parametrize("case", CASES)


@every_engine
def test_imports_without_torch_and_without_its_packages(name: str) -> None:
    code = f"import sys, {PACKAGE}.{name}\n"
    code += "assert not {'torch', 'onnx', 'onnxruntime', 'tritonclient'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@every_engine
@every_case
def test_decides_as_the_policy_does(name: str, case: str) -> None:
    given = Case(case)
    reference, engine = given.policy(seed=1), engine_or_skip(name, given.policy(seed=2))
    engine.set_weights(Version(0, 1), tensors_of(reference))
    for mode in ("sample", "mode", "random", ["sample", "mode", "random"] * 2):
        for want in ((), ("log_prob",), EVERYTHING):
            ask = base.Ask(mode, want)
            forward = engine.act(given.obs, given.state, ask, given.seeds)
            assert forward.version == Version(0, 1)
            assert_same(forward.act, reference.act(given.obs, given.state, ask, given.seeds))


@every_engine
@every_case
def test_the_learner_scores_the_decision_alike(name: str, case: str) -> None:
    given = Case(case)
    reference, engine = given.policy(seed=1), engine_or_skip(name, given.policy(seed=2))
    engine.set_weights(Version(0, 1), tensors_of(reference))
    act = engine.act(given.obs, given.state, base.Ask("sample", ("log_prob", "value")), given.seeds).act
    batch = {f"obs/{key}": torch.from_numpy(value) for key, value in given.obs.items()}
    batch["action"] = torch.from_numpy(act.action)
    if given.state is not None:
        batch = {key: value[None] for key, value in batch.items()}
        batch |= {"state": torch.from_numpy(given.state), "start": torch.zeros(1, 6, dtype=torch.bool)}
    scored = reference(batch, ("log_prob", "value"))
    for key in ("log_prob", "value"):
        np.testing.assert_allclose(act.extras[key], scored[key].detach().reshape(6), rtol=1e-5, atol=1e-5)


@every_engine
@every_case
def test_new_weights_act_at_once_and_earlier_results_stay(name: str, case: str) -> None:
    given = Case(case)
    engine = engine_or_skip(name, given.policy())
    ask, results = base.Ask("mode", EVERYTHING), []
    for number in (1, 2, 3):
        reference = given.policy(seed=number)
        engine.set_weights(Version(0, number), tensors_of(reference))
        forward = engine.act(given.obs, given.state, ask, given.seeds)
        results.append((forward.act, reference.act(given.obs, given.state, ask, given.seeds)))
        assert forward.version == engine.version == Version(0, number)
    assert not np.allclose(results[0][0].extras["value"], results[1][0].extras["value"], atol=1e-3)
    for act, expected in results:
        assert_same(act, expected)


@every_engine
@pytest.mark.parametrize("case", ["mlp", "recurrent", "lstm", "cnn", "impala"])
def test_any_number_of_rows_and_foreign_memory(name: str, case: str) -> None:
    given = Case(case)
    reference, engine = given.policy(seed=1), engine_or_skip(name, given.policy(seed=2))
    engine.set_weights(Version(0, 1), tensors_of(reference))
    for num in (1, 2, 7, 33, 2):
        obs, state, seeds = given.rows(num, seed=num)
        # Every second row of a wider array, read-only: as views of messages are.
        strided = {key: np.repeat(value, 2, 0)[::2] for key, value in obs.items()}
        for value in strided.values():
            value.flags.writeable = False
        act = engine.act(strided, state, base.Ask("sample", EVERYTHING), seeds).act
        assert_same(act, reference.act(obs, state, base.Ask("sample", EVERYTHING), seeds))


@every_engine
def test_repeats_give_the_same_bits(name: str) -> None:
    given = Case("mlp-gaussian")
    engine = engine_or_skip(name, given.policy())
    engine.set_weights(Version(0, 1), tensors_of(given.policy(seed=1)))
    ask = base.Ask("sample", EVERYTHING)
    one, two = (engine.act(given.obs, given.state, ask, given.seeds).act for _ in range(2))
    assert one.action.tobytes() == two.action.tobytes()
    assert all(one.extras[key].tobytes() == two.extras[key].tobytes() for key in EVERYTHING)


@every_engine
def test_errors_are_for_people(name: str) -> None:
    given = Case("recurrent")
    engine = engine_or_skip(name, given.policy())
    with pytest.raises(SpecError, match="no weights yet"):
        engine.act(given.obs, given.state, base.Ask(), given.seeds)
    weights = tensors_of(given.policy(seed=1))
    engine.set_weights(Version(0, 1), weights)
    with pytest.raises(SpecError, match="missing: gru"):
        engine.set_weights(Version(0, 2), {n: t for n, t in weights.items() if not n.startswith("gru")})
    assert engine.version == Version(0, 1)
    with pytest.raises(SpecError, match=r"state must be \[6, 64\], came none"):
        engine.act(given.obs, None, base.Ask(), given.seeds)
    with pytest.raises(SpecError, match="asked for 'features'"):
        engine.act(given.obs, given.state, base.Ask("sample", ("features",)), given.seeds)
    with pytest.raises(SpecError, match="mode 'best'"):
        engine.act(given.obs, given.state, base.Ask("best"), given.seeds)  # type: ignore[arg-type]
