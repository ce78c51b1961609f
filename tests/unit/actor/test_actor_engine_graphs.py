"""Captured forward passes, on the CPU: a recorder with the interface of a device graph stands in for one.

The recorder notes every operation with the very tensors it read and wrote and repeats them in place, which
is what a device graph does; it cannot show that a real capture succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rollbus_actor.engines._graphs import CapturedRuns, pad, padded_size
from rollbus_actor.engines.base import make_engine
from rollbus_actor.engines.torch_local import Engine
from rollbus_core.version import Version
from rollbus_policies import base, mlp, recurrent
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec("toy", {"obs": ArraySpec("float32", (4,))}, ActionSpec("discrete", num=[3]))


class Recorder(TorchDispatchMode):
    """Operations under it are noted; `replay` repeats them on the same places."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.steps.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for function, args, kwargs, result in self.steps:
            again = function(*args, **kwargs)
            for place, value in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(place, torch.Tensor) and place.data_ptr() != value.data_ptr():
                    place.copy_(value)


def capture(run: Callable[[], Any]) -> Any:
    with Recorder() as recorder:
        outputs = run()
    return recorder.replay, outputs


def captured(policy: Any) -> tuple[Engine, CapturedRuns]:
    engine = Engine(policy)
    runs = CapturedRuns(policy.infer, capture, torch.device("cpu"))

    def run(*arguments: Any) -> dict[str, Any]:
        # On a device the copy to the host is what frees the outputs for the next replay.
        return {name: output.clone() for name, output in runs(*arguments).items()}

    engine._run = run
    return engine, runs


def rows(num: int, seed: int) -> dict[str, np.ndarray]:
    return {"obs": np.random.default_rng(seed).normal(size=(num, 4)).astype(np.float32)}


@pytest.mark.parametrize(("num", "size"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (1000, 1024)])
def test_sizes_are_powers_of_two(num: int, size: int) -> None:
    assert padded_size(num) == size


def test_padding_repeats_a_row_that_is_there() -> None:
    padded = pad(torch.tensor([[5, 6], [7, 8], [9, 9]]), 4)
    assert padded.tolist() == [[5, 6], [7, 8], [9, 9], [5, 6]]


def test_one_capture_serves_all_batches_of_a_size() -> None:
    policy = base.make(mlp.Config(), SPEC, critic=True)
    engine, runs = captured(policy)
    engine.pin(Version(0, 1))
    ask, captures = base.Ask("mode", ("log_prob", "value")), []
    for num in (5, 8, 6, 3, 5):
        seeds, obs = np.zeros(num, np.uint64), rows(num, num)
        act, expected = engine.act(obs, None, ask, seeds).act, policy.act(obs, None, ask, seeds)
        assert np.array_equal(act.action, expected.action)
        np.testing.assert_allclose(act.extras["value"], expected.extras["value"], rtol=0, atol=1e-6)
        captures.append(runs.num_captured)
    assert captures == [1, 1, 1, 2, 2]
    engine.act(rows(5, 5), None, base.Ask("mode", ()), np.zeros(5, np.uint64))
    assert runs.num_captured == 3, "without the critic's value it is another pass"


def test_new_weights_need_no_new_capture() -> None:
    torch.manual_seed(0)
    policy, other = (base.make(recurrent.Config(), SPEC, critic=True) for _ in range(2))
    engine, runs = captured(policy)
    engine.pin(Version(0, 1))
    ask, obs, seeds = base.Ask("mode", ("value",)), rows(4, 0), np.zeros(4, np.uint64)
    state = np.ones((4, 64), np.float32)
    before = engine.act(obs, state, ask, seeds).act
    engine.set_weights(Version(0, 2), {n: t.numpy() for n, t in other.state_dict().items()})
    after, expected = engine.act(obs, state, ask, seeds).act, other.act(obs, state, ask, seeds)
    assert runs.num_captured == 1
    np.testing.assert_allclose(after.extras["value"], expected.extras["value"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(after.state, expected.state, rtol=0, atol=1e-5)
    assert np.abs(before.extras["value"] - after.extras["value"]).max() > 1e-2


def test_graphs_on_a_cpu_are_refused() -> None:
    policy = base.make(mlp.Config(), SPEC, critic=True)
    with pytest.raises(ConfigError, match="graphs need an accelerator"):
        make_engine("torch_local", policy, device="cpu", options={"mode": "graphs"})


@pytest.mark.long
def test_compiled_passes_are_the_policy_s() -> None:
    policy = base.make(mlp.Config(), SPEC, critic=True)
    engine = make_engine("torch_local", policy, device="cpu", options={"mode": "compiled"})
    engine.pin(Version(0, 1))  # type: ignore[attr-defined]
    ask, seeds, obs = base.Ask("sample", ("log_prob", "value")), np.arange(5, dtype=np.uint64), rows(5, 0)
    act, expected = engine.act(obs, None, ask, seeds).act, policy.act(obs, None, ask, seeds)
    assert np.array_equal(act.action, expected.action)
    np.testing.assert_allclose(act.extras["value"], expected.extras["value"], rtol=0, atol=1e-5)
