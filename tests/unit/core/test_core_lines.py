"""Files of lines on a disk that is full for a while."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rollbus_core.lines import LineFile


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch):
    """``full[0]``: bytes that the disk still takes, None for no limit."""
    room, write = [None], os.write

    def limited(descriptor: int, data: bytes) -> int:
        if room[0] is None:
            return write(descriptor, data)
        taken = data[: room[0]]
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= len(taken)
        return write(descriptor, taken)

    monkeypatch.setattr(os, "write", limited)
    return room


def test_no_line_is_torn_or_lost(tmp_path: Path, full: list) -> None:
    path = tmp_path / "a" / "lines"
    file = LineFile(path)
    file.put({"n": 1})
    full[0] = 4
    file.write("second line")
    file.write("third")
    assert path.read_text() == '{"n": 1}\n' and file.waiting == 2
    full[0] = None
    file.close()
    assert path.read_text().splitlines() == ['{"n": 1}', "second line", "third"]


def test_what_waits_is_bounded_and_counted(tmp_path: Path, full: list) -> None:
    file = LineFile(tmp_path / "lines", max_waiting=2)
    full[0] = 0
    for number in range(5):
        file.write(str(number))
    full[0] = None
    file.flush(force=True)
    assert (tmp_path / "lines").read_text() == "3\n4\n" and file.lost == 3


def test_other_errors_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LineFile(tmp_path / "lines")

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(OSError, match="Input/output"):
        file.write("x")


@pytest.mark.parametrize("half", [b"", b'{"c": ', b"x" * 200_000])
def test_the_half_line_of_a_dead_writer_is_cut(tmp_path: Path, half: bytes) -> None:
    path = tmp_path / "a.jsonl"
    for before in (b"", b'{"a": 1}\n{"b": 2}\n'):
        path.write_bytes(before + half)
        file = LineFile(path)
        file.put({"d": 4})
        file.close()
        assert path.read_bytes() == before + b'{"d": 4}\n'


def test_effects_wait_for_their_causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk that has room for the shorter line only: it is not written before the longer one."""
    causes = LineFile(tmp_path / "causes")
    effects = LineFile(tmp_path / "effects", after=[causes])
    with monkeypatch.context() as full:
        full.setattr(LineFile, "_append", lambda self, data: len(data) < 5)
        causes.write("a long line")
        effects.write("x")
    assert (tmp_path / "effects").read_text() == "" and (causes.waiting, effects.waiting) == (1, 1)
    causes.flush(force=True)
    effects.flush(force=True)
    assert (tmp_path / "causes").read_text() == "a long line\n"
    assert (tmp_path / "effects").read_text() == "x\n"
