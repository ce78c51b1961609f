"""A damaged checkpoint is passed over; if none is whole, the message says what to do."""

import json
from pathlib import Path

import pytest

from rollbus_core.checkpoints import file_digest, newest_whole
from rollbus_wire.errors import CheckpointError


def write(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    (path / "model.safetensors").write_bytes(name.encode())
    digest = file_digest(path / "model.safetensors")
    (path / "manifest.json").write_text(json.dumps({"format": 1, "files": {"model.safetensors": digest}}))
    return path


def test_the_newest_whole_one_is_taken_and_the_damage_told(tmp_path: Path) -> None:
    old, new = write(tmp_path, "000000000010-0.1"), write(tmp_path, "000000000020-0.2")
    assert newest_whole(tmp_path) == (new, [])
    (new / "model.safetensors").write_bytes(b"x")
    path, problems = newest_whole(tmp_path)
    assert path == old and len(problems) == 1 and "000000000020-0.2" in problems[0]
    (old / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="run.resume=never"):
        newest_whole(tmp_path)
