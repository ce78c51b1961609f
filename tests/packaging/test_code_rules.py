"""What CONTRIBUTING.md says of sources: their sizes, and that nothing runs code from data."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from packaging_tools import ROOT, offences

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
#: Where they are.
TOPS = ("libs", "services", "benchmarks", "tests")


def python_files() -> list[Path]:
    """All Python files, as git knows them; without git (an unpacked archive) all there are."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"],
            cwd=ROOT, check=True, capture_output=True, text=True, timeout=60,
        ).stdout.split("\0")  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        listed = [str(p.relative_to(ROOT)) for top in TOPS for p in (ROOT / top).rglob("*.py")]
    return sorted({path for name in listed if name and (path := ROOT / name).exists()})


def sources() -> list[Path]:
    """Those that are not tests."""
    return [path for path in python_files() if "tests" not in path.relative_to(ROOT).parts]


def long_functions(source: str) -> list[tuple[str, int, int]]:
    """(name, line, number of lines) of the functions above the limit; decorators do not count."""
    return [
        (node.name, node.lineno, node.end_lineno - node.lineno + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    ]


def test_the_sources_are_found() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in sources()}
    assert {"libs/wire/rollbus_wire/codec.py", "services/learner/rollbus_learner/learner.py"} <= names
    assert len(names) > 100 and not any("tests/" in name for name in names)


@pytest.mark.parametrize(("lines", "expected"), [(60, 0), (61, 1)])
def test_functions_are_measured_from_def_to_end(lines: int, expected: int) -> None:
    body = "\n".join(["    x = 1"] * (lines - 1))
    assert len(long_functions(f"class A:\n @staticmethod\n def f():\n{body}\n")) == expected


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python_files()}
    wrong = [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lengths.items() if n > MAX_FILE_LINES]
    assert not wrong, "\n".join(wrong)


def test_no_function_is_too_long() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {name}: {lines} lines"
        for path in sources()
        for name, line, lines in long_functions(path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def test_the_search_finds_what_it_looks_for() -> None:
    bad = [
        "import pickle", "from marshal import loads", "socket.recv_pyobj()", "eval('1')",
        "torch.load(f, weights_only=False)", "numpy.load(f, allow_pickle=True)",
        "importlib.import_module('dill')", "torch.load(f)", "torch.load(f, weights_only=flag)",
        "yaml.load(f, Loader=yaml.Loader)", "yaml.unsafe_load(f)", 
        "from copyreg import pickle",
    ]  # fmt: skip
    assert all(list(offences("x", line)) for line in bad)
    good = "model.eval()\ntorch.load(f, weights_only=True)\nyaml.safe_load(f)\nyaml.compose(f, Loader=Safe)"
    assert not list(offences("x", good))


def test_no_source_runs_code_from_data() -> None:
    wrong = [o for p in sources() for o in offences(str(p.relative_to(ROOT)), p.read_text())]
    assert not wrong, "\n".join(wrong)


#: Set by us for our own processes.
OWN_VARIABLES = {"ROLLBUS_CLOCK_OFFSET", "ROLLBUS_LAUNCHER_PID", "ROLLBUS_STACK_FD"}


def test_every_variable_is_in_the_table_of_the_docs() -> None:
    def named(text: str) -> set[str]:
        return set(re.findall(r"\bROLLBUS_[A-Z_]+", text))

    table = (ROOT / "docs/deployment.md").read_text().partition("## Environment variables")[2]
    used = set().union(*(named(path.read_text()) for path in sources()))
    assert named(table) == used - OWN_VARIABLES and len(used) > 10
