"""Which episodes of which data set come to which table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollbus_core.config.models import DataConfig, DataSource
from rollbus_core.datasets.episode import Episode
from rollbus_core.datasets.features import without_expert
from rollbus_core.datasets.fit import FittedDataset
from rollbus_core.datasets.labels import read_labels
from rollbus_core.datasets.reader import Dataset, EpisodeInfo
from rollbus_core.datasets.sham import permuted_rewards
from rollbus_core.feed import TRAINING_TABLE, Feed
from rollbus_core.rng import mix
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import EnvSpec


@dataclass(frozen=True)
class Part:
    """What one data set gives to one table."""

    dataset: Dataset
    source: DataSource
    #: Number of the data set in the recipe.
    number: int
    #: In the order in which they come.
    episodes: tuple[EpisodeInfo, ...]

    @property
    def num_steps(self) -> int:
        """Decisions of all its episodes."""
        return sum(episode.length for episode in self.episodes)

    def read(self, spec: EnvSpec, indices: list[int]) -> Iterator[tuple[int, Episode]]:
        """(index, episode) of ``indices``, in order, with their labels and, for a sham, others' rewards."""
        labels = read_labels(Path(self.source.labels), self.dataset) if self.source.labels else None
        rewards = self._permuted_rewards()
        for index, episode in self.fitted(spec).episodes(indices, indices[0]):
            if labels is not None:
                episode.label = labels.of(index, len(episode))
            episode.reward = rewards.get(index, episode.reward)
            yield index, episode

    def _permuted_rewards(self) -> dict[int, np.ndarray]:
        """Of all its episodes, whichever are read; empty: they stay."""
        if not (seed := self.source.permute_rewards):
            return {}
        return permuted_rewards(self.dataset, {episode.index for episode in self.episodes}, seed)

    def fitted(self, spec: EnvSpec) -> FittedDataset:
        """The data set as ``spec`` wants it. Raises `ConfigError`."""
        return FittedDataset(self.dataset, without_expert(spec), self.source.keys, self.source.rotations)


def parts(config: DataConfig, feeds: Mapping[str, Feed]) -> dict[str, list[Part]]:
    """Table -> parts of all sources; reads meta data only. Raises `ConfigError`."""
    found: dict[str, list[Part]] = {name: [] for name in feeds if name != TRAINING_TABLE}
    for number, source in enumerate(config.sources):
        dataset = Dataset(Path(source.path))
        usable = _usable(dataset, source)
        for table in found:
            if source.table in ("", table):
                chosen = _share(usable, feeds[table].part)
                if not chosen:
                    begin, end = feeds[table].part
                    raise ConfigError(
                        f"{source.path} has {len(usable)} usable episodes, too few for table {table!r}, "
                        f"which gets the part from {begin:g} to {end:g} of them; collect more, or change "
                        "the split in the algorithm's settings"
                    )
                found[table].append(Part(dataset, source, number, chosen))
    return found


def sized(config: DataConfig, feeds: Mapping[str, Feed]) -> dict[str, Feed]:
    """``feeds`` with tables that give batches once all data is in them."""
    found = parts(config, feeds)
    return {
        name: feed if name not in found else feed.model_copy(
            update={
                "table": feed.table.model_copy(
                    update={"min_steps": sum(part.num_steps for part in found[name])}
                )
            }
        )
        for name, feed in feeds.items()
    }  # fmt: skip


def _usable(dataset: Dataset, source: DataSource) -> list[EpisodeInfo]:
    episodes = dataset.episodes()
    usable = episodes[: source.episodes or None]
    if not source.successful_only:
        return usable
    if all(episode.success is None for episode in usable):
        raise ConfigError(f"{source.path} does not say which episodes succeeded; set successful_only: false")
    return [episode for episode in usable if episode.success]


def _share(episodes: list[EpisodeInfo], part: tuple[float, float]) -> tuple[EpisodeInfo, ...]:
    """Those at the places of ``part`` in the shuffled order, in their own order."""
    begin, end = (int(edge * len(episodes)) for edge in part)
    order = np.argsort(mix(np.arange(len(episodes), dtype=np.uint64)), kind="stable")
    return tuple(episodes[place] for place in sorted(order[begin:end].tolist()))
