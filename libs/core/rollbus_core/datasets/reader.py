"""Reads LeRobot datasets v3, ours and other people's, as data only: JSON, Parquet, PNG and JPEG.

What does not fit is a `ConfigError` that names the file and, where there is one, the row. Memory holds one
batch of rows and one episode. Videos are not read yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_core import extras
from rollbus_core.datasets import features as names
from rollbus_core.datasets import files
from rollbus_core.datasets.arrow import from_arrow
from rollbus_core.datasets.features import Feature
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import EnvSpec

#: Rows of one read.
BATCH_ROWS, BATCH_PICTURES = 4096, 128


@dataclass(frozen=True)
class EpisodeInfo:
    """One row of meta/episodes."""

    index: int
    length: int
    #: None: no signal.
    success: bool | None
    task: str
    #: What the environment's reset got besides; None: nothing, or it is not known.
    options: dict[str, Any] | None = None


@dataclass
class Rows:
    """The frames of one episode: [T, *shape] per feature, and where the first one stands."""

    index: int
    columns: dict[str, np.ndarray]
    where: str
    first_row: int


class Dataset:
    """The dataset in ``folder``. Raises `ConfigError` if its meta data is not readable."""

    def __init__(self, folder: Path | str) -> None:
        extras.require("a data set", extras.DATASETS)
        self.folder = Path(folder)
        self.info = files.read_json(self.folder / files.INFO)
        where = str(self.folder / files.INFO)
        version = self.info.get("codebase_version")
        if not str(version).startswith("v3"):
            raise ConfigError(
                f"{where}: codebase_version is {version!r}; version 3 is read; lerobot converts older ones"
            )
        self.features = names.from_data(self.info.get("features"), where)
        try:
            self.num_episodes, self.num_frames = (
                int(self.info[key]) for key in ("total_episodes", "total_frames")
            )
            self.fps = float(self.info["fps"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {error!r}") from None
        path = self.folder / files.MANIFEST
        #: What Rollbus wrote beside it; None: somebody else's dataset.
        self.manifest = files.read_json(path) if path.exists() else None

    @property
    def spec(self) -> EnvSpec | None:
        """The environment's, where Rollbus recorded it."""
        return EnvSpec.from_data(self.manifest["spec"]) if self.manifest else None

    def content(self) -> str:
        """Hash of what it holds; of files where Rollbus has not written it."""
        if self.manifest:
            return str(self.manifest["content"])
        parts = [f"{p.name} {files.digest_of(p)}" for p in self.paths(files.DATA)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def paths(self, pattern: str) -> list[Path]:
        """The files of one kind in their order; of ours only those that the manifest names."""
        top = pattern.split("/chunk-")[0]
        found = sorted((self.folder / top).glob("chunk-*/file-*.parquet"))
        if self.manifest is None:
            return found
        known = self.manifest["files"]
        return [path for path in found if path.relative_to(self.folder).as_posix() in known]

    def verify(self) -> None:
        """Raise `ConfigError` unless every file is the one that was written (datasets of Rollbus)."""
        for name, entry in (self.manifest or {"files": {}})["files"].items():
            path = self.folder / name
            if not path.exists() or files.digest_of(path) != entry["sha256"]:
                raise ConfigError(f"{path} is not the file that was written; collect the data again")

    def tasks(self) -> dict[str, int]:
        """Task text -> its index."""
        path = self.folder / files.TASKS
        if not path.exists():
            return {}
        columns = _read(path, lambda file: file.read()).to_pydict()
        index = columns.pop("task_index", None)
        texts = next(iter(columns.values()), None)
        if index is None or texts is None:
            raise ConfigError(f"{path} has no task_index and text")
        return dict(zip(map(str, texts), map(int, index)))

    def episodes(self) -> list[EpisodeInfo]:
        """All episodes in order."""
        found = []
        for path in self.paths(files.EPISODES):
            wanted = ("episode_index", "length", "success", "tasks", "options")
            have = _read(path, lambda file: file.schema_arrow.names)
            if missing := [name for name in wanted[:2] if name not in have]:
                raise ConfigError(f"{path} lacks {', '.join(missing)}; it has {', '.join(have)}")
            columns = [name for name in wanted if name in have]
            for row in _read(path, partial(_columns, columns)).to_pylist():
                tasks = row.get("tasks") or [""]
                found.append(
                    EpisodeInfo(
                        row["episode_index"],
                        row["length"],
                        row.get("success"),
                        str(tasks[0]),
                        json.loads(row.get("options") or "null"),
                    )  # fmt: skip
                )
        if len(found) != self.num_episodes or sum(e.length for e in found) != self.num_frames:
            raise ConfigError(
                f"{self.folder / files.INFO} says {self.num_episodes} episodes of {self.num_frames} frames, "
                f"meta/episodes has {len(found)} of {sum(e.length for e in found)}"
            )
        return found

    def rows(self, wanted: list[str], first_episode: int = 0) -> Iterator[Rows]:
        """The frames of each episode from ``first_episode`` on, with the features ``wanted``."""
        chosen = {name: self.features[name] for name in [*wanted, names.EPISODE]}
        for path in self.paths(files.DATA):
            yield from _episodes_of(path, chosen, first_episode)

    def finals(self, wanted: list[str]) -> Iterator[Rows]:
        """The observation after the last decision of each episode that has one, [1, *shape]."""
        chosen = {name: self.features[name] for name in [*wanted, names.EPISODE]}
        for path in self.paths(files.FINAL):
            yield from _episodes_of(path, chosen, 0)


def _episodes_of(path: Path, chosen: Mapping[str, Feature], first: int) -> Iterator[Rows]:
    """Whole episodes of one file; batches are joined where an episode goes over their end."""
    have = _read(path, lambda file: file.schema_arrow.names)
    if missing := sorted(set(chosen) - set(have)):
        raise ConfigError(
            f"{path} lacks {', '.join(missing)}, which info.json names; it has {', '.join(have)}"
        )
    size = BATCH_PICTURES if any(f.is_image for f in chosen.values()) else BATCH_ROWS
    begun: list[Rows] = []
    for part in _runs(path, chosen, size):
        if begun and part.index != begun[0].index:
            if begun[0].index >= first:
                yield _joined(begun)
            begun = []
        begun.append(part)
    if begun and begun[0].index >= first:
        yield _joined(begun)


def _runs(path: Path, chosen: Mapping[str, Feature], size: int) -> Iterator[Rows]:
    """Runs of rows of one episode, none longer than a batch."""
    row, columns = 0, list(chosen)
    batches = _read(path, lambda file: file.iter_batches(batch_size=size, columns=columns))
    while (batch := _read_next(path, batches)) is not None:
        arrays = {n: from_arrow(f, batch.column(n), str(path), row) for n, f in chosen.items()}
        episode = arrays.pop(names.EPISODE)[:, 0].astype(np.int64)
        cuts = [0, *(np.flatnonzero(np.diff(episode)) + 1).tolist(), len(episode)]
        for begin, end in zip(cuts, cuts[1:]):
            if end > begin:
                part = {name: values[begin:end] for name, values in arrays.items()}
                yield Rows(int(episode[begin]), part, str(path), row + begin)
        row += len(episode)


def _joined(parts: list[Rows]) -> Rows:
    first = parts[0]
    if len(parts) == 1:
        return first
    columns = {name: np.concatenate([p.columns[name] for p in parts]) for name in first.columns}
    return Rows(first.index, columns, first.where, first.first_row)


def _columns(names: list[str], file: Any) -> Any:
    return file.read(columns=names)


def _read(path: Path, what: Callable[[Any], Any]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return what(pq.ParquetFile(path))
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path} is not readable as Parquet: {error}") from None


def _read_next(path: Path, batches: Iterator[Any]) -> Any:
    import pyarrow as pa

    try:
        return next(batches, None)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path} is not readable as Parquet: {error}") from None
