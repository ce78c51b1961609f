"""Writes LeRobot datasets v3, new ones or more episodes of an old one.

A new dataset is a folder with a temporary name until `DatasetWriter.finish` renames it. Episodes are added
to an old one in files of their own, which count from the moment when the manifest names them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rollbus_core import extras
from rollbus_core.columns import SOURCES
from rollbus_core.datasets import features as names
from rollbus_core.datasets import files
from rollbus_core.datasets.arrow import to_arrow
from rollbus_core.datasets.episode import Arrays, Episode
from rollbus_core.datasets.features import Feature
from rollbus_core.datasets.parquet import ParquetFiles, tasks_file
from rollbus_core.datasets.stats import RunningStats
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import EnvSpec

#: Seconds between frames where the environment states none (it does not run in real time).
DEFAULT_PERIOD_S = 0.1


class DatasetWriter:
    """``folder`` must not exist, unless ``append``. ``provenance``: what made the data, for the manifest."""

    def __init__(
        self, folder: Path, spec: EnvSpec, *, provenance: Mapping[str, Any] | None = None,
        append: bool = False, decision_steps: int = 1,
    ) -> None:  # fmt: skip
        extras.require("a data set", extras.DATASETS)
        self.folder, self.spec = Path(folder), spec
        self.features = names.of_spec(spec)
        self.fps = round(1 / (spec.control_period_s or DEFAULT_PERIOD_S) / decision_steps, 6)
        self.num_episodes = self.num_frames = 0
        self.tasks: dict[str, int] = {}
        self._stats = {name: RunningStats(feature) for name, feature in self.features.items()}
        self._manifest: dict[str, Any] = {
            "format": "rollbus-dataset", "version": 1, "spec": spec.to_data(), "provenance": [], "files": {},
            "content": hashlib.sha256(json.dumps(self._feature_data()).encode()).hexdigest(),
        }  # fmt: skip
        self._work = self.folder
        if self.folder.exists() and not append:
            raise ConfigError(f"{self.folder} exists; give a new folder, or append to it")
        if self.folder.exists():
            self._continue()
        else:
            self._work = self.folder.with_name(f".{self.folder.name}-{os.getpid()}{files.UNFINISHED}")
            shutil.rmtree(self._work, ignore_errors=True)
            self._work.mkdir(parents=True)
        self._manifest["provenance"].append(dict(provenance or {}))
        before = self._manifest["files"]
        self._data = ParquetFiles(self._work, files.DATA, before)
        self._episodes = ParquetFiles(self._work, files.EPISODES, before)
        self._final = ParquetFiles(self._work, files.FINAL, before)

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        if kind is None:
            self.finish()
        else:
            self.discard()

    @property
    def content(self) -> str:
        """Hash of all episodes so far."""
        return str(self._manifest["content"])

    def add(self, episode: Episode) -> None:
        """One more episode. Raises `ConfigError` if it does not fit the spec."""
        columns = self._columns(episode)
        number = self.num_episodes
        task = self.tasks.setdefault(episode.task, len(self.tasks))
        count = len(episode)
        self._note_options(episode)
        frame = np.arange(count)
        columns |= {
            names.TIMESTAMP: frame / self.fps, names.FRAME: frame, names.EPISODE: np.full(count, number),
            names.INDEX: self.num_frames + frame, names.TASK: np.full(count, task),
        }  # fmt: skip
        for name, values in columns.items():
            feature = self.features[name]
            columns[name] = values.astype(feature.dtype if not feature.is_image else np.uint8)
            self._stats[name].add(columns[name])
        at = self._data.add({n: to_arrow(self.features[n], v) for n, v in columns.items()})
        self._add_end(episode, number)
        self._add_row(episode, number, at)
        self.num_episodes, self.num_frames = number + 1, self.num_frames + count
        self._manifest["content"] = files.chained(self.content, episode)

    def finish(self) -> Path:
        """Everything on disk, then visible; the folder."""
        if not self.num_episodes:
            self.discard()
            raise ConfigError(f"no episode was added, so {self.folder} is not written")
        written: dict[str, Any] = {}
        for group in (self._data, self._episodes, self._final):
            written |= group.finish()
        known = self._manifest["files"] | written
        files.replace(self._work / files.TASKS, tasks_file(self.tasks))
        stats = {name: stats.to_data() for name, stats in self._stats.items()}
        files.replace(self._work / files.STATS, files.to_json(stats))
        files.replace(self._work / files.INFO, files.to_json(self._info()))
        files.replace(self._work / files.MANIFEST, files.to_json(self._manifest | {"files": known}))
        if self._work != self.folder:
            self._work.rename(self.folder)
            files.sync(self.folder.parent)
        return self.folder

    def discard(self) -> None:
        """Leave everything as it was."""
        for group in (self._data, self._episodes, self._final):
            group.discard()
        if self._work != self.folder:
            shutil.rmtree(self._work, ignore_errors=True)

    # --- parts -----------------------------------------------------------------------------------

    def _continue(self) -> None:
        """Take up the dataset that is there; remove what a write that was cut off has left."""
        from rollbus_core.datasets.reader import Dataset

        before = Dataset(self.folder)
        if before.manifest is None:
            raise ConfigError(f"{self.folder} was not written by Rollbus; it is only read, not added to")
        if {n: f.to_data() for n, f in before.features.items()} != self._feature_data():
            raise ConfigError(
                f"{self.folder} has other features than {self.spec.name}: "
                f"{', '.join(before.features)}; write to another folder"
            )
        self._manifest, self.tasks, self.fps = before.manifest, before.tasks(), before.fps
        files.sweep(self.folder, self._manifest["files"] | {files.TASKS: None})
        self.num_episodes, self.num_frames = before.num_episodes, before.num_frames
        for name, data in files.read_json(self.folder / files.STATS).items():
            self._stats[name].load(data)

    def _feature_data(self) -> dict[str, Any]:
        return {name: feature.to_data() for name, feature in self.features.items()}

    def _columns(self, episode: Episode) -> Arrays:
        count = len(episode)
        if not count:
            raise ConfigError("an episode without a decision cannot be added")
        columns = self._observations(episode.obs, count)
        flags = {
            names.DONE: episode.terminated or episode.truncated, names.TERMINATED: episode.terminated,
            names.TRUNCATED: episode.truncated, names.SUCCESS: bool(episode.success),
        }  # fmt: skip
        last = np.arange(count) == count - 1
        columns |= {name: last & flag for name, flag in flags.items() if name in self.features}
        columns[names.ACTION] = _checked("action", episode.action, self.features[names.ACTION], count)
        columns[names.REWARD], columns[names.SOURCE] = episode.reward, episode.source
        columns[names.SEED] = np.full(count, episode.seed)
        if episode.source.max(initial=0) >= len(SOURCES):
            raise ConfigError(
                f"source {episode.source.max()} of an action; sources are 0 to {len(SOURCES) - 1}"
            )
        return columns

    def _observations(self, obs: Arrays, count: int) -> Arrays:
        columns = {}
        for key, array in self.spec.observation.items():
            feature = self.features[names.observation_feature(key)]
            if key not in obs:
                raise ConfigError(f"an episode lacks observation {key!r}; it has {', '.join(obs)}")
            values = obs[key]
            if feature.is_image and array.layout == "CHW":
                values = np.moveaxis(values, 1, -1)
            columns[feature.name] = _checked(key, values, feature, count)
        return columns

    def _add_end(self, episode: Episode, number: int) -> None:
        if episode.final_obs is None:
            return
        last = self._observations({key: value[None] for key, value in episode.final_obs.items()}, 1)
        row = {name: to_arrow(self.features[name], values) for name, values in last.items()}
        row[names.EPISODE] = to_arrow(self.features[names.EPISODE], np.array([number]))
        self._final.add(row)

    def _add_row(self, episode: Episode, number: int, at: int) -> None:
        chunk, file = files.place(at)
        own_chunk, own_file = files.place(self._episodes.number)
        self._episodes.add(
            {
                "episode_index": [number], "tasks": [[episode.task]], "length": [len(episode)],
                "data/chunk_index": [chunk], "data/file_index": [file],
                "dataset_from_index": [self.num_frames],
                "dataset_to_index": [self.num_frames + len(episode)],
                "meta/episodes/chunk_index": [own_chunk], "meta/episodes/file_index": [own_file],
                "return": [episode.total_reward], "success": [episode.success], "seed": [episode.seed],
                **({"options": [json.dumps(episode.options)]} if self._manifest.get("options") else {}),
            }
        )  # fmt: skip

    def _note_options(self, episode: Episode) -> None:
        """A dataset has a column for what resets got from its first episode on, or never."""
        if not self.num_episodes and episode.options is not None:
            self._manifest["options"] = True
        if episode.options is not None and not self._manifest.get("options"):
            raise ConfigError(
                f"{self.folder} says of no episode what its reset got, this one began with "
                f"{episode.options}; write to another folder"
            )

    def _info(self) -> dict[str, Any]:
        return {
            "codebase_version": names.CODEBASE_VERSION, "robot_type": self.spec.name,
            "total_episodes": self.num_episodes, "total_frames": self.num_frames,
            "total_tasks": len(self.tasks), "chunks_size": files.CHUNK_FILES,
            "data_files_size_in_mb": 100, "video_files_size_in_mb": 200, "fps": self.fps,
            "splits": {"train": f"0:{self.num_episodes}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", "video_path": None,
            "features": self._feature_data(),
        }  # fmt: skip


def _checked(what: str, values: np.ndarray, feature: Feature, count: int) -> np.ndarray:
    """[T, *shape] of the feature."""
    expected = (count, *feature.shape)
    if values.shape != expected and values.shape != expected[: values.ndim]:
        raise ConfigError(f"{what} is {list(values.shape)}, {list(expected)} is expected")
    if values.size != np.prod(expected):
        raise ConfigError(f"{what} is {list(values.shape)}, {list(expected)} is expected")
    return values.reshape(expected)
