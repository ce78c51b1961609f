"""Checkpoints and settings from strangers are data: nothing in them runs, and what is wrong is said."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle  # noqa: TID251  what strangers send
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from rollbus_core.checkpoints import load_policy_tensors, read_manifest, spec_of
from rollbus_core.config.load import load_resolved
from rollbus_wire.errors import CheckpointError, RollbusError


class Bomb:
    """Unpickling makes the file that ``path`` names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def checkpoint(folder: Path, model: bytes, **changes: Any) -> Path:
    """A checkpoint whose manifest vouches for ``model``, whatever it is."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(model)
    manifest = {
        "format": 1, "published": {"w": "policy.w"}, "version": [0, 1], "env_steps": 1,
        "files": {"model.safetensors": hashlib.sha256(model).hexdigest()}, **changes,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def pickled(bomb: Bomb) -> bytes:
    return pickle.dumps({"w": bomb})


def torch_archive(bomb: Bomb) -> bytes:
    """What torch.save makes: a zip file with a pickle in it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(bomb))
        archive.writestr("archive/version", "3")
    return data.getvalue()


def object_array(bomb: Bomb) -> bytes:
    data = io.BytesIO()
    np.save(data, np.array([bomb], object), allow_pickle=True)
    return data.getvalue()


def oversized_header(bomb: Bomb) -> bytes:
    return struct.pack("<Q", 1 << 62) + b"{}"


def large_header(bomb: Bomb) -> bytes:
    return struct.pack("<Q", 200 << 20) + b" " * 100


def overlapping(bomb: Bomb) -> bytes:
    header = json.dumps({"policy.w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"abcd"


HOSTILE = [pickled, torch_archive, object_array, oversized_header, large_header, overlapping, lambda _: b""]


def test_the_bomb_goes_off(tmp_path: Path) -> None:
    pickle.loads(pickled(Bomb(tmp_path / "boom")))  # noqa: S301
    assert (tmp_path / "boom").is_dir()


@pytest.mark.parametrize("make", HOSTILE)
def test_what_is_no_safetensors_file_is_refused_and_runs_nothing(
    tmp_path: Path, make: Callable[[Bomb], bytes]
) -> None:
    path = checkpoint(tmp_path / "c", make(Bomb(tmp_path / "boom")))
    modules = set(sys.modules)
    with pytest.raises(CheckpointError, match="no safetensors file"):
        load_policy_tensors(path)
    assert not (tmp_path / "boom").exists()
    assert not {name for name in set(sys.modules) - modules if name.startswith("torch")}


def test_a_good_one_is_read(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c", save({"policy.w": np.arange(3, dtype=np.float32)}))
    assert load_policy_tensors(path)[0]["w"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["../../secret", "/dev/zero", "model.safetensors/..", "x.py"])
def test_a_manifest_names_files_of_a_checkpoint_only(tmp_path: Path, name: str) -> None:
    path = checkpoint(tmp_path / "c", b"", files={name: "00"})
    with pytest.raises(CheckpointError, match="no file of a checkpoint"):
        read_manifest(path)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"files": []}', '{"files": {"model.safetensors": 1}}', "[" * 100000, "\0", ""]
)
def test_a_manifest_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path = checkpoint(tmp_path / "c", b"")
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="damaged"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("env_steps", '"many"'), ("env_steps", "NaN"), ("env_steps", "-5"), ("env_steps", "1.5"),
        ("updates", "true"), ("updates", str(1 << 63)), ("version", "[1]"), ("version", '{"a": 1}'),
        ("version", "[0, -1]"), ("applied", "[1]"), ("applied", '{"train": "x"}'), ("lineage", '"x"'),
        ("published", "[3]"), ("spec", "5"),
    ],
)  # fmt: skip
def test_what_a_manifest_says_has_its_form(tmp_path: Path, key: str, text: str) -> None:
    path = checkpoint(tmp_path / "c", b"")
    (path / "manifest.json").write_text(f'{{"format": 1, "files": {{}}, "{key}": {text}}}')
    with pytest.raises(CheckpointError, match=f"manifest.json is damaged: {key} is"):
        read_manifest(path)


def test_a_manifest_that_lacks_something_is_named(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c", b"")
    with pytest.raises(CheckpointError, match="c/manifest.json: spec is not readable"):
        spec_of(path, read_manifest(path))
    with pytest.raises(CheckpointError, match="c/manifest.json: spec is not readable"):
        spec_of(path, {"spec": {"name": "e", "observation": [], "action": {}}})
    (path / "manifest.json").write_text('{"format": 1, "files": {}, "env_steps": 3}')
    with pytest.raises(CheckpointError, match="manifest.json is damaged: it lacks version"):
        read_manifest(path)


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c", b"")
    with open(path / "manifest.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="more than 16 MiB"):
        read_manifest(path)


def test_a_file_without_a_digest_is_not_read(tmp_path: Path) -> None:
    path = checkpoint(
        tmp_path / "c", save({"policy.w": np.zeros(1, np.float32)}), published={"w": "policy.w"}
    )
    load_policy_tensors(path)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"files": {}}))
    with pytest.raises(CheckpointError, match="has no digest of model.safetensors"):
        load_policy_tensors(path)


@pytest.mark.parametrize("published", [None, 3, ["w"], {"w": 3}, {"w": "other"}])
def test_names_that_lead_nowhere_are_refused(tmp_path: Path, published: Any) -> None:
    path = checkpoint(tmp_path / "c", save({"policy.w": np.zeros(1, np.float32)}), published=published)
    with pytest.raises(CheckpointError, match="lacks some|published is"):
        load_policy_tensors(path)


@pytest.mark.parametrize(
    "text",
    [
        "run: !!python/object/apply:os.mkdir [{boom}]\n", "run: !!python/name:os.system\n",
        "run: !!python/object/new:os.mkdir {{args: [{boom}]}}\n",
    ],
)  # fmt: skip
def test_a_recipe_of_a_stranger_makes_no_objects(tmp_path: Path, text: str) -> None:
    recipe = tmp_path / "config.yaml"
    recipe.write_text(text.format(boom=tmp_path / "boom"))
    with pytest.raises(RollbusError):
        load_resolved(recipe)
    assert not (tmp_path / "boom").exists()
