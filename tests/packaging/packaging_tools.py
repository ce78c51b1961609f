"""Building distributions, finding interpreters and reading sources, for the tests of this folder."""

from __future__ import annotations

import ast
import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IGNORED = shutil.ignore_patterns("*.egg-info", "build", "dist", "__pycache__", ".pytest_cache")
BANNED_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
BANNED_ATTRIBUTES = {"send_pyobj", "recv_pyobj", "send_serialized", "recv_serialized"}
BANNED_CALLS = {"eval", "exec"}


def run(command: list[str | Path], *, timeout_s: float = 240, cwd: Path | None = None) -> str:
    """Output of ``command``; its end is in the failure's text."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, timeout=timeout_s,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-6000:]}"
    return done.stdout


def build(project: Path, out: Path) -> list[Path]:
    """Source distribution and wheel of a copy of ``project``."""
    copy = out / f"source-{project.name}"
    shutil.copytree(project, copy, ignore=IGNORED)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out / "dist", copy])
    return sorted((out / "dist").iterdir())


def find_python38() -> str | None:
    """A Python 3.8 that runs: ROLLBUS_PYTHON38, one on the PATH, or one of pyenv's."""
    candidates = [os.environ.get("ROLLBUS_PYTHON38"), shutil.which("python3.8")]
    candidates += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.8*/bin/python")))
    for candidate in filter(None, candidates):
        try:
            version = run([candidate, "-c", "import sys; print(sys.version_info[:2])"], timeout_s=20)
        except (AssertionError, OSError):
            continue
        if version.strip() == "(3, 8)":
            return candidate
    return None


def offences(name: str, source: str) -> Iterator[str]:
    """Uses of what runs code from data."""
    for node in ast.walk(ast.parse(source)):
        found = ""
        if isinstance(node, ast.Import):
            found = next((a.name for a in node.names if a.name.split(".")[0] in BANNED_MODULES), "")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in BANNED_MODULES:
            found = str(node.module)
        elif isinstance(node, ast.Attribute) and node.attr in BANNED_ATTRIBUTES:
            found = node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            found = node.func.id
        elif isinstance(node, ast.keyword) and node.arg in ("weights_only", "allow_pickle"):
            safe = node.arg == "weights_only"
            if not (isinstance(node.value, ast.Constant) and node.value.value is safe):
                found = node.arg
        elif isinstance(node, ast.Constant) and node.value in BANNED_MODULES:
            found = repr(node.value)
        if found:
            yield f"{name}:{getattr(node, 'lineno', '?')}: {found}"
