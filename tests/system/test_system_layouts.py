"""How processes are laid out changes nothing: one process, several, or each started by hand."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from system_kit import PATIENCE_S, assert_same_weights, end, long_run, runtime_folders, wait_for_steps
from system_runner import TINY, Runner, wait_for

pytestmark = pytest.mark.timeout(400)
DETERMINISTIC = ("run.deterministic=true", "algorithm.max_lag=0")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_local_link_and_sockets_give_the_same_weights(rollbus: Runner, kind: str) -> None:
    """Hub and actor in one process (local link) or two (ZeroMQ): 20 updates, bit for bit."""
    runs = []
    for processes in ("[broker, hub, actor, learner]", "[broker, hub+actor, learner]"):
        runs.append(rollbus.folder / f"run{len(runs)}")
        done = rollbus(
            "train", TINY, *DETERMINISTIC, f"env.kind={kind}", f"deploy.processes={processes}",
            "--run-dir", str(runs[-1]),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        summary = json.loads((runs[-1] / "summary.json").read_text())
        assert summary["updates"] == 20 and summary["env_steps"] >= 2560 and summary["lag_max"] == 0
    assert_same_weights(*runs)
    first, second = (rollbus.lines(run / "metrics.jsonl") for run in runs)
    for name in ("return_mean", "policy_loss", "entropy"):
        assert [row.get(name) for row in first] == [row.get(name) for row in second], name


@contextmanager
def notify_socket(folder: Path, name: str) -> Iterator[tuple[str, socket.socket]]:
    """What systemd listens on for one unit."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = str(folder / name)
        manager.bind(address)
        manager.settimeout(PATIENCE_S)
        yield address, manager


def until(manager: socket.socket, state: bytes) -> None:
    """Read notifications up to ``state``; watchdog signs of life may come before."""
    while (got := manager.recv(100)) != state:
        assert got == b"WATCHDOG=1", got


def test_each_service_by_hand_trains_and_speaks_sd_notify(rollbus: Runner) -> None:
    """Started in an awkward order (the broker last), as a service manager may do it."""
    run = rollbus.folder / "run"
    base = dict(rollbus.environment, WATCHDOG_USEC="2000000", ROLLBUS_CONFIG=TINY,
                ROLLBUS_SET="run.total_steps=100000000", ROLLBUS_RUN_DIR=str(run))  # fmt: skip
    started: dict[str, tuple[subprocess.Popen[str], socket.socket]] = {}
    roles = ("learner", "actor", "hub", "broker")
    with (
        notify_socket(rollbus.folder, "n0") as n0,
        notify_socket(rollbus.folder, "n1") as n1,
        notify_socket(rollbus.folder, "n2") as n2,
        notify_socket(rollbus.folder, "n3") as n3,
    ):
        for role, (address, manager) in zip(roles, (n0, n1, n2, n3)):
            rollbus.environment = dict(base, NOTIFY_SOCKET=address)
            started[role] = rollbus.start("serve", role), manager
        for role in reversed(roles):
            until(started[role][1], b"READY=1")
        wait_for_steps(rollbus, run, 1000)
        for role in roles:
            process, manager = started[role]
            process.send_signal(signal.SIGTERM)
            until(manager, b"STOPPING=1")
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, errors
    assert (run / "checkpoints" / "last").exists()
    rollbus.environment = base
    rollbus("doctor")
    assert runtime_folders(rollbus) == []


@pytest.mark.long
def test_a_resume_begins_in_either_order(rollbus: Runner) -> None:
    """T11: the actors are there first, the learner publishes what it resumed before it waits for data."""
    run = rollbus.folder / "run"
    done = rollbus("train", TINY, "--run-dir", str(run))
    assert done.returncode == 0, done.stderr
    updates = json.loads((run / "summary.json").read_text())["updates"]
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("total_steps: 2560", "total_steps: 100000000"))
    for order in (("broker", "hub", "actor", "learner"), ("broker", "learner", "hub", "actor")):
        before = len(rollbus.lines(run / "metrics.jsonl"))
        processes = []
        for role in order:
            processes.append(rollbus.start("serve", role, "--run-dir", str(run)))
            if role == "actor":
                wait_for(
                    lambda: any(m["name"] == "actor-0" for m in rollbus.members(run)), PATIENCE_S, "actor"
                )
        wait_for(
            lambda before=before: len(rollbus.lines(run / "metrics.jsonl")) > before, PATIENCE_S, "an update"
        )
        first = rollbus.lines(run / "metrics.jsonl")[before]
        assert first["update"] == updates + 1 and first["lag_max"] <= 1
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.communicate(timeout=PATIENCE_S)
        updates = rollbus.lines(run / "metrics.jsonl")[-1]["update"]
    rollbus("doctor")


def test_actors_inside_hubs_cannot_be_scaled_away(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    process = long_run(
        rollbus, run, "env.hubs=2", "actor.count=2", "env.num_slices=2",
        "deploy.processes=[broker, hub+actor, learner]",
    )  # fmt: skip
    wait_for_steps(rollbus, run, 1000, process)
    refused = rollbus("scale", "actor=1", "--run-dir", str(run), timeout=20)
    assert refused.returncode == 2
    assert (
        "2 actor(s) share a process with a hub" in refused.stderr and "actor=2 is the least" in refused.stderr
    )
    more = rollbus("scale", "actor=3", "--run-dir", str(run), timeout=20)
    assert more.returncode == 0 and "so 1 stay idle" in more.stdout, more.stderr
    fewer = rollbus("scale", "actor=2", "--run-dir", str(run), timeout=20)
    assert fewer.returncode == 0, fewer.stderr
    end(process)


def test_going_on_from_a_checkpoint_is_told(rollbus: Runner) -> None:
    run = str(rollbus.folder / "run")
    assert "goes on from" not in rollbus("train", TINY, "--run-dir", run).stderr
    again = rollbus("train", TINY, "run.total_steps=3840", "--run-dir", run)
    assert "goes on from checkpoint 000000002560-0.20" in again.stderr, again.stderr
