"""Labels of a data set's decisions, in a folder of their own: good, poor, or not known.

``labels.parquet`` has one row per frame (episode_index, frame_index, score, label), ``labels.json`` says who
made them of what. They belong to one content of one data set.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_core.datasets import files
from rollbus_core.datasets.reader import Dataset
from rollbus_wire.errors import ConfigError

TABLE, CARD = "labels.parquet", "labels.json"
GOOD, POOR, UNKNOWN = 1, 0, -1


class Labels:
    """Score and label of every frame, by episode."""

    def __init__(self, scores: Mapping[int, np.ndarray], labels: Mapping[int, np.ndarray]) -> None:
        self.scores, self.labels = dict(scores), dict(labels)

    def of(self, episode: int, length: int) -> np.ndarray:
        """int8 [T]. Raises `ConfigError` for an episode that has other frames."""
        found = self.labels.get(episode)
        if found is None or len(found) != length:
            have = "none" if found is None else len(found)
            raise ConfigError(
                f"episode {episode} has {length} frames, its labels {have}; label the data anew"
            )
        return found

    def content(self) -> str:
        """Hash of the labels, not of their encoding."""
        state = hashlib.sha256()
        for episode in sorted(self.labels):
            state.update(f"{episode} {len(self.labels[episode])}".encode())
            state.update(self.labels[episode].tobytes() + self.scores[episode].tobytes())
        return state.hexdigest()

    def share(self) -> float:
        """Part of the known labels that are good."""
        known = np.concatenate(list(self.labels.values()))
        known = known[known != UNKNOWN]
        return float((known == GOOD).mean()) if len(known) else 0.0


def write_labels(folder: Path, labels: Labels, card: Mapping[str, Any]) -> None:
    """Write a new ``folder``, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if folder.exists():
        raise ConfigError(f"{folder} exists; give a new folder")
    work = folder.with_name(f".{folder.name}-{os.getpid()}{files.UNFINISHED}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    episodes = sorted(labels.labels)
    table = {
        "episode_index": np.concatenate([np.full(len(labels.labels[e]), e) for e in episodes]),
        "frame_index": np.concatenate([np.arange(len(labels.labels[e])) for e in episodes]),
        "score": np.concatenate([labels.scores[e] for e in episodes]).astype(np.float32),
        "label": np.concatenate([labels.labels[e] for e in episodes]).astype(np.int8),
    }
    pq.write_table(pa.table(table), work / TABLE)
    files.replace(work / CARD, files.to_json({**card, "content": labels.content(), "good": labels.share()}))
    work.rename(folder)
    files.sync(folder.parent)


def read_labels(folder: Path, dataset: Dataset) -> Labels:
    """The labels in ``folder``, which must be those of ``dataset``. Raises `ConfigError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not (folder / CARD).exists():
        raise ConfigError(f"{folder} holds no labels; rollbus label DATASET --out {folder} makes some")
    card = files.read_json(folder / CARD)
    if card.get("dataset") != dataset.content():
        raise ConfigError(f"the labels in {folder} are not of {dataset.folder} as it is now; label it anew")
    try:
        table = pq.read_table(folder / TABLE).to_pydict()
        episode, label = np.asarray(table["episode_index"]), np.asarray(table["label"], np.int8)
        score = np.asarray(table["score"], np.float32)
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ConfigError(f"{folder / TABLE} is not readable: {error}") from None
    cuts = np.flatnonzero(np.diff(episode)) + 1
    names = [int(part[0]) for part in np.split(episode, cuts) if len(part)]
    return Labels(dict(zip(names, np.split(score, cuts))), dict(zip(names, np.split(label, cuts))))
