"""What cannot be annotated is said at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbus_core.config.load import load
from rollbus_launch.__main__ import main


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    """A run that waits for one column."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text("env: {name: toy}\nlearner: {rewards: [{source: 'late:judge'}]}\n")
    (tmp_path / "config.yaml").write_text(load(recipe, []).to_yaml())
    return str(tmp_path)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["m:judge", "--column", "jugde"], "waits for no column 'jugde' (but for: judge)"),
        (["m:judge", "--column", "judge"], "no run is active in"),
        (["late:judge", "--column", "judge"], "is what is to be attached; name a function or a model"),
    ],
)
def test_refusals(
    run_dir: str, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    assert main(["annotate", words[0], run_dir, *words[1:]]) == 2
    assert text in capsys.readouterr().err
