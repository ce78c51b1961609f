"""What a run writes is its owner's alone, whatever the umask; and keys by the command line."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from system_kit import PATIENCE_S, end, wait_for_steps
from system_runner import TINY, Runner

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("umask", ["022", "000"])
def test_files_slabs_and_sockets_of_a_run_are_private(rollbus: Runner, umask: str) -> None:
    run = rollbus.folder / "runs" / "a"
    words = rollbus.command(
        "train", TINY, "run.total_steps=100000000", "checkpoint.every_steps=2000", "--run-dir", str(run)
    )
    process = subprocess.Popen(
        ["sh", "-c", f'umask {umask}; exec "$@"', "sh", *words], cwd=rollbus.folder, env=rollbus.environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    rollbus.started.append(process)
    wait_for_steps(rollbus, run, 4000, process)
    found = [
        run,
        *run.rglob("*"),
        *(p for f in rollbus.runtime.glob("rollbus-*") for p in (f, *f.rglob("*"))),
    ]
    kinds = set()
    for path in found:
        try:
            status = path.lstat()
        except FileNotFoundError:  # a checkpoint that was just removed
            continue
        if stat.S_ISLNK(status.st_mode):
            continue
        allowed = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        assert stat.S_IMODE(status.st_mode) == allowed, f"{path}: {stat.filemode(status.st_mode)}"
        kinds.add(stat.S_IFMT(status.st_mode))
    assert kinds == {stat.S_IFDIR, stat.S_IFREG, stat.S_IFSOCK}
    names = {path.name.split("-")[0] for path in found}
    assert {"slab", "weights", "registry", "store", "metrics.jsonl", "logs", "checkpoints"} <= names
    end(process)


def test_keys_by_the_command_line(rollbus: Runner) -> None:
    folder = rollbus.folder / "keys"
    rollbus.environment["ROLLBUS_KEYS"] = str(folder)

    def keys(*words: str, ok: bool = True) -> str:
        done = rollbus("keys", *words)
        assert done.returncode == (0 if ok else 2), done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if ok else done.stderr

    assert "first: rollbus keys create broker --role broker" in keys(
        "create", "hub", "--role", "hub", ok=False
    )
    keys("create", "broker", "--role", "broker")
    keys("create", "hub", "--role", "hub")
    said = keys("create", "arm-1", "--role", "peer")
    assert "as the only file it needs" in said and "arm-1.key_secret" in said
    made = json.loads(keys("create", "arm-2", "--role", "peer", "--json"))[0]
    assert made["role"] == "peer" and made["server"] == "hub" and Path(made["secret_file"]).exists()
    secret = Path(made["secret_file"]).read_text().split('secret-key = "')[1][:40]
    keys("revoke", "arm-1")
    rows = json.loads(keys("list", "--json"))
    assert {row["name"]: row["state"] for row in rows}["arm-1"] == "revoked"
    assert secret not in keys("list") + keys("list", "--json")
    assert "no key arm-9" in keys("revoke", "arm-9", ok=False)
    checks = json.loads(rollbus("doctor", "--json").stdout)
    found = next(check for check in checks if check["what"] == "machine keys")
    assert found["ok"] and "3 allowed, 1 revoked" in found["found"]
    os.chmod(folder / "hub.key_secret", 0o644)
    checks = json.loads(rollbus("doctor", "--json").stdout)
    found = next(check for check in checks if check["what"] == "machine keys")
    assert not found["ok"] and "mode 0644" in found["found"]


@pytest.mark.parametrize("variable", ["ROLLBUS_REGISTRY", "ROLLBUS_STORE"])
def test_a_service_without_its_key_does_not_start(rollbus: Runner, variable: str) -> None:
    """Keys are asked for, but there is none of the broker's role here."""
    rollbus.environment |= {"ROLLBUS_KEYS": str(rollbus.folder), variable: "tcp://127.0.0.1:0"}
    done = rollbus(
        "serve", "broker", "--config", TINY, "--run-dir", str(rollbus.folder / "run"), timeout=PATIENCE_S
    )
    assert done.returncode == 2 and "rollbus keys create broker --role broker" in done.stderr
    rollbus("doctor")
