"""How an actor gives up a slice: released, taken away, drained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from actor_kit import ScriptedHub, decisions, stream_of
from registry_kit import start_with_registry, stop_in_the_sixth_step

from rollbus_wire.messages import Assign, Detached, Release, Released


def test_release_cuts_at_the_next_tick_and_loses_nothing(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig, registry = start_with_registry(tmp_path, hub)
    stop_in_the_sixth_step(rig, hub)
    registry.link.send(Release(hub.name, [1, 1]))
    rig.idle()
    assert not registry.all(Released), "the running step is waited for"
    hub.send_tick(np.arange(2))
    rig.run(lambda: registry.all(Released) and rig.store.chunks)
    assert registry.all(Released)[0].assignment == [1, 1]
    assert [d.fence for d in hub.detached] == [1]
    assert rig.store.chunks[0]["lengths"].tolist() == [6, 6] and len(hub.acts) == 6
    assert decisions(rig.store.chunks, 1) == stream_of(9, 6)
    # A holder without the slice answers again.
    registry.link.send(Release(hub.name, [1, 1]))
    rig.run(lambda: len(registry.all(Released)) == 2)


def test_release_does_not_wait_for_a_step_that_hangs(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig, registry = start_with_registry(tmp_path, hub)
    stop_in_the_sixth_step(rig, hub)
    registry.link.send(Release(hub.name, [1, 1]))
    rig.run(lambda: registry.all(Released) and rig.store.chunks, turns=10**7)
    assert rig.store.chunks[0]["lengths"].tolist() == [5, 5]
    assert rig.store.chunks[0]["obs/x"][5, :, 2].tolist() == [5, 5]
    assert rig.actor.numbers()["dropped_unrecorded"] == 2


def test_release_while_waiting_for_a_ticket(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig, registry = start_with_registry(tmp_path, hub)
    rig.store.granting = False
    rig.run(lambda: rig.store.waiting)
    registry.link.send(Release(hub.name, [1, 1]))
    rig.run(lambda: registry.all(Released))
    rig.store.granting = True
    rig.run(lambda: rig.store.cancelled == [1])
    assert hub.detached and not hub.acts


def test_a_slice_that_is_taken_away_is_cut_at_the_last_outcome(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig, registry = start_with_registry(tmp_path, hub)
    stop_in_the_sixth_step(rig, hub)
    hub.link.send(Detached(hub.name, hub.fence, "another actor attached"))
    rig.run(lambda: rig.store.chunks)
    assert rig.store.chunks[0]["lengths"].tolist() == [5, 5]
    assert decisions(rig.store.chunks, 0) == stream_of(9, 5)
    assert registry.all(Released)[0].reason == "another actor attached"


def test_an_outcome_across_a_change_of_holder_is_in_no_chunk(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig, registry = start_with_registry(tmp_path, hub)
    stop_in_the_sixth_step(rig, hub)
    registry.link.send(Assign(hub.name, hub.name, [1, 2]))
    hub.paused = False
    rig.run(lambda: len(rig.store.chunks) == 2)
    assert hub.fence == 2 and hub.straddled == 2
    assert decisions(rig.store.chunks, 0) == [(n // 9, n % 9) for n in range(22) if n != 5][:21]


def test_drain_gives_everything_up_and_commits(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig, registry = start_with_registry(tmp_path, hub)
    rig.run(lambda: len(hub.acts) == 5)
    rig.actor.drain()
    rig.run(lambda: rig.actor.finished, turns=10**6)
    assert sum(len(decisions(rig.store.chunks, row)) for row in (0, 1)) == 2 * len(hub.acts)
    assert hub.detached and registry.all(Released)
    registry.link.send(Assign(hub.name, hub.name, [1, 9]))
    rig.actor.stop()


def test_a_deterministic_run_commits_no_part_of_a_chunk(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig, registry = start_with_registry(tmp_path, hub, deterministic=True)
    rig.run(lambda: len(hub.acts) == 5)
    rig.actor.drain()
    rig.run(lambda: registry.all(Released) and rig.store.cancelled == [1], turns=10**6)
    assert not rig.store.chunks and hub.detached
    assert rig.actor.numbers()["dropped_unrecorded"] >= 8
