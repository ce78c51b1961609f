"""Environments in an interpreter of their own dial in: a real Python 3.8 with the wire and numpy only."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from system_runner import RECIPES, ROOT, Runner

sys.path.append(str(ROOT / "tests" / "packaging"))
from packaging_tools import find_python38, run

CARTPOLE = Path(__file__).with_name("cartpole_numpy.py")
pytestmark = pytest.mark.timeout(600)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def python38(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of Python 3.8 that has the wire and nothing else of ours."""
    python = find_python38()
    if python is None:
        pytest.skip("no Python 3.8: set ROLLBUS_PYTHON38, or install one with pyenv")
    folder = tmp_path_factory.mktemp("python38")
    source = folder / "wire"
    shutil.copytree(ROOT / "libs/wire", source, ignore=shutil.ignore_patterns("*.egg-info", "build", "tests"))
    run([python, "-m", "venv", folder / "venv"])
    inside = folder / "venv" / "bin" / "python"
    run([inside, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", source])
    return inside


@pytest.fixture
def peers() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)


def test_the_dynamics_are_those_of_gymnasium() -> None:
    """One step of the numpy CartPole is one step of Gymnasium's, on random states and actions."""
    gymnasium = pytest.importorskip("gymnasium")
    sys.path.append(str(CARTPOLE.parent))
    from cartpole_numpy import CartPole

    rng, theirs, ours = np.random.default_rng(3), gymnasium.make("CartPole-v1").unwrapped, CartPole(64)
    ours.state = rng.uniform(-0.3, 0.3, (64, 4))
    actions = rng.integers(0, 2, 64)
    expected = []
    for state, action in zip(ours.state.copy(), actions):
        theirs.reset()
        theirs.state = state.copy()
        expected.append(theirs.step(int(action))[:3])
    result = ours.step(np.arange(64, dtype=np.int32), actions, True)
    assert result.obs is not None
    np.testing.assert_allclose(result.obs["obs"], [e[0] for e in expected], rtol=1e-5, atol=1e-7)
    assert result.terminated.tolist() == [bool(e[2]) for e in expected]
    assert 0 < result.terminated.sum() < 64


def test_cartpole_in_python_38_is_solved(
    rollbus: Runner, python38: Path, peers: list[subprocess.Popen[str]]
) -> None:
    run_dir, train, evaluate = rollbus.folder / "run", free_port(), free_port()
    version = run([python38, "-c", "import sys; print(sys.version_info[:2])"])
    assert version.strip() == "(3, 8)"
    run([python38, "-m", "rollbus_wire.check", "cartpole_numpy:make", "--num-rows", "2"], cwd=CARTPOLE.parent)
    for port, rows in ((train, 16), (evaluate, 20)):
        command = [python38, CARTPOLE, f"tcp://127.0.0.1:{port}", rows]
        peers.append(subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True))
    done = rollbus(
        "train", str(RECIPES / "cartpole_ppo.yaml"), "env.placement=dial_in",
        f"env.listen=tcp://127.0.0.1:{train}", f"eval.listen=tcp://127.0.0.1:{evaluate}",
        "--run-dir", str(run_dir), timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["stopped_by"] == "evaluation" and summary["evaluation"]["mean_return"] >= 475
    for peer in peers:
        assert peer.wait(30) == 0, "the hub said goodbye"
    evaluations = rollbus.lines(run_dir / "evaluations.jsonl")
    assert all(len(e["episodes"]) == 20 for e in evaluations)


@pytest.mark.long
def test_the_example_of_the_readme_runs(rollbus: Runner, peers: list[subprocess.Popen[str]]) -> None:
    """The file and the commands of the README, with this interpreter and a short run."""
    text = (ROOT / "README.md").read_text().split("## An environment in another Python")[1]
    code = re.search(r"```python\n(# my_env\.py .*?)```", text, re.DOTALL)
    assert code is not None
    script = rollbus.folder / "my_env.py"
    script.write_text(code[1])
    check = re.search(r"`python (-m rollbus_wire\.check my_env:make)`", text)
    assert check is not None
    run([sys.executable, *check[1].split()], cwd=rollbus.folder)
    commands = re.findall(r"^(?:rollbus train|python3\.8 my_env\.py) .*$", text, re.MULTILINE)
    train = next(c for c in commands if c.startswith("rollbus")).split()[2:]
    ports = {"5555": str(free_port()), "5556": str(free_port())}

    def local(word: str) -> str:
        word = word.replace("recipes/", f"{RECIPES}/")
        for known, port in ports.items():
            word = word.replace(known, port)
        return word

    for command in (c for c in commands if c.startswith("python")):
        words = [local(word) for word in command.partition("#")[0].split()[1:]]
        peers.append(
            subprocess.Popen([sys.executable, *words], cwd=rollbus.folder, stderr=subprocess.PIPE, text=True)
        )
    assert len(peers) == 2
    done = rollbus(
        "train", *map(local, train), "run.total_steps=8192", "eval.episodes=2",
        "eval.every_steps=2048", "eval.start_return=0",
        "--run-dir", str(rollbus.folder / "run"), timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    evaluations = rollbus.lines(rollbus.folder / "run" / "evaluations.jsonl")
    assert len(evaluations) >= 2, "the peer stays for the next evaluation"
    assert all(len(e["episodes"]) == 2 for e in evaluations)
    for peer in peers:
        assert peer.wait(30) == 0, "the hub said goodbye"
