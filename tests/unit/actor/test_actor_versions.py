"""From a notice to weights that act, with versions on their way, overwritten, or changed under the lock."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbus_actor.engines.base import check_tensors
from rollbus_actor.versions import Versions
from rollbus_core.version import Version
from rollbus_core.weights.shm import Header, WeightReader, WeightWriter, buffer_path
from rollbus_wire.errors import SpecError, StaleRead
from rollbus_wire.messages import Notice


class Engine:
    """Copies in place, as every engine must."""

    def __init__(self) -> None:
        self.version: Version | None = None
        self.own = np.zeros(4)
        self.during: Any = lambda: None

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        check_tensors({"w": (4,)}, {name: value.shape for name, value in tensors.items()}, version)
        np.copyto(self.own, tensors["w"])
        self.during()
        self.version = version


class Elsewhere(WeightReader):
    """A host where versions come later than their notices."""

    here: Notice | None = None

    def local(self, notice: Notice) -> Notice | None:
        return self.here

    def open(self, notice: Notice, verify: bool = True) -> AbstractContextManager[Mapping[str, np.ndarray]]:
        return super().open(notice, verify)


@pytest.fixture
def writer(tmp_path: Path) -> WeightWriter:
    return WeightWriter(tmp_path / "weights-policy")


def publish(writer: WeightWriter, number: int) -> Notice:
    notice = writer.publish((0, number), {"w": np.full(4, float(number))})
    assert notice is not None
    return notice


def test_latency_counts_from_the_learners_publish(writer: WeightWriter) -> None:
    engine = Engine()
    versions = Versions(WeightReader(writer.prefix), engine)  # type: ignore[arg-type]
    assert versions.numbers() == {"stale_reads": 0, "refused_versions": 0}, "nothing acts yet"
    notice = publish(writer, 3)
    notice.published_mono_s -= 0.25
    versions.noticed(notice)
    assert versions.apply() is not None and engine.version == Version(0, 3)
    assert (engine.own == 3).all()
    assert 250 <= versions.numbers()["weights_latency_ms"] < 5000


@pytest.mark.parametrize("wrong", [{}, {"w": np.zeros(5)}, {"w": np.zeros(4), "v": np.zeros(1)}])
def test_a_missing_or_strange_tensor_leaves_the_old_version_whole(
    writer: WeightWriter, wrong: dict[str, np.ndarray]
) -> None:
    engine = Engine()
    versions = Versions(WeightReader(writer.prefix), engine)  # type: ignore[arg-type]
    versions.noticed(publish(writer, 1))
    assert versions.apply() is not None
    bad = writer.publish((0, 2), wrong)
    assert bad is not None
    versions.noticed(bad)
    assert versions.apply() is None and not versions.pending
    assert engine.version == Version(0, 1) and (engine.own == 1).all()
    assert versions.numbers()["refused_versions"] == 1 and versions.last_problem
    versions.noticed(publish(writer, 3))
    assert versions.apply() is not None and (engine.own == 3).all() and versions.last_problem == ""


def test_without_any_version_a_strange_one_ends_the_process(writer: WeightWriter) -> None:
    versions = Versions(WeightReader(writer.prefix), Engine())  # type: ignore[arg-type]
    bad = writer.publish((0, 1), {"v": np.zeros(4)})
    assert bad is not None
    versions.noticed(bad)
    with pytest.raises(SpecError):
        versions.apply()


def test_a_version_that_is_on_its_way_is_waited_for(writer: WeightWriter) -> None:
    engine, source = Engine(), Elsewhere(writer.prefix)
    versions = Versions(source, engine)  # type: ignore[arg-type]
    first, second, third = (publish(writer, number) for number in (1, 2, 3))
    versions.noticed(third)
    assert versions.apply() is None and versions.pending
    source.here = second
    applied = versions.apply()
    assert applied is not None and applied.version == [0, 2] and versions.pending, "better than nothing"
    assert versions.apply() is None and engine.version == Version(0, 2), "not twice"
    source.here = third
    assert versions.apply() is not None and not versions.pending and (engine.own == 3).all()
    assert first.version == [0, 1]


def test_damage_is_counted_and_the_old_version_goes_on(writer: WeightWriter) -> None:
    engine = Engine()
    versions = Versions(WeightReader(writer.prefix), engine)  # type: ignore[arg-type]
    versions.noticed(publish(writer, 1))
    versions.apply()
    notice = publish(writer, 2)
    with open(buffer_path(writer.prefix, notice.buffer), "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    versions.noticed(notice)
    assert versions.apply() is None and not versions.pending
    assert engine.version == Version(0, 1) and (engine.own == 1).all()
    assert versions.numbers()["stale_reads"] == 1 and "old version stays" in versions.last_problem


def test_a_mixture_ends_the_process(writer: WeightWriter) -> None:
    engine, notice = Engine(), publish(writer, 1)
    versions = Versions(WeightReader(writer.prefix), engine)  # type: ignore[arg-type]

    def write_without_the_lock() -> None:
        with open(buffer_path(writer.prefix, notice.buffer), "r+b") as file:
            Header(generation=9).write(file.fileno())

    engine.during = write_without_the_lock
    versions.noticed(notice)
    with pytest.raises(StaleRead, match="generation 9"):
        versions.apply()
