"""The format of checkpoints on disk, without torch. docs: one folder per checkpoint.

``<env_steps>-<lineage>.<number>/`` holds ``manifest.json`` (counters, versions, a digest per file),
``model.safetensors`` (all saved roles, "policy.<tensor>", ...), ``optimiser.safetensors`` and
``config.yaml``. A folder gets its name by one rename after everything in it is on disk, so a name
without a leading dot is a complete checkpoint. A reader holds a shared `flock` on the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbus_core.kinds import FILE, unlike
from rollbus_core.reading import read_at_most
from rollbus_wire.errors import CheckpointError, SpecError, short
from rollbus_wire.spec import EnvSpec

if TYPE_CHECKING:
    import numpy as np

FORMAT = 1
MANIFEST, MODEL, OPTIMISER, CONFIG = (
    "manifest.json", "model.safetensors", "optimiser.safetensors", "config.yaml",
)  # fmt: skip
#: A manifest is a few kilobytes; specs and names of thousands of tensors fit in this.
MAX_MANIFEST_BYTES = 16 << 20
#: Of deterministic runs: the running episodes (`rollbus_core.running_episodes`).
ENVIRONMENTS = "environments.npz"
_NAME = re.compile(r"\d{12}-\d+\.\d+")


def name_of(env_steps: int, version: tuple[int, int]) -> str:
    """Folder name; sorts by steps."""
    return f"{env_steps:012d}-{version[0]}.{version[1]}"


def listed(folder: Path) -> list[Path]:
    """The complete checkpoints of ``folder``, oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_age)


def _age(path: Path) -> tuple[int, int, int]:
    """Order of being made: a later lineage may have fewer steps than the one it forked from."""
    steps, version = path.name.split("-")
    lineage, number = version.split(".")
    return int(lineage), int(number), int(steps)


def newer(path: Path) -> list[Path]:
    """The checkpoints that were made after this one, oldest first."""
    return [other for other in listed(path.parent) if _age(other) > _age(path)]


def version_of(path: Path) -> tuple[int, int]:
    """(lineage, number), from its name."""
    return _age(path)[:2]


def lost_steps(path: Path) -> int:
    """Steps that newer checkpoints hold and this one does not: who passes over them learns from others."""
    steps = _age(path)[2]
    return max(_age(other)[2] for other in (path, *newer(path))) - steps


def resolve(folder: Path, which: str = "last") -> Path:
    """The checkpoint that "last", "best" or a name says; raises `CheckpointError`."""
    path = folder / which
    if not path.exists():
        names = ", ".join(p.name for p in listed(folder)) or "none"
        raise CheckpointError(f"{path} does not exist; checkpoints there: {names}")
    return path.resolve()


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep ``path`` from being removed while the block runs."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not path.exists():
            raise CheckpointError(f"checkpoint {path} was removed before it could be read; take a newer one")
        yield
    finally:
        os.close(descriptor)


def read_manifest(path: Path, *, verify: bool = True) -> dict[str, Any]:
    """The manifest, after the digest of every file was compared; raises `CheckpointError`.

    Whatever else of a checkpoint is in the folder is a file, too.
    """
    check_kinds(path)
    try:
        with open(path / MANIFEST, "rb") as file:
            data = read_at_most(file, MAX_MANIFEST_BYTES)
        if len(data) > MAX_MANIFEST_BYTES:
            raise ValueError(f"it has more than {MAX_MANIFEST_BYTES >> 20} MiB")
        manifest = json.loads(data)
        _check_manifest(manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path} is no checkpoint: it has no {MANIFEST}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / MANIFEST} is damaged: {error}; use another checkpoint") from None
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {short(manifest.get('format'))}, this version reads {FORMAT}"
        )
    for name, digest in manifest["files"].items() if verify else ():
        if not (path / name).is_file():
            raise CheckpointError(f"{path} is incomplete: {name} is missing; use another checkpoint")
        if file_digest(path / name) != digest:
            raise CheckpointError(f"{path / name} is damaged: its digest differs; use another checkpoint")
    return manifest


def check_kinds(path: Path) -> None:
    """Raise `CheckpointError` if something in a checkpoint's folder is none of its files; opens nothing."""
    for name in (MANIFEST, MODEL, OPTIMISER, CONFIG, ENVIRONMENTS):
        if problem := unlike(path / name, FILE):
            raise CheckpointError(f"{problem}; use another checkpoint")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_map_of(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(right, value.values()))


#: What a manifest may say -> whether it has the form of that.
_FORMS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("env_steps", "updates", "episodes", "table_steps", "lineage"), _is_count),
    "version": lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)),
    "applied": _is_map_of(_is_count),
    "published": _is_map_of(lambda name: isinstance(name, str)),
    "spec": lambda value: isinstance(value, dict),
}


def _check_manifest(manifest: Any) -> None:
    """Raise `ValueError` unless it has the form of a manifest; it may come from a stranger."""
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        raise ValueError("it lists no files")
    for name, digest in files.items():
        if name not in (MODEL, OPTIMISER, CONFIG, ENVIRONMENTS) or not isinstance(digest, str):
            raise ValueError(f"it lists {name!r}, which is no file of a checkpoint")
    for key, right in _FORMS.items():
        if key in manifest and not right(manifest[key]):
            raise ValueError(f"{key} is {short(manifest[key])}")
    for key in ("env_steps", "version"):
        if key not in manifest:
            raise ValueError(f"it lacks {key}")


def check_listed(path: Path, manifest: Mapping[str, Any], *names: str) -> None:
    """Raise `CheckpointError` unless the manifest has a digest of each file."""
    for name in names:
        if name not in manifest["files"]:
            raise CheckpointError(f"{path / MANIFEST} has no digest of {name}; use another checkpoint")


def spec_of(path: Path, manifest: Mapping[str, Any]) -> EnvSpec:
    """Of the environments it was trained on; raises `CheckpointError` if it cannot be read."""
    try:
        return EnvSpec.from_data(manifest.get("spec") or {})
    except SpecError as error:
        raise CheckpointError(f"{path / MANIFEST}: {error}; use another checkpoint") from None


def newest_whole(folder: Path) -> tuple[Path, list[str]]:
    """The newest checkpoint that is not damaged, and what is wrong with newer ones.

    Raises `CheckpointError` if none is whole.
    """
    problems: list[str] = []
    for path in reversed(listed(folder)):
        try:
            read_manifest(path)
        except CheckpointError as error:
            problems.append(str(error))
        else:
            return path, problems
    raise CheckpointError(
        "no checkpoint of this run can be read; use another --run-dir, or run.resume=never to begin "
        "anew:\n" + "\n".join(problems)
    )


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_policy_tensors(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What actors were given of this checkpoint, by name, and the manifest.

    ``manifest["published"]`` says under which name of model.safetensors each of them is.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    with held(path):
        manifest = read_manifest(path)
        names = manifest.get("published")
        check_listed(path, manifest, MODEL)
        if names is None:
            raise CheckpointError(
                f"{path / MANIFEST} does not say what was published; use another checkpoint"
            )
        try:
            with safe_open(path / MODEL, "numpy") as file:
                tensors = {name: file.get_tensor(stored) for name, stored in names.items()}
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path / MODEL} is no safetensors file of weights, or lacks some: {error}; use another "
                "checkpoint. Files of other formats are never read, because they can hold programs"
            ) from None
    return tensors, manifest


def take_lineage(folder: Path) -> int:
    """The number of this start of the learner: 0 at the first; on disk before it is used.

    Two starts never share one, even if no checkpoint was saved in between. Raises `CheckpointError` if the
    file is damaged.
    """
    path = folder / "lineage"
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path} is no file, so the learner cannot count its starts in it; remove it")
    highest = max((_age(each)[0] for each in listed(folder)), default=-1)
    text = path.read_bytes().strip() if path.exists() else b"0"
    if not text.isdigit() or len(text) > 9:
        raise CheckpointError(
            f"{path} is damaged: it holds {short(text)}, not the number of this start of the learner; "
            f"write a number into it that no start had (the checkpoints know of {max(highest, 0)}), or use "
            "another --run-dir"
        )
    lineage = max(int(text), highest + 1)
    write_atomic(path, str(lineage + 1).encode())
    return lineage


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` so that after a crash it holds the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    sync(path.parent)


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
