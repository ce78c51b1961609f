"""The environment's expert in place of the policy: who acts in which row, and what is recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollbus_actor.engines.base import make_engine
from rollbus_actor.expert import WithExpert
from rollbus_core import rng
from rollbus_core.feed import ExpertConfig
from rollbus_core.version import Version
from rollbus_policies import base, flow, mlp
from rollbus_policies.base import Ask
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import EXPERT_ACTION, ActionSpec, ArraySpec, EnvSpec

ACTION = ActionSpec("continuous", (2,), low=[-2.0, -4.0], high=[2.0, 4.0])
SPEC = EnvSpec(
    "e", {"obs": ArraySpec("float32", (3,)), EXPERT_ACTION: ArraySpec("float32", (2,))}, ACTION,
    groups={"policy": ["obs"]},
)  # fmt: skip
ROWS = 400


def engine_of(version: int = 0, **settings: float) -> WithExpert:
    torch.manual_seed(0)
    policy = base.make(mlp.Config(hidden=[4], log_std_init=-3.0), SPEC, critic=False)
    engine = make_engine("torch_local", policy, device="cpu", threads=1)
    engine.set_weights(Version(0, version), {n: t.numpy() for n, t in policy.state_dict().items()})
    return WithExpert(engine, policy, SPEC, ExpertConfig(**settings))


def seen(expert: np.ndarray) -> dict[str, np.ndarray]:
    return {"obs": np.ones((len(expert), 3), np.float32), EXPERT_ACTION: expert.astype(np.float32)}


def seeds(num: int = ROWS) -> np.ndarray:
    return rng.decision_seeds(rng.stream(0, "test"), np.arange(num), np.zeros(num, int))


def test_the_share_decays_by_version_and_belongs_to_the_row() -> None:
    expert = np.full((ROWS, 2), 1.5)
    shares = []
    for version in (0, 1, 2):
        act = engine_of(version, share=0.8, decay=0.5).act(seen(expert), None, Ask("sample"), seeds()).act
        taken = act.source == 2
        assert set(act.source.tolist()) == {0, 2}
        assert (act.env_action[taken] == 1.5).all() and not (act.env_action[~taken] == 1.5).any()
        # What is stored is what the policy scores: [-1, 1] units.
        np.testing.assert_allclose(act.action[taken], [[0.75, 0.375]] * taken.sum(), atol=1e-6)
        shares.append(taken.mean())
    assert shares == pytest.approx([0.8, 0.4, 0.2], abs=0.06)
    alone = engine_of(0, share=0.8).act(seen(expert[:1]), None, Ask("sample"), seeds()[:1]).act
    whole = engine_of(0, share=0.8).act(seen(expert), None, Ask("sample"), seeds()).act
    assert (alone.source == 2 if alone.source is not None else False) == (whole.source[0] == 2)


def test_the_gate_measures_in_half_widths() -> None:
    engine = engine_of(gate=0.25)
    ours = engine.act(seen(np.zeros((1, 2))), None, Ask("mode"), seeds(1)).act.env_action[0]
    shifts = np.array([[0.0, 0.0], [0.49, 0.0], [0.51, 0.0], [0.0, 0.99], [0.0, 1.01]])
    act = engine.act(seen(ours + shifts), None, Ask("mode"), seeds(5)).act
    assert act.source is not None and act.source.tolist() == [0, 0, 2, 0, 2]


def test_nobody_takes_over_leaves_the_decision_as_it_was() -> None:
    expert = np.zeros((4, 2))
    act = engine_of(share=0.0).act(seen(expert), None, Ask("sample", ("log_prob",)), seeds(4)).act
    assert act.source is None and act.extras["log_prob"].shape == (4,)


def test_what_cannot_be_taught_is_refused() -> None:
    policy = base.make(mlp.Config(hidden=[4]), SPEC, critic=False)
    plain = EnvSpec("plain", {"obs": SPEC.observation["obs"]}, ACTION)
    with pytest.raises(ConfigError, match="plain has no expert: it observes obs"):
        WithExpert(make_engine("torch_local", policy), policy, plain, ExpertConfig())
    several = base.make(flow.Config(width=8, num_heads=2), SPEC, critic=False)
    with pytest.raises(ConfigError, match="executes 4 actions per decision.*policy.execute: 1"):
        WithExpert(make_engine("torch_local", several), several, SPEC, ExpertConfig())
