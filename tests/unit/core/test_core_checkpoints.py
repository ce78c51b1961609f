"""A damaged checkpoint is passed over; if none is whole, the message says what to do."""

import json
from pathlib import Path

import pytest

from rollbus_core.checkpoint_folder import CheckpointFolder
from rollbus_core.checkpoints import file_digest, lost_steps, newer, newest_whole, take_lineage, version_of
from rollbus_wire.errors import CheckpointError


def write(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    (path / "model.safetensors").write_bytes(name.encode())
    digest = file_digest(path / "model.safetensors")
    manifest = {"format": 1, "env_steps": 1, "version": [0, 1], "files": {"model.safetensors": digest}}
    (path / "manifest.json").write_text(json.dumps(manifest))
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


def test_what_is_lost_with_newer_checkpoints(tmp_path: Path) -> None:
    """Those of a later lineage are newer, with fewer steps, too."""
    paths = [write(tmp_path, f"{steps:012d}-{at}") for steps, at in ((10, "0.1"), (30, "0.3"), (20, "1.2"))]
    assert [newer(path) for path in paths] == [paths[1:], paths[2:], []]
    assert [lost_steps(path) for path in paths] == [20, 0, 0]
    assert version_of(paths[1]) == (0, 3)


@pytest.mark.parametrize("link", ["last", "best"])
def test_a_copy_that_followed_its_links_is_told_apart(tmp_path: Path, link: str) -> None:
    path = write(tmp_path, "000000000010-0.1")
    folder = CheckpointFolder(tmp_path, 3)
    (tmp_path / link).symlink_to(path.name)
    folder.check()
    (tmp_path / link).unlink()
    write(tmp_path, link)
    with pytest.raises(CheckpointError, match=f"{link} is no link.*remove it"):
        folder.check()


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", '{"score": "x"}', '{"score": []}'])
def test_a_damaged_score_is_forgotten_with_its_checkpoint(tmp_path: Path, text: str) -> None:
    folder = CheckpointFolder(tmp_path, 3)
    path = write(tmp_path, "000000000010-0.1")
    assert folder.mark_best(path, 500.0)
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"best\.json is damaged"):
        folder.best_score()
    assert "best.json is damaged" in folder.forget_damaged_best()
    assert not (tmp_path / "best").exists() and folder.best_score() == float("-inf")
    assert folder.mark_best(path, 1.0)


def test_a_best_checkpoint_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """Its score would keep whatever comes after it from being best."""
    folder = CheckpointFolder(tmp_path, 3)
    assert folder.forget_damaged_best() == ""
    old, new = write(tmp_path, "000000000010-0.1"), write(tmp_path, "000000000020-0.2")
    assert folder.mark_best(old, 500.0) and folder.forget_damaged_best() == ""
    (old / "model.safetensors").write_bytes(b"x")
    assert "its digest differs" in folder.forget_damaged_best()
    assert not (tmp_path / "best").exists() and folder.best_score() == float("-inf")
    assert folder.mark_best(new, 100.0) and (tmp_path / "best").resolve() == new


def test_starts_are_counted_in_a_file(tmp_path: Path) -> None:
    assert [take_lineage(tmp_path), take_lineage(tmp_path)] == [0, 1]
    (tmp_path / "lineage").unlink()
    (tmp_path / "lineage").mkdir()
    with pytest.raises(CheckpointError, match="lineage is no file.*remove it"):
        take_lineage(tmp_path)
