"""When an actor takes new weights, and how chunks are labelled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from actor_kit import CounterEngine, Rig, ScriptedHub
from registry_kit import ScriptedRegistry, publish, start_with_registry

from rollbus_core.version import Version
from rollbus_core.weights.base import to_image
from rollbus_core.weights.shm import WeightReader, WeightWriter
from rollbus_wire.messages import Applied, Notice, to_data


def test_not_ready_until_a_version_is_applied(tmp_path: Path) -> None:
    prefix = tmp_path / "weights-policy"
    engine = CounterEngine()
    engine.version = None
    notice = WeightWriter(prefix).publish((1, 4), to_image({"w": np.zeros(1, np.float32)}))
    assert notice is not None
    registry = ScriptedRegistry(notices=[to_data(notice)])
    rig = Rig(tmp_path, [], engine=engine, registry=registry.actor_end, weights=WeightReader(prefix))
    assert not rig.actor.ready and rig.actor.state == "start"
    rig.run(lambda: registry.poll() and rig.actor.ready)
    applied = registry.all(Applied)
    assert applied[0].version == [1, 4] and applied[0].delay_s >= 0
    assert engine.version == Version(1, 4)


def test_newest_notice_wins_and_stale_ones_are_counted(tmp_path: Path) -> None:
    prefix = tmp_path / "weights-policy"
    writer, registry = WeightWriter(prefix), ScriptedRegistry()
    image = to_image({"w": np.zeros(1, np.float32)})
    notices = [writer.publish((1, n), image) for n in range(5)]
    rig = Rig(tmp_path, [], registry=registry.actor_end, weights=WeightReader(prefix))
    rig.run(lambda: registry.poll() and rig.actor.member.registered)
    registry.link.send(notices[0])  # type: ignore[arg-type]
    rig.idle(2)
    assert rig.actor.numbers()["stale_reads"] == 1 and rig.engine.version == Version(0, 1)
    for n in (4, 3):
        registry.link.send(notices[n])  # type: ignore[arg-type]
    rig.idle(2)
    assert rig.engine.version == Version(1, 4)
    registry.link.send(Notice("policy", [0, 99], 0, 1, 0, 0))
    rig.idle(2)
    assert rig.engine.version == Version(1, 4) and rig.actor.numbers()["stale_reads"] == 1


def test_deterministic_weights_change_only_between_chunks(tmp_path: Path) -> None:
    prefix = tmp_path / "weights-policy"
    writer, hub = WeightWriter(prefix), ScriptedHub([9, 9])
    rig, registry = start_with_registry(
        tmp_path, hub, weights=WeightReader(prefix), deterministic=True
    )  # fmt: skip
    rig.run(lambda: len(hub.acts) == 5)
    registry.link.send(publish(writer, (0, 2)))
    rig.run(lambda: len(rig.store.chunks) == 2)
    assert (rig.store.chunks[0]["version"] == 1).all()
    assert (rig.store.chunks[1]["version"] == 2).all()


def test_a_chunk_is_labelled_per_decision(tmp_path: Path) -> None:
    prefix = tmp_path / "weights-policy"
    writer, hub = WeightWriter(prefix), ScriptedHub([9, 9])
    rig, registry = start_with_registry(tmp_path, hub, weights=WeightReader(prefix))
    rig.run(lambda: len(hub.acts) == 5)
    registry.link.send(publish(writer, (0, 2)))
    rig.run(lambda: rig.store.chunks)
    versions = rig.store.chunks[0]["version"][:, 0].tolist()
    assert set(versions) == {1, 2} and versions == sorted(versions)
    assert (rig.store.commits[0].oldest, rig.store.commits[0].newest) == ([0, 1], [0, 2])
