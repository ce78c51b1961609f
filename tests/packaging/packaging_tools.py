"""Building distributions, finding interpreters and reading sources, for the tests of this folder."""

from __future__ import annotations

import ast
import glob
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IGNORED = shutil.ignore_patterns("*.egg-info", "build", "dist", "__pycache__", ".pytest_cache")
BANNED_MODULES = {
    "pickle", "_pickle", "cPickle", "pickle5", "cloudpickle", "dill", "marshal", "shelve", "joblib",
    "jsonpickle", "copyreg", "xmlrpc",
}  # fmt: skip
#: What is shipped does without these too: they pickle what passes between processes.
BANNED_WHEN_SHIPPED = BANNED_MODULES | {"multiprocessing", "_multiprocessing"}
#: Calls that read any object unless told not to, and the keyword that must be there with its value.
GUARDED_CALLS = {("torch", "load"): ("weights_only", True)}
#: Of yaml only what makes plain data.
BANNED_YAML = {"unsafe_load", "full_load", "unsafe_load_all", "full_load_all", "load", "load_all"}
#: Files that are programs or archives of objects.
BANNED_FILES = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".npy", ".npz", ".so", ".pyc", ".whl", ".egg")
BANNED_ATTRIBUTES = {"send_pyobj", "recv_pyobj", "send_serialized", "recv_serialized"}
BANNED_CALLS = {"eval", "exec", "ProcessPoolExecutor"}


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


def offences(name: str, source: str, banned: set[str] = BANNED_MODULES) -> Iterator[str]:
    """Uses of what runs code from data."""
    for node in ast.walk(ast.parse(source)):
        found = ""
        if isinstance(node, ast.Import):
            found = next((a.name for a in node.names if a.name.split(".")[0] in banned), "")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in banned:
            found = str(node.module)
        elif isinstance(node, ast.Attribute) and node.attr in BANNED_ATTRIBUTES:
            found = node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            found = node.func.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found = _offending_call(node, node.func)
        elif isinstance(node, ast.keyword) and node.arg in ("weights_only", "allow_pickle"):
            safe = node.arg == "weights_only"
            if not (isinstance(node.value, ast.Constant) and node.value.value is safe):
                found = node.arg
        elif isinstance(node, ast.Constant) and node.value in banned:
            found = repr(node.value)
        if found:
            yield f"{name}:{getattr(node, 'lineno', '?')}: {found}"


def _offending_call(node: ast.Call, function: ast.Attribute) -> str:
    """What is wrong with a call ``something.name(...)``; empty: nothing."""
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if function.attr in BANNED_ATTRIBUTES:
        return function.attr
    if owner == "yaml" and function.attr in BANNED_YAML:
        return f"yaml.{function.attr}"
    wanted = GUARDED_CALLS.get((owner, function.attr))
    if wanted is None:
        return ""
    given = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
    return "" if given.get(wanted[0]) is wanted[1] else f"{owner}.{function.attr} without {wanted[0]}"


def python_sources(archive: Path) -> dict[str, str]:
    """Name -> text of every Python file of a wheel or a source distribution; others are judged by name."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            names = wheel.namelist()
            texts = {name: wheel.read(name).decode() for name in names if name.endswith(".py")}
    else:
        with tarfile.open(archive) as sdist:
            files = [member for member in sdist.getmembers() if not member.isdir()]
            assert all(member.isfile() for member in files), "links in a source distribution"
            names = [member.name for member in files]
            texts = {
                member.name: sdist.extractfile(member).read().decode()  # type: ignore[union-attr]
                for member in files if member.name.endswith(".py")
            }  # fmt: skip
    banned = [name for name in names if name.endswith(BANNED_FILES)]
    assert not banned, f"{archive.name} holds {banned}"
    return texts
