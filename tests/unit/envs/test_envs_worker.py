"""The worker process that a hub starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rollbus_envs import toy, worker
from rollbus_wire.client import Client
from rollbus_wire.errors import ConfigError


def command(endpoint: str, name: str = "toy", config: str = '{"kind": "memory"}') -> list[str]:
    return [
        sys.executable, "-m", "rollbus_envs.worker", name, config, endpoint, "--num-rows", "3", "--run", "r",
    ]  # fmt: skip


def test_a_worker_serves_what_the_plugin_makes(tmp_path):
    with Client(f"ipc://{tmp_path}/p", run="r") as client:
        process = subprocess.Popen(command(client.endpoint))
        try:
            spec = client.wait_peer(20)
            here = toy.make(toy.Config(kind="memory"), 3)
            assert spec == here.spec and client.num_rows == 3
            rows, seeds = np.arange(3, dtype=np.int32), np.arange(3)
            np.testing.assert_array_equal(client.reset(seeds)["obs"], here.reset(rows, seeds, [])["obs"])
            actions = np.array([0, 1, 0])
            np.testing.assert_array_equal(client.step(actions).reward, here.step(rows, actions, True).reward)
            client.close()
            assert process.wait(5) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's death signal is Linux's")
def test_a_worker_dies_with_its_parent(tmp_path):
    parent = (
        "import subprocess, sys, time\n"
        "print(subprocess.Popen(sys.argv[1:]).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with Client(f"ipc://{tmp_path}/p", run="r") as client:
        process = subprocess.Popen(
            [sys.executable, "-c", parent, *command(client.endpoint)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        child = int(process.stdout.readline())
        client.wait_peer(20)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 5
        while alive(child) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive(child)


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not yet collected does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
    finally:
        assert pid != os.getpid()


@pytest.mark.parametrize(("name", "config", "text"), [
    ("toi", "{}", "did you mean 'toy'"),
    ("toy", '{"knd": 1}', "knd"),
    ("toy", "[1]", "not a JSON object"),
    ("toy", "{", "CONFIG_JSON"),
    ("toy", '{"kind": "chess"}', "chess"),
])  # fmt: skip
def test_errors_end_it_with_a_sentence(tmp_path, capsys, monkeypatch, name, config, text):
    monkeypatch.setattr(worker, "die_with_parent", lambda parent: None)
    assert worker.main([name, config, f"ipc://{tmp_path}/p"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and text in err


def test_settings_that_are_unknown_are_named():
    with pytest.raises(ConfigError, match="colour"):
        worker.make_env("toy", {"colour": 1}, 1)
