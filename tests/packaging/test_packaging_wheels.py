"""What is shipped: the wire on a real Python 3.8 from both distributions, and no pickle in wheels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from packaging_tools import (
    BANNED_WHEN_SHIPPED,
    IGNORED,
    ROOT,
    build,
    find_python38,
    offences,
    python_sources,
    run,
)


@pytest.fixture(scope="module")
def wire_dist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    files = build(ROOT / "libs/wire", tmp_path_factory.mktemp("wire"))
    assert len(files) == 2
    return {"wheel" if f.suffix == ".whl" else "sdist": f for f in files}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.long)])
def test_the_wire_runs_on_python_38(wire_dist: dict[str, Path], kind: str, tmp_path: Path) -> None:
    python = find_python38()
    if python is None:
        pytest.skip("no Python 3.8: set ROLLBUS_PYTHON38, or install one with pyenv")
    run([python, "-m", "venv", tmp_path / "venv"])
    inside = tmp_path / "venv/bin/python"
    install = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run([*install, "-c", ROOT / "constraints.txt", wire_dist[kind], "pytest"])
    shutil.copytree(ROOT / "libs/wire/tests", tmp_path / "tests", ignore=IGNORED)
    where = run([inside, "-c", "import rollbus_wire; print(rollbus_wire.__file__)"], cwd=tmp_path)
    assert where.startswith(str(tmp_path / "venv"))
    output = run([inside, "-m", "pytest", "-q", "-rs", "tests"], cwd=tmp_path, timeout_s=300)
    # Hypothesis is no requirement of the wire; all else runs.
    assert " passed" in output and "failed" not in output and output.count("SKIPPED") == 1


@pytest.mark.parametrize("project", ["libs/wire", "libs/envs", "."])
def test_nothing_that_is_shipped_runs_code_from_data(project: str, tmp_path: Path) -> None:
    source = ROOT / project
    if project == ".":
        source = tmp_path / "rollbus"
        source.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            if (ROOT / name).exists():
                shutil.copy(ROOT / name, source)
        for folder in ("libs", "services"):
            shutil.copytree(ROOT / folder, source / folder, ignore=IGNORED)
    files = build(source, tmp_path)
    assert sorted(f.suffix for f in files) == [".gz", ".whl"]
    for file in files:
        sources = python_sources(file)
        assert len(sources) > 5
        shipped = {name: text for name, text in sources.items() if "tests" not in Path(name).parts}
        found = [o for name, text in shipped.items() for o in offences(name, text, BANNED_WHEN_SHIPPED)]
        assert not found, f"{file.name}:\n" + "\n".join(found)
