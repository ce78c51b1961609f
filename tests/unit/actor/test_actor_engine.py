"""The torch engine: strict weights, one version per pass, and an import without torch."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from actor_kit import Rig, ScriptedHub, feed
from torch import nn

from rollbus_actor.engines.base import make_engine
from rollbus_actor.engines.torch_local import Engine
from rollbus_core.version import Version
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_wire.errors import ConfigError, SpecError


class SlowPolicy(nn.Module):
    """Adds its one weight to what it sees; a pass takes ``pass_s``. Reads the weight at its end."""

    def __init__(self, pass_s: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.pass_s = pass_s
        self.began = threading.Event()
        self.spec = PolicySpec(action=("float32", ()), extras={"log_prob": ("float32", ())})

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Act:
        self.began.set()
        time.sleep(self.pass_s)
        used = np.full(len(seeds), float(self.weight), np.float32)
        return Act(np.zeros(len(seeds), np.int64), used, None, {name: used for name in ask.want})


def engine_of(weight: float, version: Version, pass_s: float = 0.0) -> Engine:
    engine = Engine(SlowPolicy(pass_s), "cpu")
    engine.set_weights(version, {"weight": np.full(1, weight, np.float32)})
    return engine


def see(num: int) -> dict[str, np.ndarray]:
    return {"x": np.zeros((num, 3), np.float32)}


def test_importing_needs_no_torch() -> None:
    code = "import sys, rollbus_actor.actor, rollbus_actor.engines.torch_local as _\n"
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_pass_is_labelled_with_the_version_that_made_it() -> None:
    # T10: the pass takes 200 ms and the next version comes after 100 ms, from another thread.
    engine = engine_of(1.0, Version(0, 1), pass_s=0.2)

    def publish() -> None:
        engine.policy.began.wait(5)
        time.sleep(0.1)
        engine.set_weights(Version(0, 2), {"weight": np.full(1, 2.0, np.float32)})

    thread = threading.Thread(target=publish)
    thread.start()
    first = engine.act(see(2), None, Ask(), np.zeros(2, np.uint64))
    thread.join()
    second = engine.act(see(2), None, Ask(), np.zeros(2, np.uint64))
    assert first.version == Version(0, 1) and (first.act.action == 1.0).all()
    assert second.version == Version(0, 2) and (second.act.action == 2.0).all()


def test_labels_in_chunks_are_of_the_weights_that_decided(tmp_path: Path) -> None:
    engine = engine_of(1.0, Version(0, 1), pass_s=0.005)
    rig = Rig(tmp_path, [ScriptedHub([9, 9])], engine=engine, feed=feed(40), policy_spec=engine.policy.spec)
    stop = threading.Event()

    def publish() -> None:
        for number in range(2, 1000):
            if stop.wait(0.012):
                return
            engine.set_weights(Version(0, number), {"weight": np.full(1, float(number), np.float32)})

    thread = threading.Thread(target=publish)
    thread.start()
    rig.run(lambda: rig.store.chunks)
    stop.set()
    thread.join()
    chunk, commit = rig.store.chunks[0], rig.store.commits[0]
    assert np.array_equal(chunk["version"].astype(np.float32), chunk["action"])
    assert np.array_equal(chunk["action"], chunk["log_prob"])
    assert commit.newest[1] - commit.oldest[1] >= 3
    assert (commit.oldest[1], commit.newest[1]) == (chunk["version"].min(), chunk["version"].max())


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({}, "missing: weight"),
        ({"weight": np.ones(1), "critic.w": np.ones(2)}, "unknown: critic.w"),
        ({"weight": np.ones((2, 3))}, r"shapes: weight \[2, 3\] for \[1\]"),
    ],
)
def test_weights_that_do_not_fit_leave_the_old_ones(tensors: dict[str, Any], text: str) -> None:
    engine = engine_of(5.0, Version(0, 1))
    with pytest.raises(SpecError, match=text):
        engine.set_weights(Version(0, 2), tensors)
    assert engine.version == Version(0, 1) and float(engine.policy.weight) == 5.0


def test_weights_are_copied_in_place() -> None:
    engine = engine_of(1.0, Version(0, 1))
    place = engine.policy.weight.data_ptr()
    mine = np.full(1, 3.0, np.float32)
    engine.set_weights(Version(0, 2), {"weight": mine})
    mine[:] = 9
    assert engine.policy.weight.data_ptr() == place and float(engine.policy.weight) == 3.0


def test_no_weights_no_action() -> None:
    engine = Engine(SlowPolicy(), "cpu")
    with pytest.raises(SpecError, match="no weights yet"):
        engine.act(see(1), None, Ask(), np.zeros(1, np.uint64))
    engine.pin(Version(3, 4))
    assert engine.act(see(1), None, Ask(), np.zeros(1, np.uint64)).version == Version(3, 4)


def test_make_engine() -> None:
    engine = make_engine("torch_local", SlowPolicy(), device="cpu", threads=1)
    assert isinstance(engine, Engine)
    with pytest.raises(ConfigError, match="did you mean 'torch_local'"):
        make_engine("torch_locale", SlowPolicy(), device="cpu")
    with pytest.raises(ConfigError, match="device 'quantum'"):
        make_engine("torch_local", SlowPolicy(), device="quantum")
