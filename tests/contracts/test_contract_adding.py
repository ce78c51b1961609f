"""Adding an algorithm or a policy is one file: it is listed, checked and trained with no other edit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def shown(page: str, line: str) -> str:
    """The block of Python of a page of docs/ that has this line."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    (found,) = [block for block in blocks if line in block.splitlines()]
    return found


ALGORITHM = shown("algorithms.md", "class Greedy(Algorithm):")
#: The toy pays for naming two classes that it shows: what pays at once is what is best.
RECIPE = """
run: {{total_steps: 8192}}
env: {{name: toy, kind: multi_discrete, num_envs: 16}}
policy: {{name: {policy}, width: 32}}
algorithm: {{name: {algorithm}}}
eval: {{episodes: 20}}
deploy: {{layout: stated}}
"""


def policy_file() -> str:
    """The user's policy that docs/policies.md shows; other tests import the same."""
    found = shown("policies.md", "class Config(PolicyConfig):")
    assert found in (ROOT / "tests/unit/policies/own_policy.py").read_text()
    return found


def rollbus(folder: Path, path: list[Path], *arguments: str) -> str:
    """Output of the command with ``path`` before all other packages."""
    before = os.environ.get("PYTHONPATH", "")
    environment = dict(
        os.environ, ROLLBUS_RUNTIME_DIR=str(folder / "shm"), OMP_NUM_THREADS="1",
        PYTHONPATH=os.pathsep.join([*map(str, path), *filter(None, [before])]),
    )  # fmt: skip
    (folder / "shm").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "rollbus_launch", *arguments], cwd=folder, env=environment, timeout=200,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_the_shipped_folders(folder: Path) -> tuple[list[Path], str, str]:
    """A copy of the two packages with one file more in each."""
    site = folder / "site"
    for package, inside, name, text in (
        ("services/learner/rollbus_learner", "algorithms", "greedy", ALGORITHM),
        ("libs/policies/rollbus_policies", ".", "own_policy", policy_file()),
    ):
        copy = site / Path(package).name
        shutil.copytree(ROOT / package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / inside / f"{name}.py").write_text(text)
    return [site], "own_policy", "greedy"


def in_a_folder_of_ones_own(folder: Path) -> tuple[list[Path], str, str]:
    """Two files of somebody who installed Rollbus, named by the dotted path of their modules."""
    mine = folder / "elsewhere" / "mine"
    mine.mkdir(parents=True)
    (mine / "greedy.py").write_text(ALGORITHM.replace('= "greedy"', '= "mine.greedy"'))
    (mine / "own_policy.py").write_text(policy_file().replace('= "own_policy"', '= "mine.own_policy"'))
    return [folder / "elsewhere"], "mine.own_policy", "mine.greedy"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("place", [in_the_shipped_folders, in_a_folder_of_ones_own])
def test_one_file_each_and_no_other_edit(tmp_path: Path, place) -> None:
    path, policy, algorithm = place(tmp_path)
    asked = ["--policy", policy] if "." in policy else []  # one in the shipped folders is listed by itself
    pairs = json.loads(rollbus(tmp_path, path, "matrix", *asked, "--algorithm", algorithm, "--json"))
    fits = {pair["action"]: pair["reason"] for pair in pairs if pair["policy"] == policy}
    assert not any(fits[action] for action in ("discrete", "multi_discrete", "continuous"))
    recipe, run = tmp_path / "r.yaml", tmp_path / "run"
    recipe.write_text(RECIPE.format(policy=policy, algorithm=algorithm))
    rollbus(tmp_path, path, "train", str(recipe), "--run-dir", str(run))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["update"] == len(rows) == 32
    assert rows[-1]["greedy_reward"] > rows[0]["greedy_reward"] + 0.2
    assert json.loads((run / "summary.json").read_text())["evaluation"]["mean_return"] > 2.5
