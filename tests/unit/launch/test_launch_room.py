"""Too many processes are refused before the first one, with what there is room for."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

from rollbus_core.config.load import load
from rollbus_launch import room
from rollbus_launch.session import layout
from rollbus_wire.errors import ConfigError

TINY = Path(__file__).parents[2] / "system" / "tiny.yaml"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the system says of its memory: 400 MiB are free."""
    said = tmp_path / "meminfo"
    said.write_text(f"MemTotal: 9 kB\nMemAvailable:  {400 << 10} kB\n")
    monkeypatch.setattr(room, "_MEMORY", said)
    return said


def test_memory_is_for_those_that_are_not_there_yet(memory: Path) -> None:
    room.check("actor=10", 10)
    room.check("actor=13", 13, running=3)
    with pytest.raises(ConfigError, match=r"actor=14: 14 processes, but .* room for 13: 0.4 GiB .* free"):
        room.check("actor=14", 14, running=3)


def test_fewer_are_never_too_many(memory: Path) -> None:
    memory.write_text("MemAvailable: 0 kB\n")
    room.check("actor=3", 3, running=5)
    with pytest.raises(ConfigError, match="room for 5"):
        room.check("actor=6", 6, running=5)


def test_a_system_that_does_not_say(memory: Path) -> None:
    memory.unlink()
    room.check("actor=100", 100)


def test_file_descriptors(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.unlink()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 528))
    room.check("actor=100", 100)
    with pytest.raises(ConfigError, match=re.escape("room for 100: the broker may open 528 files")):
        room.check("actor=101", 101)


def test_a_run_counts_its_workers(memory: Path) -> None:
    recipe = load(TINY, ["env.placement=workers", "env.workers=6"]).recipe
    room.check_run(recipe, layout(recipe))
    recipe = load(TINY, ["env.placement=workers", "env.workers=7"]).recipe
    with pytest.raises(ConfigError, match="actor.count 1, env.hubs 1, env.workers 7: 11 processes"):
        room.check_run(recipe, layout(recipe))
