"""Which episodes come to which table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from datasets_kit import SPEC, episode, write

from rollbus_core.config.models import DataConfig, DataSource
from rollbus_core.datasets.parts import parts, sized
from rollbus_core.feed import Feed, TableConfig
from rollbus_wire.errors import ConfigError


def feed(begin: float, end: float) -> Feed:
    return Feed(
        table=TableConfig(sampler="replay"), num_decisions=4, unit="step", num_batches=1, batch_size=1,
        part=(begin, end),
    )  # fmt: skip


FEEDS = {"demos": feed(0, 0.7), "validation": feed(0.7, 1)}


def config(*sources: dict) -> DataConfig:
    return DataConfig(sources=[DataSource(**source) for source in sources])


def chosen(found: dict, table: str) -> list[list[int]]:
    return [[episode.index for episode in part.episodes] for part in found[table]]


def test_tables_share_the_episodes_and_miss_none(tmp_path: Path) -> None:
    write(tmp_path / "d", [episode(n + 1, n) for n in range(10)])
    found = parts(config({"path": str(tmp_path / "d")}), FEEDS)
    (train,), (held_back,) = chosen(found, "demos"), chosen(found, "validation")
    assert len(train) == 7 and len(held_back) == 3 and sorted(train + held_back) == list(range(10))
    assert train == sorted(train) and train != list(range(7)), "in order, of a shuffled choice"
    again = parts(config({"path": str(tmp_path / "d")}), FEEDS)
    assert chosen(again, "demos") == [train]
    sizes = {
        name: f.table.min_steps for name, f in sized(config({"path": str(tmp_path / "d")}), FEEDS).items()
    }
    assert sizes == {"demos": sum(n + 1 for n in train), "validation": sum(n + 1 for n in held_back)}


def test_what_a_source_leaves_out(tmp_path: Path) -> None:
    write(tmp_path / "d", [episode(2, n) for n in range(6)])  # 1, 3, 5 succeed
    one = {"path": str(tmp_path / "d"), "table": "demos"}
    whole = {"demos": feed(0, 1), "validation": feed(0, 1)}
    assert chosen(parts(config(one), whole), "demos") == [list(range(6))]
    assert chosen(parts(config(one), whole), "validation") == []
    assert chosen(parts(config(one | {"episodes": 4}), whole), "demos") == [[0, 1, 2, 3]]
    assert chosen(parts(config(one | {"successful_only": True}), whole), "demos") == [[1, 3, 5]]
    assert chosen(parts(config(one, one), whole), "demos") == [list(range(6))] * 2


def test_too_few_episodes_to_hold_some_back(tmp_path: Path) -> None:
    write(tmp_path / "d", [episode(2, 0)])
    with pytest.raises(ConfigError, match="1 usable episodes, too few for table 'demos'"):
        parts(config({"path": str(tmp_path / "d")}), FEEDS)


def read_rewards(part, indices: list[int]) -> list[np.ndarray]:
    return [each.reward for _, each in part.read(SPEC, indices)]


def test_rewards_of_a_sham_change_places(tmp_path: Path) -> None:
    """The same numbers elsewhere, episodes as long; the same again, and from the middle on."""
    write(tmp_path / "d", [episode(n + 2, n) for n in range(6)])
    one, whole = {"path": str(tmp_path / "d")}, {"demos": feed(0, 1)}
    (as_they_are,) = parts(config(one), whole)["demos"]
    (sham,) = parts(config(one | {"permute_rewards": 3}), whole)["demos"]
    (other,) = parts(config(one | {"permute_rewards": 4}), whole)["demos"]
    every = list(range(6))
    right, mixed = read_rewards(as_they_are, every), read_rewards(sham, every)
    assert [len(r) for r in right] == [len(m) for m in mixed]
    flat = np.concatenate(mixed)
    assert sorted(flat) == sorted(np.concatenate(right)) and (flat != np.concatenate(right)).any()
    assert (flat != np.concatenate(read_rewards(other, every))).any()
    for again, before in zip(read_rewards(sham, [4, 5]), mixed[4:]):
        assert again.tolist() == before.tolist()
