"""What `rollbus serve` refuses before it does anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbus_launch.__main__ import main


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["learner", "--index", "1"], "--index '1': a run has one learner, which has index 0"),
        (["hub+broker", "--index", "2"], "--index '2': a run has one broker, which has index 0"),
        (["actor", "--index", "-1"], "--index '-1': give 0 to 1023, or auto"),
        (["actor", "--index", "1024"], "--index '1024': give 0 to 1023, or auto"),
        (["actor", "--index", "many"], "--index 'many': give 0 to 1023, or auto"),
        (["hub+hub"], "give services joined by '+'"),
        (["robot"], "give services joined by '+'"),
    ],
)
def test_what_cannot_be_served(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words, "--run-dir", str(tmp_path / "run")]) == 2
    assert text in capsys.readouterr().err and not (tmp_path / "run").exists()
