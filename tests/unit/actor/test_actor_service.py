"""The actor on its links: attach, tickets, release, loss, weights, batching."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from actor_kit import CounterEngine, Rig, ScriptedHub, decisions, feed, stream_of

from rollbus_actor.sent_log import SentLog
from rollbus_core.config.models import ActorConfig
from rollbus_core.rng import decision_seeds, stream
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version
from rollbus_core.weights.base import to_image
from rollbus_core.weights.shm import WeightReader, WeightWriter
from rollbus_launch.audit_records import Records
from rollbus_wire.errors import FaultReceived
from rollbus_wire.link import local_pair
from rollbus_wire.messages import (
    Applied,
    Assign,
    Detached,
    Fault,
    Heartbeat,
    Message,
    Notice,
    Register,
    Registered,
    Release,
    Released,
    Tick,
    to_data,
)
from rollbus_wire.polling import drain


class ScriptedRegistry:
    """Answers `register` and keeps what else was said."""

    def __init__(self, notices: list[Any] | None = None) -> None:
        self.link, self.actor_end = local_pair(senders=("registry", "actor"))
        self.heard: list[Message] = []
        self.notices = notices or []

    def poll(self) -> bool:
        """Always true, so that a condition can begin with it."""
        for envelope in drain(self.link):
            self.heard.append(envelope.message)
            if isinstance(envelope.message, Register):
                self.link.send(Registered(1, 0, 0.0, 3.0, notices=self.notices))
        return True

    def all(self, kind: type) -> list[Any]:
        self.poll()
        return [message for message in self.heard if isinstance(message, kind)]


def publish(writer: WeightWriter, version: tuple[int, int]) -> Notice:
    notice = writer.publish(version, to_image({"w": np.zeros(1, np.float32)}))
    assert notice is not None
    return notice


# --- attach --------------------------------------------------------------------------------------


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


# --- tickets -------------------------------------------------------------------------------------


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


# --- the end of a session --------------------------------------------------------------------------


def start_with_registry(tmp_path: Path, hub: ScriptedHub, **options: Any) -> tuple[Rig, ScriptedRegistry]:
    registry = ScriptedRegistry()
    rig = Rig(tmp_path, [hub], feed=feed(16), registry=registry.actor_end, **options)
    rig.run(lambda: registry.poll() and rig.actor.member.registered)
    registry.link.send(Assign(hub.name, hub.name, [1, 1]))
    return rig, registry


def test_release_cuts_at_the_next_tick_and_loses_nothing(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig, registry = start_with_registry(tmp_path, hub)
    rig.run(lambda: len(hub.acts) == 5)
    hub.paused = True
    rig.run(lambda: len(hub.acts) == 6)
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
    rig.run(lambda: len(hub.acts) == 5)
    hub.paused = True
    rig.run(lambda: len(hub.acts) == 6)
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
    rig.run(lambda: len(hub.acts) == 5)
    hub.paused = True
    rig.run(lambda: len(hub.acts) == 6)
    hub.link.send(Detached(hub.name, hub.fence, "another actor attached"))
    rig.run(lambda: rig.store.chunks)
    assert rig.store.chunks[0]["lengths"].tolist() == [5, 5]
    assert decisions(rig.store.chunks, 0) == stream_of(9, 5)
    assert registry.all(Released)[0].reason == "another actor attached"


def test_an_outcome_across_a_change_of_holder_is_in_no_chunk(tmp_path: Path) -> None:
    hub = ScriptedHub([9, 9])
    rig, registry = start_with_registry(tmp_path, hub)
    rig.run(lambda: len(hub.acts) == 5)
    hub.paused = True
    rig.run(lambda: len(hub.acts) == 6)
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


# --- weights -------------------------------------------------------------------------------------


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


# --- batching ------------------------------------------------------------------------------------


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


# --- recurrent state -------------------------------------------------------------------------------


def test_recurrent_state_travels_and_is_zeroed_at_episode_starts(tmp_path: Path) -> None:
    hub, engine = ScriptedHub([3, 5]), CounterEngine(state=True)
    rig = Rig(tmp_path, [hub], engine=engine, feed=feed(4))
    rig.run(lambda: len(rig.store.chunks) >= 2)
    first, second = (c["carry"].view(np.float32) for c in rig.store.chunks[:2])
    assert first.tolist() == [[0, 0], [0, 0]]
    # The second chunk begins at (1, 1) and (0, 4): that many decisions have gone into the state.
    assert second.tolist() == [[1, 0.5], [4, 2]]
    for act in hub.acts:
        assert act.carry is not None and act.carry.dtype == np.uint8 and act.carry.shape == (2, 8)
    assert [a.carry.view(np.float32)[0, 0] for a in hub.acts[:5]] == [1, 2, 3, 1, 2]


def test_recurrent_state_of_parked_decisions(tmp_path: Path) -> None:
    late = {0: [1], 1: [], 2: [0]}
    hub, engine = ScriptedHub([50, 50], late=lambda tick: late[tick % 3]), CounterEngine(state=True)
    rig = Rig(tmp_path, [hub], engine=engine, feed=feed(4))
    rig.run(lambda: len(rig.store.chunks) >= 6)
    for chunk in rig.store.chunks:
        carry = chunk["carry"].view(np.float32)
        for row, length in enumerate(chunk["lengths"]):
            if length:
                assert carry[row, 0] == chunk["step"][0, row], "one decision per step went into it"


def test_the_next_holder_goes_on_with_the_carry(tmp_path: Path) -> None:
    hub = ScriptedHub([50, 50])
    first = Rig(tmp_path, [hub], engine=CounterEngine(state=True), feed=feed(4))
    first.run(lambda: len(hub.acts) == 7)
    first.actor.holdings.close("leaving")
    assert hub.carry is not None
    (tmp_path / "second").mkdir()
    second = Rig(tmp_path / "second", [], engine=CounterEngine(state=True), feed=feed(4))
    second.hubs = [hub]
    second.actor.holdings._connect = lambda _: hub.actor_end
    hub.actor_end.closed = False
    second.actor.take(hub.name, hub.name)
    second.run(lambda: len(second.store.chunks) >= 1)
    chunk = second.store.chunks[0]
    assert chunk["carry"].view(np.float32)[:, 0].tolist() == chunk["step"][0].tolist() == [7, 7]
