"""The actor's tickets: when it asks for one, when it waits, what it does without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from actor_kit import Rig, ScriptedHub, decisions, feed, stream_of
from registry_kit import ScriptedRegistry

from rollbus_core.config.models import ActorConfig
from rollbus_core.slabs import SlabFolder
from rollbus_core.weights.base import to_image
from rollbus_core.weights.shm import WeightReader, WeightWriter
from rollbus_wire.messages import Assign, Fault


def test_without_a_ticket_the_chunk_is_closed_and_the_action_waits(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig = Rig(tmp_path, [hub], feed=feed(4))
    rig.store.granting = False
    rig.idle()
    assert not hub.acts and len(rig.store.requests) == 1
    rig.store.granting = True
    rig.run(lambda: len(hub.acts) == 2)
    rig.store.granting = False
    rig.idle()
    assert len(hub.acts) == 4 and len(rig.store.chunks) == 1
    assert rig.actor.numbers()["ticket_wait_fraction"] > 0
    rig.store.granting = True
    rig.run(lambda: len(rig.store.chunks) == 2)
    assert decisions(rig.store.chunks, 0) == stream_of(9, 8)


def test_the_next_ticket_is_asked_for_while_the_last_step_runs(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig = Rig(tmp_path, [hub], feed=feed(4))
    rig.run(lambda: len(hub.acts) == 3)
    assert len(rig.store.requests) == 1
    hub.paused = True
    rig.run(lambda: len(hub.acts) == 4)
    rig.idle()
    assert len(rig.store.requests) == 2 and not rig.store.chunks


def test_a_ticket_for_newer_weights_waits_for_them(tmp_path: Path) -> None:
    hub, registry = ScriptedHub([9, 9]), ScriptedRegistry()
    prefix = tmp_path / "weights-policy"
    rig = Rig(
        tmp_path, [hub], feed=feed(4), registry=registry.actor_end, weights=WeightReader(prefix)
    )  # fmt: skip
    rig.run(lambda: registry.poll() and rig.actor.member.registered)
    rig.store.min_version = [0, 2]
    registry.link.send(Assign(hub.name, hub.name, [1, 1]))
    rig.idle()
    assert rig.store.open and not hub.acts
    writer = WeightWriter(prefix)
    notice = writer.publish((0, 2), to_image({"w": np.zeros(1, np.float32)}))
    assert notice is not None
    registry.link.send(notice)
    rig.run(lambda: rig.store.chunks)
    assert (rig.store.chunks[0]["version"] == 2).all()
    assert rig.store.commits[0].oldest == [0, 2]


def test_random_tickets_ask_for_random_actions(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([9, 9])], feed=feed(4))
    rig.store.mode = "random"
    rig.run(lambda: rig.store.chunks)
    assert (rig.store.chunks[0]["source"] == 1).all()
    assert rig.engine.calls[0]["ask"].mode == "random"
    rig.store.mode = "sample"
    rig.run(lambda: len(rig.store.chunks) == 3)
    assert not rig.store.chunks[2]["source"].any()


def test_rows_of_two_modes_share_a_pass(tmp_path: Path) -> None:
    hubs = [ScriptedHub([9, 9], "a"), ScriptedHub([9], "b", record=False)]
    rig = Rig(tmp_path, hubs, feed=feed(4), config=ActorConfig(batch_wait_ms=20))
    rig.store.mode = "random"
    rig.run(lambda: any(call["rows"] == 3 for call in rig.engine.calls), turns=10**6)
    call = next(call for call in rig.engine.calls if call["rows"] == 3)
    assert sorted(call["ask"].mode) == ["random", "random", "sample"]


def test_dropped_chunks_are_counted_by_reason(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([9, 9])], feed=feed(4))
    rig.store.reason = "lag"
    rig.run(lambda: rig.actor.numbers().get("dropped_lag", 0) >= 2)
    rig.store.reason = ""
    rig.run(lambda: rig.actor.numbers()["chunks"] >= 1)


def test_a_refused_ticket_is_asked_for_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([9, 9])], feed=feed(4))
    rig.store.granting = False
    rig.run(lambda: rig.store.waiting)
    rig.store.link.send(Fault("no-table", "no such table"), re=rig.store.waiting.pop().id)
    rig.store.granting = True
    rig.run(lambda: rig.store.chunks, turns=10**6)
    assert rig.actor.numbers()["dropped_ticket_refused"] == 1


def test_a_slab_that_is_gone_costs_a_ticket_only(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([9, 9])], feed=feed(4), slabs=SlabFolder(tmp_path))
    grant, slabs = rig.store._grant, rig.store.slabs

    def grant_and_lose(envelope: Any) -> None:
        grant(envelope)
        if rig.store._next == 2:
            slabs.path(rig.store.open[2][1][0]).unlink()
            rig.actor.recorder.slabs.forget(rig.store.open[2][1][0])  # type: ignore[union-attr]

    rig.store._grant = grant_and_lose  # type: ignore[method-assign]
    rig.run(lambda: len(rig.store.chunks) >= 3)
    assert rig.actor.numbers()["dropped_slab_gone"] == 1 and rig.store.cancelled == [2]
    assert decisions(rig.store.chunks, 0) == stream_of(9, 12)
