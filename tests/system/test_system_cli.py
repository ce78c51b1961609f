"""Errors reach the user as one message before anything starts; commands without a run."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from system_runner import RECIPES, TINY, Runner

CARTPOLE = str(RECIPES / "cartpole_ppo.yaml")


def test_unknown_key_on_the_command_line(rollbus: Runner) -> None:
    done = rollbus("train", CARTPOLE, "algorithm.lerning_rate=1e-4")
    assert done.returncode != 0
    assert "lerning_rate" in done.stderr and "algorithm.learning_rate" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (rollbus.folder / "runs").exists(), "nothing may be made before the recipe is valid"


def test_unknown_key_in_a_file_names_file_and_line(rollbus: Runner) -> None:
    recipe = rollbus.folder / "mine.yaml"
    recipe.write_text("env:\n  id: CartPole-v1\nalgorithm:\n  name: ppo\n  lerning_rate: 1e-4\n")
    done = rollbus("train", str(recipe))
    assert done.returncode != 0
    assert "mine.yaml:5" in done.stderr and "learning_rate" in done.stderr


def test_wrong_type_names_value(rollbus: Runner) -> None:
    done = rollbus("train", CARTPOLE, "run.total_steps=many")
    assert done.returncode != 0
    assert "run.total_steps" in done.stderr and "many" in done.stderr


def test_missing_simulator_package(rollbus: Runner) -> None:
    package = rollbus.folder / "my_sim.py"
    package.write_text(
        "from dataclasses import dataclass\nneeds = ['no_such_simulator']\n"
        "@dataclass\nclass Config:\n    level: int = 1\ndef make(config, num_rows): ...\n"
    )
    sub = rollbus.folder / "mine"
    sub.mkdir()
    shutil.move(package, sub / "my_sim.py")
    (sub / "__init__.py").write_text("")
    rollbus.environment["PYTHONPATH"] = str(rollbus.folder)
    recipe = rollbus.folder / "r.yaml"
    recipe.write_text("env: {name: mine.my_sim}\nalgorithm: {name: ppo}\n")
    done = rollbus("train", str(recipe))
    assert done.returncode != 0
    assert "no_such_simulator" in done.stderr and "Traceback" not in done.stderr


def test_unwritable_run_folder(rollbus: Runner) -> None:
    blocker = rollbus.folder / "file"
    blocker.write_text("")
    done = rollbus("train", CARTPOLE, "--run-dir", str(blocker / "run"))
    assert done.returncode != 0
    assert "cannot be written" in done.stderr and "--run-dir" in done.stderr


def test_port_in_use(rollbus: Runner) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = rollbus("train", TINY, f"broker.http={address}", timeout=60)
    assert done.returncode != 0
    assert address in done.stderr and "in use" in done.stderr


def test_a_public_address_is_refused(rollbus: Runner) -> None:
    done = rollbus(
        "train", CARTPOLE, "env.placement=dial_in", "env.listen=tcp://0.0.0.0:5999",
        "eval.listen=tcp://127.0.0.1:5998", timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "0.0.0.0" in done.stderr and "keys" in done.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting a small tmpfs needs root"
)
def test_full_shared_memory(rollbus: Runner) -> None:
    small = rollbus.folder / "small"
    small.mkdir()
    command = " ".join(rollbus.command("train", TINY))
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=2m tmpfs {small} && {command}"],
        cwd=rollbus.folder, env=rollbus.environment | {"ROLLBUS_RUNTIME_DIR": str(small)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "MiB free" in done.stderr and "ROLLBUS_RUNTIME_DIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_explain_gives_value_and_line(rollbus: Runner) -> None:
    done = rollbus("explain", "algorithm.learning_rate", "--recipe", CARTPOLE, "--json")
    (row,) = json.loads(done.stdout)
    assert row["key"] == "algorithm.learning_rate"
    assert "cartpole_ppo.yaml:" in row["origin"]
    assert row["meaning"]


def test_config_prints_everything(rollbus: Runner) -> None:
    done = rollbus("config", CARTPOLE, "run.seed=7", "--json")
    config = json.loads(done.stdout)
    assert config["run"]["seed"] == 7
    assert config["env"]["id"] == "CartPole-v1"


def test_doctor_explains_what_is_missing(rollbus: Runner) -> None:
    done = rollbus("doctor", "--json")
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert rows["machine python"]["ok"]
    assert rows["backend cpu"]["ok"]
    for row in rows.values():
        assert row["ok"] or row["fix"], row
    assert rows["package torch"]["needed"] is True
    assert rows["package numba"]["needed"] is False


def test_commands_without_a_run_say_so(rollbus: Runner) -> None:
    for arguments in (["ps"], ["stop"], ["eval"], ["scale", "actor=2"]):
        done = rollbus(*arguments)
        assert done.returncode == 2
        assert "there is no runs/latest here; name the run folder" in done.stderr
    for arguments in (["compare", "nowhere"], ["scale", "actor=2", "nowhere"]):
        done = rollbus(*arguments)
        assert done.returncode == 2
        assert "nowhere is not a run folder" in done.stderr


def test_usage_errors_show_the_usage_of_the_command(rollbus: Runner) -> None:
    done = rollbus("stop", "--now")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: rollbus stop ") and "unrecognized arguments: --now" in done.stderr


def test_episodes_are_checked_before_the_checkpoint(rollbus: Runner) -> None:
    run = rollbus.folder / "run"
    run.mkdir()
    shutil.copy(CARTPOLE, run / "config.yaml")
    for arguments, text in (
        (["--episodes", "0"], "--episodes 0: must be at least 1"),
        (["--seed", str(2**63)], "--seed 9223372036854775808: must be"),
    ):
        done = rollbus("eval", str(run), *arguments)
        assert done.returncode == 2 and text in done.stderr


@pytest.mark.parametrize("placement", ["inline", "workers"])
def test_the_console_script_finds_plugins_in_the_working_folder(rollbus: Runner, placement: str) -> None:
    (rollbus.folder / "mine").mkdir()
    plugin = rollbus.folder / "mine" / "my_toy.py"
    plugin.write_text(
        "from pathlib import Path\nimport rollbus_envs.toy as toy\nfrom rollbus_envs.toy import Config\n"
        "needs = []\ndef make(config, num_rows):\n"
        "    Path('made').touch()\n    return toy.make(config, num_rows)\n"
    )
    script = Path(sys.executable).with_name("rollbus")
    environment = {k: v for k, v in rollbus.environment.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [script, "train", TINY, "env.name=mine.my_toy", f"env.placement={placement}", "--run-dir", "run"],
        cwd=rollbus.folder, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (rollbus.folder / "made").exists()
    assert json.loads((rollbus.folder / "run/summary.json").read_text())["updates"] > 0


def test_a_wrong_environment_id_ends_at_once_in_every_layout(rollbus: Runner) -> None:
    for processes in ("[broker, hub, actor, learner]", "[broker, hub+actor+evaluator, learner]"):
        done = rollbus(
            "train", CARTPOLE, "env.id=gymnasium:NoSuch-v0", f"deploy.processes={processes}", "--run-dir",
            str(rollbus.folder / processes[13]), timeout=90,
        )  # fmt: skip
        assert done.returncode == 2
        assert "start environments" in done.stderr and "NoSuch" in done.stderr
        assert done.stderr.count("doesn't exist") == 1, done.stderr


def test_another_policy_does_not_go_on_from_the_checkpoint(rollbus: Runner) -> None:
    run = str(rollbus.folder / "run")
    assert rollbus("train", TINY, "run.total_steps=256", "--run-dir", run).returncode == 0
    done = rollbus("train", TINY, "run.total_steps=512", "policy.hidden=[32]", "--run-dir", run)
    assert done.returncode == 2
    assert "policy.hidden is [32]" in done.stderr and "run.resume=never" in done.stderr
