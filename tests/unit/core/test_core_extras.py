"""Optional packages: each name that a refusal gives is one that pip knows, and the extra brings it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from rollbus_core import extras
from rollbus_core.config.load import PLUGIN_PACKAGES, load
from rollbus_core.datasets.writer import DatasetWriter
from rollbus_launch.collect import collect
from rollbus_launch.evaluation.evaluate import Settings
from rollbus_launch.pipeline import file
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError, MissingPackage

ROOT = Path(__file__).resolve().parents[3]
ENGINES = "rollbus_actor.engines"
PLUGINS = [
    (package, name)
    for package in (
        *PLUGIN_PACKAGES.values(),
        ENGINES,
        "rollbus_learner.labellers",
        "rollbus_learner.reward_models",
    )
    for name in lookup.names(package)
]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constrained() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonical(re.split(r"[=<> ;]", line)[0]) for line in lines if line and not line.startswith("#")}


def brought_by() -> dict[str, str]:
    """Extra -> the text of its requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {name: " ".join(wanted) for name, wanted in project["optional-dependencies"].items()}


@pytest.mark.parametrize("package, name", PLUGINS)
def test_what_a_plugin_needs_is_named_as_pip_knows_it(package, name):
    for need in getattr(lookup.find(package, name), "needs", ()):
        assert extras.requirement(need) != need, f"{need} is in no extra: add it to extras.ALL"


@pytest.mark.parametrize("each", extras.ALL, ids=lambda each: each.name)
def test_the_extra_brings_the_package(each):
    wanted = brought_by()[each.extra]
    assert each.distribution in wanted or each.name == "mujoco" and "gymnasium[mujoco" in wanted
    assert canonical(each.distribution) in constrained() or each.name == "peft"


def test_a_refusal_names_all_that_is_missing_and_one_command(monkeypatch):
    monkeypatch.setattr(extras, "missing", lambda names: [*names])
    with pytest.raises(MissingPackage) as caught:
        extras.require("collect", extras.DATASETS)
    assert str(caught.value) == (
        "collect needs pyarrow and PIL, which are not installed; run: pip install 'rollbus[datasets]'"
    )


def test_an_unknown_package_is_named_as_it_is():
    with pytest.raises(MissingPackage, match=r"run: pip install 'no_such_package>=2'$"):
        extras.require("x", ["no_such_package>=2"])


@pytest.fixture
def bare(monkeypatch):
    """An interpreter without the data sets' and the export's packages."""
    gone = {*extras.DATASETS, *extras.EXPORT, "peft"}
    find = extras.missing
    monkeypatch.setattr(extras, "missing", lambda names: [n for n in names if n in gone or find([n])])


def test_nothing_starts_without_the_packages(bare, tmp_path):
    recipe, wanted = ROOT / "recipes/toy_reach_sft.yaml", r"pip install 'rollbus\[datasets\]'"
    with pytest.raises(MissingPackage, match=wanted):
        collect(recipe, [], "script", tmp_path / "out", Settings(1, 1, 1, "deterministic"))
    with pytest.raises(MissingPackage, match=wanted):
        DatasetWriter(tmp_path / "out", None)
    with pytest.raises(MissingPackage, match=wanted):
        load(recipe)
    with pytest.raises(MissingPackage, match=r"peft.*pip install 'rollbus\[lora\]'"):
        load(recipe, ["algorithm.lora_rank=2", "run.start_from=runs/cloned"])
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_names_the_packages_of_all_its_stages(bare):
    with pytest.raises(ConfigError) as caught:
        file.read(ROOT / "pipelines/toy_reach.yaml")
    lines = str(caught.value).splitlines()
    for stage, extra in (("demos", "datasets"), ("cloned", "datasets"), ("exported", "onnx")):
        assert any(f"stages.{stage}: " in line and f"'rollbus[{extra}]'" in line for line in lines), lines
