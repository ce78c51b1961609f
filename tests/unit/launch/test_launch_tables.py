"""Tables for people show what is in the rows, brackets included."""

from __future__ import annotations

import pytest

from rollbus_launch.tables import show


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"what": "package onnx", "fix": "pip install 'rollbus[onnx]'"}], as_json=False)
    assert "pip install 'rollbus[onnx]'" in capsys.readouterr().out
