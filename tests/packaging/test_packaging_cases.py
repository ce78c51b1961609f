"""docs/test_cases.md names tests that exist."""

from __future__ import annotations

import re

from packaging_tools import ROOT


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(\S+\.py)::(test_\w+)`", (ROOT / "docs" / "test_cases.md").read_text())
    assert len(named) > 40
    missing = [
        f"{file}::{name}" for file, name in named
        if not re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]  # fmt: skip
    assert not missing, missing
