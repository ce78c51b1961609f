"""Where the files of a dataset are, what they hold, and how they come to be there whole.

`MANIFEST` is ours and written last: a file that it does not name belongs to a write that was cut off.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbus_core.datasets.episode import Episode
from rollbus_wire.errors import ConfigError

INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
MANIFEST = "rollbus/manifest.json"
DATA, EPISODES = "data/chunk-{:03d}/file-{:03d}.parquet", "meta/episodes/chunk-{:03d}/file-{:03d}.parquet"
FINAL = "rollbus/final/chunk-{:03d}/file-{:03d}.parquet"
#: Files per chunk folder.
CHUNK_FILES = 1000
#: A file being written; no reader's pattern fits it.
UNFINISHED = ".unfinished"


def place(number: int) -> tuple[int, int]:
    """(chunk, file) of the ``number``-th file."""
    return number // CHUNK_FILES, number % CHUNK_FILES


def digest_of(path: Path) -> str:
    """sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chained(content: str, episode: Episode) -> str:
    """Hash of a dataset with one more episode: of its numbers, however they are encoded in files."""
    state = hashlib.sha256(content.encode())
    arrays = {f"obs/{key}": value for key, value in episode.obs.items()}
    arrays |= {f"final/{key}": value for key, value in (episode.final_obs or {}).items()}
    arrays |= {"action": episode.action, "reward": episode.reward, "source": episode.source}
    for name, array in sorted(arrays.items()):
        state.update(f"{name} {array.dtype.str} {array.shape}".encode())
        state.update(array.tobytes())
    ending: list[Any] = [episode.terminated, episode.truncated, episode.success, episode.seed, episode.task]
    ending += [] if episode.options is None else [episode.options]
    state.update(json.dumps(ending).encode())
    return state.hexdigest()


def sync(path: Path) -> None:
    """Have a file or folder on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, data: bytes) -> None:
    """Write ``path`` at once: it has the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + UNFINISHED)
    temporary.write_bytes(data)
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def to_json(data: Mapping[str, Any]) -> bytes:
    """Readable JSON."""
    return json.dumps(data, indent=1).encode()


def read_json(path: Path) -> dict[str, Any]:
    """The map in ``path``. Raises `ConfigError`."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist: {path.parents[1]} is no LeRobot dataset of version 3; "
            "rollbus collect makes one"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not readable: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds a {type(data).__name__}, not a map")
    return data


def sweep(folder: Path, known: Mapping[str, Any]) -> list[str]:
    """Remove what a write that was cut off has left; the names."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        parquet = name.endswith(".parquet") and name.split("/")[0] in ("data", "meta", "rollbus")
        if path.is_file() and (name.endswith(UNFINISHED) or (parquet and name not in known)):
            path.unlink()
            found.append(name)
    return found
