"""``rollbus policy``: a checkpoint behind a socket decides as its policy does."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import torch
from system_runner import TINY, Runner, wait_for

from rollbus_core.checkpoints import load_policy_tensors
from rollbus_core.config.load import load_resolved
from rollbus_policies import base
from rollbus_wire.policy_client import PolicyClient
from rollbus_wire.spec import EnvSpec

pytestmark = pytest.mark.timeout(300)


def test_a_checkpoint_is_served(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    done = rollbus("train", TINY, "--run-dir", str(run))
    assert done.returncode == 0, done.stderr
    process = rollbus.start("policy", str(run), "--checkpoint", "last", "--listen", "tcp://127.0.0.1:0")
    assert process.stdout is not None
    address = process.stdout.readline().split(" at ")[1].strip()

    tensors, manifest = load_policy_tensors((run / "checkpoints/last").resolve())
    spec, resolved = EnvSpec.from_data(manifest["spec"]), load_resolved(run / "config.yaml")
    policy = base.make(resolved.recipe.policy, spec, critic="value" in resolved.feed.extras)
    policy.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in tensors.items()})
    generator = np.random.default_rng(0)
    obs = {
        key: generator.standard_normal((5, *array.shape)).astype(array.dtype)
        for key, array in spec.observation.items()
    }
    seeds = np.arange(5, dtype=np.uint64)
    with PolicyClient(address, timeout_s=60) as client:
        for mode, given in (("mode", None), ("sample", seeds)):
            answer = client.decide(obs, seeds=given)
            expected = policy.act(obs, None, base.Ask(mode), seeds)
            assert np.array_equal(answer.action, expected.env_action)
            assert tuple(answer.version) == tuple(manifest["version"])
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: process.poll() is not None, 30, "the end of the service")
    assert process.returncode == 0 and "2 requests, 10 rows in 2 passes" in process.stdout.read()
