"""The engine triton_server against NVIDIA's real server: contract, protocols, swaps, failures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from triton_kit import Server, environment, serving

from rollbus_actor.engines.triton_server import Config, Engine
from rollbus_core.version import Version
from rollbus_policies import base, mlp, recurrent
from rollbus_wire.errors import DeadlineExceeded, PeerLost, SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SPEC = EnvSpec(
    "toy", {"obs": ArraySpec("float32", (17,))},
    ActionSpec("continuous", (6,), low=[-1.0] * 6, high=[1.0] * 6),
)  # fmt: skip
ASK = base.Ask("sample", ("log_prob", "value"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("triton")
    with serving(environment(folder), folder) as running:
        yield running


def policy(seed: int, family: Any = mlp) -> Any:
    torch.manual_seed(seed)
    return base.make(family.Config(), SPEC, critic=True)


def weights(of: Any) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in of.state_dict().items()}


def config(server: Server, protocol: str = "grpc", **more: Any) -> Config:
    return Config(url=getattr(server, protocol), protocol=protocol, **more)


def rows(num: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    obs = np.random.default_rng(num).normal(size=(num, 17)).astype(np.float32)
    return {"obs": obs}, np.arange(num, dtype=np.uint64)


def assert_decides_as(engine: Engine, reference: Any, num: int, state: np.ndarray | None = None) -> None:
    obs, seeds = rows(num)
    act, expected = engine.act(obs, state, ASK, seeds).act, reference.act(obs, state, ASK, seeds)
    np.testing.assert_allclose(act.action, expected.action, rtol=0, atol=1e-5)
    np.testing.assert_allclose(act.extras["log_prob"], expected.extras["log_prob"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(act.extras["value"], expected.extras["value"], rtol=1e-5, atol=1e-5)
    if expected.state is not None:
        np.testing.assert_allclose(act.state, expected.state, rtol=0, atol=1e-5)


def test_the_contract_of_engines(server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/contracts/test_engines.py", "-k", "triton_server"],
        cwd=ROOT, env=os.environ | {"ROLLBUS_TRITON_URL": server.grpc}, capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 30, done.stdout[-500:]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("shared_memory", [False, True])
def test_ways_to_ask(server: Server, protocol: str, shared_memory: bool) -> None:
    engine = Engine(policy(1), config=config(server, protocol, shared_memory=shared_memory))
    for number, num_rows in enumerate((1, 64, 7, 256, 1), 1):
        other = policy(number + 1)
        engine.set_weights(Version(0, number), weights(other))
        assert_decides_as(engine, other, num_rows)
    engine.close()
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(engine.model)]


def test_recurrent_state_travels(server: Server) -> None:
    engine = Engine(policy(1, recurrent), config=config(server))
    other = policy(2, recurrent)
    engine.set_weights(Version(0, 1), weights(other))
    state = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    assert_decides_as(engine, other, 5, state)
    engine.close()


def test_a_repository_on_disk(server: Server) -> None:
    engine = Engine(policy(1), config=config(server, repository=str(server.repository), model="on_disk"))
    assert (server.repository / "on_disk/config.pbtxt").exists()
    other = policy(2)
    engine.set_weights(Version(0, 1), weights(other))
    assert_decides_as(engine, other, 3)
    engine.close()


def test_a_swap_needs_no_load(server: Server) -> None:
    engine = Engine(policy(1), config=config(server))
    began = time.monotonic()
    for number in range(1, 6):
        other = policy(number)
        engine.set_weights(Version(0, number), weights(other))
        assert_decides_as(engine, other, 4)
    # A load takes more than a second.
    assert time.monotonic() - began < 5.0
    assert server.log.read_text().count(f"loading: {engine.model}:1") >= 1
    engine.close()


def test_weights_of_another_actor_are_noticed(server: Server) -> None:
    one, two = (Engine(policy(s), config=config(server, model="shared")) for s in (1, 2))
    one.pin(Version(0, 1))
    two.pin(Version(0, 5))
    with pytest.raises(SpecError, match=r"'shared' answered with version \(.*5.*\), this actor pushed"):
        one.act(*rows(2)[:1], None, ASK, rows(2)[1])
    two.close()


def test_a_server_that_is_not_there_or_lost_the_model(server: Server) -> None:
    with pytest.raises(DeadlineExceeded, match="no Triton server answered at 127.0.0.1:9 "):
        Engine(policy(1), config=Config(url="127.0.0.1:9", start_timeout_s=0.5))
    engine = Engine(policy(1), config=config(server))
    engine.pin(Version(0, 1))
    engine._client.unload_model(engine.model)
    time.sleep(1.0)
    with pytest.raises(PeerLost, match="could not decide"):
        engine.act(rows(2)[0], None, ASK, rows(2)[1])
