"""Shared code knows no plug-in by its name, so adding one is one file; and that file is short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging_tools import ROOT

from rollbus_wire import lookup

#: Folders whose files are found by their names, in all code but the folders themselves. Launchers are no
#: part: there is one way to launch, and no setting names it.
PACKAGES = (
    "rollbus_envs", "rollbus_policies", "rollbus_learner.algorithms", "rollbus_learner.labellers",
    "rollbus_actor.engines", "rollbus_simulator.options", "rollbus_accel.backends",
)  # fmt: skip
#: Names that are words as well, and what they mean in shared code; none may be compared with a ``name``.
WORDS = {
    "act": "what an actor does (a stage of the plan)", "auto": "the program chooses",
    "cpu": "a device of torch", "cuda": "a device of torch", "xpu": "a device of torch",
    "fixed": "a word", "gymnasium": "a package", "numpy": "a package", "onnx": "a package",
    "progress": "a word", "random": "a source of actions", "recurrent": "what a policy offers",
    "tokens": "a layout of arrays", "vector": "an observation", "vtrace": "a kernel",
}  # fmt: skip
#: (file, name): where a section names the plug-in that recipes need not state.
DEFAULTS = {
    ("rollbus_learner/algorithm.py", "ppo"),
    ("rollbus_launch/stages/value.py", "recap"),
}
MAX_LINES = {"rollbus_learner.algorithms": 200, "rollbus_policies": 300}


def plugins() -> dict[str, list[str]]:
    """Package -> names in it."""
    return {package: lookup.names(package) for package in PACKAGES}


def folder(package: str) -> Path:
    (found,) = [
        *ROOT.glob(f"libs/*/{package.replace('.', '/')}"),
        *ROOT.glob(f"services/*/{package.replace('.', '/')}"),
    ]
    return found


def shared() -> list[Path]:
    """Sources outside the folders of plug-ins."""
    inside = [folder(package) for package in PACKAGES]
    found = [*ROOT.glob("libs/*/rollbus_*/**/*.py"), *ROOT.glob("services/*/rollbus_*/**/*.py")]
    return sorted(path for path in found if not any(each in path.parents for each in inside))


def named(source: str, known: dict[str, list[str]], words: frozenset[str]) -> Iterator[tuple[str, int]]:
    """(plug-in, line) of each literal or import of ``known`` in ``source``; ``words`` only in comparisons."""
    names = {name for each in known.values() for name in each}
    modules = {f"{package}.{name}" for package, each in known.items() for name in each}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in names - words or node.value in modules:
                yield node.value, node.lineno
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            full = {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            yield from ((name, node.lineno) for name in full & modules)
        elif isinstance(node, ast.Compare) and "name" in ast.unparse(node.left).rsplit(".", 1)[-1]:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and part.value in names & words - {"auto"}:
                    yield str(part.value), node.lineno


def test_the_search_finds_what_it_looks_for() -> None:
    known, words = {"a.algorithms": ["ppo", "random"]}, frozenset({"random"})
    bad = [
        "x = 'ppo'", "import a.algorithms.ppo", "from a.algorithms import ppo",
        "from a.algorithms.ppo import PPO", "f('a.algorithms.random')", "if config.name == 'random': pass",
        "y = policy_name in ('x', 'random')",
    ]  # fmt: skip
    assert all([*named(line, known, words)] for line in bad)
    good = ["x = 'random'", "'ppo is a word of this text'", "from a import algorithms", "source == 'random'"]
    assert not any([*named(line, known, words)] for line in good)


def test_shared_code_knows_no_plugin() -> None:
    known, wrong, used = plugins(), [], set()
    for path in shared():
        name = "/".join(path.relative_to(ROOT).parts[2:])
        for plugin, line in named(path.read_text(), known, frozenset(WORDS)):
            used.add((name, plugin))
            if (name, plugin) not in DEFAULTS:
                wrong.append(f"{name}:{line} names {plugin}")
    assert not wrong, "\n".join(wrong)
    assert used == DEFAULTS, "a default that is none"


def test_words_are_names_of_plugins() -> None:
    """A word that is none any more is not excused."""
    assert set(WORDS) <= {name for each in plugins().values() for name in each}


@pytest.mark.parametrize("package", sorted(MAX_LINES))
def test_a_plugin_is_read_in_one_go(package: str) -> None:
    lengths = {
        name: len((folder(package) / f"{name}.py").read_text().splitlines()) for name in lookup.names(package)
    }
    assert len(lengths) >= 8
    assert not {name: n for name, n in lengths.items() if n > MAX_LINES[package]}
