"""The choice by measurement, and what engines that share the policy's tensors promise each other."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rollbus_actor.engines import auto, numpy, onnx, torch_local
from rollbus_actor.engines.base import engine_config, make_engine
from rollbus_core.version import Version
from rollbus_policies import base, cnn, mlp
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError, SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec("toy", {"obs": ArraySpec("float32", (4,))}, ActionSpec("discrete", num=[3]))
IMAGES = EnvSpec(
    "toy", {"image": ArraySpec("uint8", (3, 16, 16), low=0, high=255, layout="CHW")},
    ActionSpec("discrete", num=[3]),
)  # fmt: skip
OBS = {"obs": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)}
SEEDS = np.arange(4, dtype=np.uint64)


def policy(seed: int = 0, config: Any = None, spec: EnvSpec = SPEC) -> Any:
    torch.manual_seed(seed)
    return base.make(config or mlp.Config(), spec, critic=True)


def weights(of: Any) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in of.state_dict().items()}


class Fake:
    """A candidate whose passes take ``pass_s`` of a clock that only it moves."""

    def __init__(self, clock: list[float], pass_s: float, made: list[str], name: str) -> None:
        self.clock, self.pass_s, self.version = clock, pass_s, None
        made.append(name)

    def act(self, *_: Any) -> Any:
        self.clock[0] += self.pass_s
        return SimpleNamespace(version=self.version)

    def pin(self, version: Version) -> None:
        self.version = version


def chosen(monkeypatch: Any, passes: dict[str, float], **modules: dict[str, Any]) -> tuple[Any, list[str]]:
    """`auto` among fakes; ``modules`` adds attributes to a candidate's module."""
    clock, made, served = [0.0], [], policy()

    def module(name: str) -> Any:
        def engine(*_: Any) -> Fake:
            return Fake(clock, passes[name], made, name)

        return SimpleNamespace(**({"START_S": 0.0, "Engine": engine} | modules.get(name, {})))

    monkeypatch.setattr(lookup, "names", lambda _: list(passes))
    monkeypatch.setattr(lookup, "find", lambda _, name: module(name))
    engine = auto.Engine(served, clock=lambda: clock[0])
    engine.pin(Version(0, 1))
    engine.act(OBS, None, base.Ask(), SEEDS)
    return engine, made


def test_the_fastest_is_taken_and_the_figures_are_shown(monkeypatch: Any) -> None:
    engine, _ = chosen(monkeypatch, {"slow": 90e-6, "quick": 20e-6, "middling": 50e-6})
    assert engine.choice == "quick 20 us for 4 rows; slow 90 us, middling 50 us"
    assert engine.version == Version(0, 1)


def test_who_declines_or_starts_too_slowly_is_not_tried(monkeypatch: Any) -> None:
    engine, made = chosen(
        monkeypatch, {"far": 1e-6, "late": 1e-6, "server": 1e-6, "near": 50e-6},
        far={"declines": lambda policy, device: f"not on {device}"},
        late={"START_S": 30.0}, server={"START_S": None},
    )  # fmt: skip
    assert made == ["near"]
    assert engine.choice == "near 50 us for 4 rows; far not on cpu, late needs 30.0 s to start"


def test_a_candidate_that_fails_is_out_and_says_why(monkeypatch: Any) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("capture is not supported")

    engine, made = chosen(monkeypatch, {"graphs": 1e-6, "eager": 40e-6}, graphs={"Engine": broken})
    assert engine.choice == "eager 40 us for 4 rows; graphs failed: capture is not supported"
    monkeypatch.undo()
    engine, _ = chosen(monkeypatch, {"graphs": 1e-6}, graphs={"Engine": broken})
    assert isinstance(engine._engine, torch_local.Engine), "torch_local goes on"
    assert engine.choice == "torch_local: graphs failed: capture is not supported"


def test_variants_are_candidates_of_their_own(monkeypatch: Any) -> None:
    def config(**options: Any) -> Any:
        return options

    config.model_fields = {}  # type: ignore[attr-defined]
    engine, made = chosen(
        monkeypatch, {"one": 10e-6}, one={"variants": lambda _: [{}, {"mode": "graphs"}], "Config": config}
    )
    assert made == ["one", "one"]
    assert engine.choice == "one 10 us for 4 rows; one graphs 10 us"


def test_measuring_keeps_its_budget(monkeypatch: Any) -> None:
    monkeypatch.setattr(auto, "BUDGET_S", 0.2)
    engine, _ = chosen(monkeypatch, {"heavy": 0.05, "heavier": 0.08})
    # Three passes of warm-up, then 0.1 s each: two passes of either.
    assert engine._engine.clock[0] == pytest.approx(5 * 0.05 + 5 * 0.08 + 0.05)


def test_real_candidates_give_one_answer_and_follow_the_weights() -> None:
    engine, ask = make_engine("auto", policy(1), device="cpu"), base.Ask("sample", ("log_prob", "value"))
    assert engine.choice == "not chosen yet"  # type: ignore[attr-defined]
    for number in (2, 3):
        other = policy(number)
        engine.set_weights(Version(0, number), weights(other))
        forward, expected = engine.act(OBS, None, ask, SEEDS), other.act(OBS, None, ask, SEEDS)
        assert forward.version == Version(0, number)
        assert np.array_equal(forward.act.action, expected.action)
        np.testing.assert_allclose(forward.act.extras["value"], expected.extras["value"], rtol=0, atol=1e-5)
    choice = engine.choice  # type: ignore[attr-defined]
    assert "for 4 rows" in choice and {"numpy", "onnx", "torch_local"} <= set(choice.replace(";", "").split())


def test_deterministic_runs_and_evaluations_do_not_measure(monkeypatch: Any) -> None:
    # Setting the real flag imports the compiler's settings, which takes seconds.
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    engine: Any = make_engine("auto", policy(), device="cpu")
    engine.pin(Version(0, 1))
    ask = base.Ask("sample", ("log_prob", "value"))
    act = engine.act(OBS, None, ask, SEEDS).act
    expected = policy().act(OBS, None, ask, SEEDS)
    assert act.extras["log_prob"].tobytes() == expected.extras["log_prob"].tobytes()
    assert engine.trials == [] and "only one" in engine.choice
    exact: Any = make_engine("auto", policy(), device="cpu", exact=True)
    assert isinstance(exact, torch_local.Engine) and exact.mode == "reference"


@pytest.mark.parametrize("module", [numpy, onnx])
def test_weights_are_the_policy_s_own_memory(module: Any) -> None:
    mine = policy(1)
    engine = module.Engine(mine)
    engine.pin(Version(0, 1))
    places = [tensor.data_ptr() for tensor in mine.state_dict().values()]
    engine.set_weights(Version(0, 2), weights(policy(2)))
    assert places == [tensor.data_ptr() for tensor in mine.state_dict().values()]


def test_perceptrons_keep_their_session_and_convolutions_get_a_new_one() -> None:
    for config, spec, kept in ((mlp.Config(), SPEC, True), (cnn.Config(), IMAGES, False)):
        engine = onnx.Engine(policy(1, config, spec))
        engine.pin(Version(0, 1))
        (run,) = engine._runs.values()
        before = run._session
        engine.set_weights(Version(0, 2), weights(policy(2, config, spec)))
        assert (run._session is before) == kept


@pytest.mark.parametrize("module", [numpy, onnx])
def test_a_swap_that_does_not_reach_the_engine_is_found(module: Any) -> None:
    engine = module.Engine(policy(1))
    engine.set_weights(Version(0, 1), weights(policy(2)))
    for tensor in engine.policy.state_dict().values():
        # New memory behind the engine's back, as a policy that replaces its tensors would do.
        tensor.data = torch.zeros(1)
    other = policy(3)
    engine.policy.load_state_dict(other.state_dict(), assign=True)
    with pytest.raises(SpecError, match=r"weights .*7.*: the engine's params differ from the policy's by"):
        engine.pin(Version(0, 7))
    assert engine.version == Version(0, 1)


def test_many_batch_sizes_do_not_grow_for_ever() -> None:
    engine = onnx.Engine(policy(1))
    engine.pin(Version(0, 1))
    for num in range(1, 2 * onnx.MAX_BINDINGS):
        obs = {"obs": np.zeros((num, 4), np.float32)}
        assert engine.act(obs, None, base.Ask("mode"), np.zeros(num, np.uint64)).act.action.shape == (num,)
    assert all(len(run._bindings) <= onnx.MAX_BINDINGS for run in engine._runs.values())


def test_options_are_checked_by_the_engine() -> None:
    with pytest.raises(
        ConfigError, match=r"engine_options.mode is 'fast': must be .*; engine 'torch_local' knows mode"
    ):
        make_engine("torch_local", policy(), device="cpu", options={"mode": "fast"})
    with pytest.raises(ConfigError, match=r"\['mode'\]: engine 'numpy' has no settings"):
        make_engine("numpy", policy(), device="cpu", options={"mode": "fast"})
    assert engine_config(torch_local, "torch_local", {"mode": "eager"}).mode == "eager"


@pytest.mark.parametrize("name", ["numpy", "onnx"])
def test_engines_for_the_cpu_decline_other_devices(name: str) -> None:
    module = lookup.find("rollbus_actor.engines", name)
    assert "not on cuda:0" in module.declines(policy(), "cuda:0")
    assert module.declines(torch.nn.Linear(1, 1), "cpu") == "the policy does not describe its trunk"
    assert list(itertools.chain(module.declines(policy(), "cpu"))) == []
