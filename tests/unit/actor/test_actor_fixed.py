"""Passes of one fixed size: proved on the engine, and the same results for any number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from actor_kit import SPEC, CounterEngine, Rig, ScriptedHub

from rollbus_actor.engines.base import Forward
from rollbus_actor.engines.torch_local import Engine
from rollbus_actor.fixed import FixedBatch
from rollbus_core.version import Version
from rollbus_policies import mlp, recurrent
from rollbus_policies.base import Act, Ask
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

REACH = EnvSpec(
    "reach", {"x": ArraySpec("float32", (5,), -1.0, 1.0)},
    ActionSpec("continuous", (2,), low=[-1.0, -1.0], high=[1.0, 1.0]),
)  # fmt: skip


class MixingEngine(CounterEngine):
    """A row's action depends on its neighbours, as with batch statistics."""

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        forward = super().act(obs, state, ask, seeds)
        assert self.version is not None
        mean = obs["x"].mean(0)[:1].repeat(len(seeds))
        return Forward(Act(forward.act.env_action, mean.astype(np.float32)), self.version)


class PlacedEngine(CounterEngine):
    """The last place of a pass is computed in another way, as by a vectorised loop's remainder."""

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        forward = super().act(obs, state, ask, seeds)
        action = obs["x"].sum(1)
        action[-1] *= 1 + 1e-6
        assert self.version is not None
        return Forward(Act(forward.act.env_action, action), self.version)


def policy_engine(family: object, spec: EnvSpec = REACH, **settings: object) -> Engine:
    policy = family.make(family.Config(**settings), spec, critic=False, frame_stack=1)  # type: ignore[attr-defined]
    engine = Engine(policy, "cpu")
    engine.pin(Version(0, 1))
    return engine


def test_an_independent_engine_is_proved_and_padded() -> None:
    engine = CounterEngine()
    fixed = FixedBatch(engine, 8, engine.spec)
    assert fixed.prove(SPEC, Ask())
    engine.calls.clear()
    x = np.arange(33, dtype=np.float32).reshape(11, 3)
    forward = fixed.act({"x": x}, None, Ask(want=("log_prob",)), np.arange(11).astype(np.uint64))
    assert [call["rows"] for call in engine.calls] == [8, 8]
    assert forward.act.action.tolist() == [int(v) % 100 for v in x[:, 2]]
    assert forward.act.extras["log_prob"].tolist() == (-x[:, 2]).tolist()


@pytest.mark.parametrize("kind", [MixingEngine, PlacedEngine])
def test_a_dependent_engine_goes_row_by_row(kind: type[CounterEngine]) -> None:
    engine = kind()
    fixed = FixedBatch(engine, 8, engine.spec)
    assert not fixed.prove(SPEC, Ask())
    engine.calls.clear()
    fixed.act({"x": np.ones((3, 3), np.float32)}, None, Ask(), np.zeros(3, np.uint64))
    assert [call["rows"] for call in engine.calls] == [1, 1, 1]


def test_other_weights_are_proved_anew() -> None:
    engine = CounterEngine()
    fixed = FixedBatch(engine, 4, engine.spec)
    assert fixed.prove(SPEC, Ask())
    fixed.set_weights(Version(0, 2), {})
    assert fixed.independent is None and fixed.version == Version(0, 2)


@pytest.mark.parametrize(
    ("family", "settings"), [(mlp, {}), (recurrent, {"cell": "gru"}), (recurrent, {"cell": "lstm"})]
)
@pytest.mark.parametrize("mode", ["mode", "sample"])
def test_results_do_not_depend_on_the_number_of_rows(
    family: object, settings: dict[str, object], mode: str
) -> None:
    engine = policy_engine(family, **settings)
    fixed = FixedBatch(engine, 32, engine.policy.spec)
    ask = Ask(mode, ())  # type: ignore[arg-type]
    fixed.prove(REACH, ask)
    generator = np.random.default_rng(3)
    x = generator.standard_normal((40, 5)).astype(np.float32)
    size = engine.policy.spec.state_size
    state = generator.standard_normal((40, size)).astype(np.float32) if size else None
    seeds = np.arange(40).astype(np.uint64)

    def act(rows: np.ndarray) -> Act:
        return fixed.act({"x": x[rows]}, None if state is None else state[rows], ask, seeds[rows]).act

    whole = act(np.arange(40))
    for rows in (np.array([7]), np.array([39, 0, 12]), np.arange(32)[::-1], np.arange(5, 38)):
        part = act(rows)
        assert part.env_action.tobytes() == whole.env_action[rows].tobytes()
        if size:
            assert part.state is not None and whole.state is not None
            assert part.state.tobytes() == whole.state[rows].tobytes()


def test_modes_per_row_are_padded_with_their_rows() -> None:
    engine = CounterEngine()
    fixed = FixedBatch(engine, 4, engine.spec)
    fixed.independent = True
    ask = Ask(["random", "sample", "sample", "sample", "random"])
    fixed.act({"x": np.ones((5, 3), np.float32)}, None, ask, np.zeros(5, np.uint64))
    assert [call["ask"].mode for call in engine.calls] == [ask.mode[:4], ["random"] * 4]


def test_an_evaluating_actor_uses_it(tmp_path: Path) -> None:
    hub = ScriptedHub([5, 5, 5], record=False)
    rig = Rig(tmp_path, [hub], fixed_batch=8, mode="mode")
    rig.run(lambda: len(hub.acts) >= 5)
    assert {call["rows"] for call in rig.engine.calls} == {8}
    assert rig.engine.calls[-1]["ask"].mode == "mode"
    assert [act.action.size for act in hub.acts] == [3] * len(hub.acts)


def test_frame_stacks_and_images_can_be_proved() -> None:
    spec = EnvSpec(
        "pixels", {"image": ArraySpec("uint8", (4, 4, 3), layout="HWC"), "flag": ArraySpec("bool", (2,))},
        ActionSpec("discrete", num=[3]),
    )  # fmt: skip
    engine = CounterEngine(frame_stack=2)
    seen: list[Mapping[str, np.ndarray]] = []

    def act(obs: Mapping[str, np.ndarray], state: object, ask: Ask, seeds: np.ndarray) -> Forward:
        seen.append(obs)
        return Forward(Act(seeds.copy(), seeds.copy()), Version(0, 1))

    engine.act = act  # type: ignore[method-assign, assignment]
    assert FixedBatch(engine, 4, engine.spec).prove(spec, Ask())
    assert seen[0]["image"].shape == (4, 2, 4, 4, 3) and seen[0]["image"].dtype == np.uint8
    assert seen[0]["flag"].dtype == bool and len(np.unique(seen[0]["image"])) > 50
