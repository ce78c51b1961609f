"""The actor on its links: attach, batching, the audit's lines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from actor_kit import Rig, ScriptedHub, decisions, feed, stream_of
from registry_kit import ScriptedRegistry

from rollbus_actor.sent_log import SentLog
from rollbus_core.config.models import ActorConfig
from rollbus_core.rng import decision_seeds, stream
from rollbus_launch.audit_records import Records
from rollbus_wire.errors import FaultReceived
from rollbus_wire.messages import Assign, Fault, Heartbeat, Message, Released, Tick
from rollbus_wire.polling import drain


def test_unrecorded_slices_act_without_tickets(tmp_path: Path) -> None:
    hub = ScriptedHub([3, 3], record=False)
    rig = Rig(tmp_path, [hub], feed=feed(4))
    rig.store.granting = False
    rig.run(lambda: len(hub.acts) >= 20)
    assert not rig.store.requests
    assert rig.actor.numbers()["unrecorded"] >= 40


def test_seeds_are_a_function_of_episode_and_step(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [ScriptedHub([3, 4], record=False)], seed=5, noise_stream="some-noise")
    rig.run(lambda: len(rig.engine.calls) >= 5)
    key = stream(5, "some-noise")
    for call in rig.engine.calls:
        expected = decision_seeds(key, call["x"][:, 1].astype(np.int64), call["x"][:, 2].astype(np.int32))
        assert np.array_equal(call["seeds"], expected)


def test_assignments_come_from_the_registry(tmp_path: Path) -> None:
    hub, registry = ScriptedHub([5, 5]), ScriptedRegistry()
    rig = Rig(tmp_path, [hub], feed=feed(4), registry=registry.actor_end)
    rig.run(lambda: registry.poll() and rig.actor.member.registered)
    for _ in range(2):
        registry.link.send(Assign(hub.name, hub.name, [1, 7]))
    rig.run(lambda: len(rig.store.chunks) >= 2)
    assert hub.fence == 1, "the same assignment twice is one attachment"
    assert list(rig.actor.numbers()["held"]) == [hub.name]
    assert list(registry.all(Heartbeat)[-1].stats["held"]) == [hub.name]
    assert registry.all(Heartbeat)[-1].state == "run"


def test_a_refused_slice_is_released(tmp_path: Path) -> None:
    hub, registry = ScriptedHub([5, 5]), ScriptedRegistry()
    refused: list[Message] = []

    def refuse() -> None:
        for envelope in drain(hub.link):
            refused.append(envelope.message)
            hub.link.send(Fault("stale-assignment", "an older one"), re=envelope.id)

    hub.poll = refuse  # type: ignore[method-assign]
    rig = Rig(tmp_path, [hub], feed=feed(4), registry=registry.actor_end)
    rig.run(lambda: registry.poll() and rig.actor.member.registered)
    registry.link.send(Assign(hub.name, hub.name, [1, 7]))
    rig.run(lambda: registry.all(Released))
    assert registry.all(Released)[0].assignment == [1, 7]
    assert "stale-assignment" in registry.all(Released)[0].reason
    assert not rig.actor.holdings.sessions


def test_without_a_registry_a_refused_slice_is_asked_for_again(tmp_path: Path) -> None:
    hub = ScriptedHub([5, 5], record=False)
    attach, times = hub.attach, []

    def refuse_twice(re: int) -> None:
        times.append(time.monotonic())
        if len(times) < 3:
            hub.link.send(Fault("unknown-slice", "not yet"), re=re)
        else:
            attach(re)

    hub.attach = refuse_twice  # type: ignore[method-assign]
    rig = Rig(tmp_path, [hub])
    rig.run(lambda: len(hub.acts) >= 3, turns=10**6)
    assert len(times) == 3


def test_a_refused_action_ends_the_actor(tmp_path: Path) -> None:
    hub = ScriptedHub([5, 5], record=False)
    rig = Rig(tmp_path, [hub])
    rig.run(lambda: hub.acts)
    hub.link.send(Fault("spec", "row 1: action nan is not finite"))
    with pytest.raises(FaultReceived, match="row 1: action nan"):
        rig.idle()


def test_ticks_of_an_older_fence_are_ignored(tmp_path: Path) -> None:
    hub = ScriptedHub([5, 5], record=False)
    rig = Rig(tmp_path, [hub])
    rig.run(lambda: len(hub.acts) >= 2)
    hub.paused = True
    rig.idle()
    acts = len(hub.acts)
    none = np.zeros(0, np.int32)
    rows = np.arange(2, dtype=np.int32)
    hub.link.send(
        Tick(
            hub.name, hub.fence - 1, 99, rows, {"x": hub._x()}, hub.episode, hub.step, rows,
            rows[:, None] * 1.0, rows > 9, rows > 9, rows > 9, none, {"x": none}, none, none, none, none,
        )
    )  # fmt: skip
    rig.idle()
    assert len(hub.acts) == acts and rig.actor.numbers()["stale_ticks"] == 1


# --- batching --------------------------------------------------------------------------------------


def test_slices_of_several_hubs_share_a_pass(tmp_path: Path) -> None:
    hubs = [ScriptedHub([9, 9], "a"), ScriptedHub([7], "b"), ScriptedHub([5] * 3, "c")]
    rig = Rig(tmp_path, hubs, feed=feed(4))
    rig.run(lambda: len(rig.store.chunks) >= 9)
    assert max(call["rows"] for call in rig.engine.calls) == 6
    names = [request.slice for request in rig.store.requests]
    assert set(names) == {"a", "b", "c"}
    assert rig.actor.numbers()["batch_rows_mean"] > 3
    for chunk in rig.store.chunks:
        for row in range(chunk["lengths"].size):
            decisions([chunk], row)


def test_max_batch_divides_between_slices_only(tmp_path: Path) -> None:
    hubs = [ScriptedHub([9] * n, str(n)) for n in (3, 2, 4)]
    rig = Rig(tmp_path, hubs, feed=feed(4), config=ActorConfig(max_batch=4))
    rig.run(lambda: len(rig.store.chunks) >= 6)
    assert max(call["rows"] for call in rig.engine.calls) == 4


def test_a_batch_waits_for_more(tmp_path: Path) -> None:
    hubs = [ScriptedHub([9, 9], "a", record=False), ScriptedHub([9], "b", record=False)]
    rig = Rig(tmp_path, hubs, config=ActorConfig(batch_wait_ms=30, max_batch=3))
    began = time.monotonic()
    rig.run(lambda: rig.engine.calls, turns=10**6)
    assert rig.engine.calls[0]["rows"] == 3 and time.monotonic() - began < 0.03
    hubs[1].paused = True
    rig.run(lambda: rig.engine.calls[-1]["rows"] == 2, turns=10**6)
    assert rig.actor.wake_in_s() <= 0.1


def test_deterministic_slices_have_passes_of_their_own(tmp_path: Path) -> None:
    hubs = [ScriptedHub([9, 9], "a"), ScriptedHub([7], "b")]
    rig = Rig(tmp_path, hubs, feed=feed(4), deterministic=True)
    rig.run(lambda: len(rig.store.chunks) >= 6)
    assert {call["rows"] for call in rig.engine.calls} == {1, 2}


def test_the_audit_has_every_chunk_before_it_is_sent_and_every_answer(tmp_path: Path) -> None:
    log = SentLog(tmp_path / "audit", "me")
    rig = Rig(tmp_path, [ScriptedHub([3, 4])], feed=feed(4), audit=log)
    chunks = lambda: Records.read(tmp_path / "audit").chunks  # noqa: E731
    rig.run(lambda: len(chunks()) == 2 and chunks()[1].answered)
    first, second = chunks()
    assert (first.sequence, second.sequence) == (1, 2)
    steps = [(e, s) for e, begin, length in first.spans for s in range(begin, begin + length)]
    assert sorted(steps) == sorted(stream_of(3, 4) + stream_of(4, 4))
    begun = json.loads((tmp_path / "audit" / "sent-me.jsonl").read_text().partition("\n")[0])
    assert begun["versions"] == ["0.1", "0.1"]
