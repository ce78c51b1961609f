"""Every toy environment runs in a hub, with the returns the hub keeps for it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hub_kit import attached, make_hub

from rollbus_envs import toy
from rollbus_wire.messages import Tick
from rollbus_wire.spec import ActionSpec

KINDS = ("discrete", "multi_discrete", "continuous", "image", "dict", "token", "memory", "counter")


def random_action(spec: ActionSpec, num_rows: int, rng: np.random.Generator) -> np.ndarray:
    if spec.kind == "continuous":
        low, high = np.reshape(spec.low, spec.shape), np.reshape(spec.high, spec.shape)
        return rng.uniform(low, high, (num_rows, *spec.shape)).astype(np.float32)
    return rng.integers(0, np.reshape(spec.num, spec.shape), (num_rows, *spec.shape))


@pytest.mark.parametrize("kind", KINDS)
def test_returns_are_sums_of_the_rewards_told(kind: str) -> None:
    assert "kind" in {f.name for f in dataclasses.fields(toy.Config)}
    config = toy.Config(kind=kind)
    hub, (actor,) = make_hub(lambda n: toy.make(config, n), num_rows=4)
    spec = attached(hub, actor)
    assert hub.spec is not None and spec.spec["name"] == hub.spec.name
    rng = np.random.default_rng(3)
    (tick,) = [m for m in actor.got if isinstance(m, Tick)]
    running = np.zeros(4)
    finals = 0
    for _ in range(150):
        actor.act(tick, random_action(hub.spec.action, 4, rng))
        hub.poll()
        (tick,) = actor.ticks()
        running += tick.reward.sum(1)
        ended = tick.terminated | tick.truncated
        assert np.flatnonzero(ended).tolist() == tick.final.tolist()
        np.testing.assert_allclose(tick.final_return, running[ended], rtol=1e-5, atol=1e-6)
        running[ended] = 0
        finals += len(tick.final)
    assert finals > 0 and hub.counters.interrupted == 0
    assert hub.counters.steps == 600
