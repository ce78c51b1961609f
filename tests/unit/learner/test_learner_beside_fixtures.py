"""The files of other libraries' outputs: small, of the versions that their generators and the docs name."""

from pathlib import Path

import pytest
from learner_beside import FOLDER, LIBRARIES, arrays

DOCS = Path(__file__).parents[3] / "docs" / "algorithms.md"


def test_there_is_one_per_generator():
    assert LIBRARIES == sorted(path.stem.removeprefix("make_") for path in FOLDER.glob("make_*.py"))
    assert len(LIBRARIES) == 6


@pytest.mark.parametrize("library", LIBRARIES)
def test_its_version_is_the_one_that_is_named(library):
    found = arrays(library)
    package, version = str(found["library"]), str(found["version"])
    assert f"{package}=={version}" in (FOLDER / f"make_{library}.py").read_text()
    assert f"| {package} {version} |" in DOCS.read_text()
    assert (FOLDER / f"{library}.npz").stat().st_size < 100_000
