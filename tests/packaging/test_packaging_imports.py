"""Imports: one direction between packages, and plug-in settings without heavy packages."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging_tools import ROOT, run

SERVICES = {"rollbus_simulator", "rollbus_actor", "rollbus_broker", "rollbus_learner"}
#: What each package may import of ours besides itself.
ALLOWED = {
    "rollbus_wire": set(),
    "rollbus_envs": {"rollbus_wire"},
    "rollbus_core": {"rollbus_wire"},
    "rollbus_broker": {"rollbus_core", "rollbus_wire"},
    "rollbus_simulator": {"rollbus_core", "rollbus_wire"},
    "rollbus_accel": {"rollbus_core", "rollbus_wire"},
    "rollbus_policies": {"rollbus_accel", "rollbus_core", "rollbus_wire"},
    "rollbus_actor": {"rollbus_policies", "rollbus_accel", "rollbus_core", "rollbus_wire"},
    "rollbus_learner": {"rollbus_policies", "rollbus_accel", "rollbus_core", "rollbus_wire"},
    # The launcher puts services together and reads the settings of plug-ins.
    "rollbus_launch": SERVICES
    | {"rollbus_envs", "rollbus_policies", "rollbus_accel", "rollbus_core", "rollbus_wire"},
}
HEAVY = ("torch", "gymnasium", "mujoco", "pygame", "matplotlib", "tensorboard", "jax", "triton")
#: Folders of plug-ins and whether each has a `Config`.
PLUGINS = ("rollbus_envs", "rollbus_policies", "rollbus_learner.algorithms")


def packages() -> dict[str, Path]:
    found = [p.parent for p in ROOT.glob("libs/*/rollbus_*/__init__.py")]
    found += [p.parent for p in ROOT.glob("services/*/rollbus_*/__init__.py")]
    return {path.name: path for path in found}


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Absolute imports of a file with their lines, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno


def names_of_ours(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of all that a file imports from our packages."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rollbus_"):
            yield from ((str(node.module), alias.name) for alias in node.names)


def is_there(module: str, name: str) -> bool:
    found = importlib.import_module(module)
    return hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}") is not None


def test_what_benchmarks_import_of_ours_is_there() -> None:
    """They are run by hand only, and names move."""
    files = sorted((ROOT / "benchmarks").rglob("*.py"))
    named = {(path.name, *each) for path in files for each in names_of_ours(path)}
    assert len(named) > 50
    assert [each for each in sorted(named) if not is_there(*each[1:])] == []


def test_every_package_has_a_rule() -> None:
    assert set(packages()) == set(ALLOWED)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_one_way(package: str) -> None:
    wrong = []
    for path in packages()[package].rglob("*.py"):
        for name, line in imported(path):
            root = name.split(".")[0]
            if root.startswith("rollbus_") and root != package and root not in ALLOWED[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_rules_have_no_circle() -> None:
    def reach(package: str, seen: tuple[str, ...]) -> None:
        assert package not in seen, " -> ".join([*seen, package])
        for other in ALLOWED[package]:
            reach(other, (*seen, package))

    for package in ALLOWED:
        reach(package, ())


@pytest.mark.parametrize("package", ["rollbus_core", "rollbus_broker", "rollbus_simulator", "rollbus_wire"])
def test_these_need_no_torch(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in packages()[package].rglob("*.py")
        for name, line in imported(path)
        if name.split(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(wrong)


LIST = """
import importlib, json, sys
from rollbus_wire import lookup
configs = []
for package in sys.argv[2:]:
    for name in lookup.names(package):
        module = importlib.import_module(package + "." + name)
        if hasattr(module, "Config"):
            module.Config()
            configs.append(package + "." + name)
            assert isinstance(module.needs, (list, tuple)), name
heavy = [name for name in json.loads(sys.argv[1]) if name in sys.modules]
print(json.dumps([configs, heavy]))
"""


def test_settings_of_plugins_load_without_heavy_packages() -> None:
    output = run([sys.executable, "-c", LIST, json.dumps(HEAVY), *PLUGINS], timeout_s=60)
    configs, heavy = json.loads(output.strip().splitlines()[-1])
    assert {"rollbus_envs.gymnasium", "rollbus_envs.toy", "rollbus_envs.vector"} <= set(configs)
    assert heavy == []
