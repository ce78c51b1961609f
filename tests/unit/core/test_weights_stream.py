"""Weights over a link: whole versions or none, whatever is lost, doubled, damaged or restarted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from weights_kit import World, changed, equal, policy

from rollbus_core.version import Version
from rollbus_core.weights import digests
from rollbus_core.weights.encoding import encode
from rollbus_core.weights.packing import Gain
from rollbus_core.weights.server import CHUNK_BYTES
from rollbus_core.weights.stream import MAX_STALL_S, STALL_S
from rollbus_wire.messages import Fault, Message, Ping, WeightChunk, WeightManifest


def test_the_first_version_comes_whole_and_the_next_as_what_changed(tmp_path: Path) -> None:
    world, first = World(tmp_path), policy()
    world.publish(first)
    assert equal(world.fetch(), first)
    size = encode(first)[1].size
    assert world.server.num_full == 1 and world.reader.num_bytes == size
    second = changed(first)
    world.publish(second)
    assert equal(world.fetch(), second)
    num = np.count_nonzero(first["base.w"] != second["base.w"])
    delta_bytes = 16 + 4 * -(-400_000 // 65536) + 6 * num
    assert world.reader.num_bytes == size + delta_bytes and world.server.num_deltas == 1
    assert world.reader.version == Version(0, 2) and world.reader.wrong_results == 0


def test_versions_between_are_skipped(tmp_path: Path) -> None:
    world, tensors = World(tmp_path), policy()
    world.publish(tensors)
    world.fetch()
    for seed in range(6):
        tensors = changed(tensors, seed=seed)
        world.publish(tensors)
    assert equal(world.fetch(), tensors)
    assert world.server.num_deltas == 1 and world.reader.version == Version(0, 7)


def test_a_lost_link_is_continued_at_the_missing_chunk(tmp_path: Path) -> None:
    world, tensors = World(tmp_path), policy()
    world.publish(tensors)
    seen: list[int] = []

    def cut_after_three(message: Message) -> Message | None:
        if isinstance(message, WeightChunk):
            seen.append(message.index)
            return message if len(seen) <= 3 else None
        return message

    world.link.let = cut_after_three
    for _ in range(20):
        assert world.turn() is None
    assert seen[:3] == [0, 1, 2]
    asked = world.server.num_chunks
    world.link.let = lambda message: message
    assert equal(world.fetch(), tensors)
    num_chunks = -(-encode(tensors)[1].size // CHUNK_BYTES)
    assert world.server.num_chunks - asked == num_chunks - 3, "only what is missing is sent again"
    assert world.reader.num_stalls == 1


def test_a_restarted_server_continues_the_same_stream_once_it_has_it_again(tmp_path: Path) -> None:
    world, tensors = World(tmp_path), policy()
    world.publish(tensors)
    world.turn(), world.turn()
    world.link.let = lambda message: None
    world.turn(STALL_S + 1)
    world.link.let = lambda message: message
    world.restart_server()
    world.reader.reconnect(world.link)
    assert equal(world.fetch(), tensors)
    # The new server did not know the stream: it was asked for the version anew.
    assert world.server.num_full == 1


def test_silence_is_answered_by_ever_rarer_repeats(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish(policy())
    world.turn(), world.turn(0.0)
    world.link.let = lambda message: None
    times = []
    for _ in range(4000):
        before = world.reader.num_stalls
        world.turn(0.05)
        if world.reader.num_stalls > before:
            times.append(world.now)
    gaps = np.diff(times)
    assert np.allclose(gaps[:4], [2, 4, 8, 16], atol=0.2) and np.allclose(gaps[4:], MAX_STALL_S, atol=0.2)


def test_doubled_and_late_chunks_change_nothing(tmp_path: Path) -> None:
    world, tensors = World(tmp_path), policy()
    world.publish(tensors)
    kept: list[WeightChunk] = []

    def double(message: Message) -> Message:
        if isinstance(message, WeightChunk):
            kept.append(message)
        return message

    world.link.let = double
    world.fetch()
    world.link.let = lambda message: message
    second = changed(tensors)
    world.publish(second)
    world.turn(), world.turn()
    for chunk in kept:
        world.reader._heard(chunk)
    assert equal(world.fetch(), second) and world.reader.damaged_chunks == 0


@pytest.mark.parametrize("delta", [False, True])
def test_a_flipped_bit_is_found_in_its_chunk_and_fetched_again(tmp_path: Path, delta: bool) -> None:
    world, tensors = World(tmp_path), policy()
    world.publish(tensors)
    if delta:
        world.fetch()
        tensors = changed(tensors)
        world.publish(tensors)
    flips = [1]

    def flip(message: Message) -> Message:
        if isinstance(message, WeightChunk) and flips.pop() if flips else False:
            data = message.data.copy()
            data[data.size // 2] ^= 4
            return replace(message, data=data)
        return message

    def let(message: Message) -> Message:
        return flip(message) if isinstance(message, WeightChunk) else message

    world.link.let = let
    assert equal(world.fetch(), tensors)
    assert world.reader.damaged_chunks == 1 and world.reader.wrong_results == 0


def test_a_base_that_differs_in_one_bit_gets_the_whole_image(tmp_path: Path) -> None:
    world, first = World(tmp_path), policy()
    world.publish(first)
    world.fetch()
    other = {name: value.copy() for name, value in first.items()}
    other["base.w"].view(np.uint32)[0, 0] ^= 1
    world.reader.adopt(Version(0, 1), encode(other)[1])
    second = changed(first)
    world.publish(second)
    assert equal(world.fetch(), second)
    assert world.server.num_full == 2 and world.server.num_deltas == 0


def test_a_base_damaged_in_memory_is_no_base(tmp_path: Path) -> None:
    world, first = World(tmp_path), policy()
    world.publish(first)
    world.fetch()
    assert world.reader._base is not None
    world.reader._base[1].flags.writeable = True
    world.reader._base[1][-5] ^= 1
    second = changed(first)
    world.publish(second)
    assert equal(world.fetch(), second)
    assert (world.reader.wrong_results, world.server.num_deltas, world.server.num_full) == (1, 1, 2)


def test_a_manifest_with_another_base_is_not_begun(tmp_path: Path) -> None:
    world, first = World(tmp_path), policy()
    world.publish(first)
    world.fetch()

    def lie(message: Message) -> Message:
        return replace(message, base=[0, 7]) if isinstance(message, WeightManifest) else message

    world.link.let = lie
    world.publish(changed(first))
    for _ in range(100):
        assert world.turn() is None
    assert world.reader.version == Version(0, 1) and "does not fit" in world.reader.last_problem


def test_another_architecture_is_sent_whole(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish(policy())
    world.fetch()
    grown = policy(size=500_000)
    world.publish(grown)
    assert equal(world.fetch(), grown) and world.server.num_deltas == 0


def test_a_base_that_the_server_has_forgotten_is_answered_with_all(tmp_path: Path) -> None:
    world, tensors = World(tmp_path), policy()
    world.publish(tensors)
    world.fetch()
    world.restart_server()
    second = changed(tensors)
    world.publish(second)
    assert equal(world.fetch(), second) and world.server.num_full == 1


def test_bfloat16_halves_the_bytes_and_never_drifts(tmp_path: Path) -> None:
    world, tensors = World(tmp_path, cast="bfloat16"), policy()
    for seed in range(4):
        world.publish(tensors)
        found = world.fetch()
        for name in ("base.w", "lora.a"):
            expected = torch.from_numpy(tensors[name]).bfloat16().float().numpy()
            assert np.array_equal(found[name], expected)
        tensors = changed(tensors, seed=seed)
    assert world.server.num_full == 1 and world.server.num_deltas == 3
    assert world.reader.num_bytes < 1.15 * 400_000 * 2


def test_only_named_tensors_are_sent_and_a_wrong_name_costs_a_repeat(tmp_path: Path) -> None:
    world, tensors = World(tmp_path, names=["lora.*"]), policy()
    world.publish(tensors)
    assert equal(world.fetch(), tensors)
    whole = world.reader.num_bytes
    tensors = dict(tensors, **{"lora.a": tensors["lora.a"] + 1})
    world.publish(tensors)
    assert equal(world.fetch(), tensors)
    assert world.reader.num_bytes - whole == 16 + 50 * 4 * 4, "all of lora.a, dense"
    tensors = changed(tensors)
    world.publish(tensors)
    assert equal(world.fetch(), tensors), "base.w changed, against what was said"
    assert world.reader.wrong_results == 1 and world.server.num_full == 1


def test_a_slow_link_gets_packed_chunks_and_a_fast_one_does_not(tmp_path: Path) -> None:
    world, tensors = World(tmp_path), policy(size=4_000_000)
    packed: list[bool] = []

    def watch(message: Message) -> Message:
        if isinstance(message, WeightChunk):
            packed.append(bool(message.packing))
        return message

    world.link.let = watch
    world.publish(tensors)
    for _ in range(4000):  # one window per 8 s: 1 MB/s
        arrived = world.turn(8.0)
        if arrived is not None:
            break
    assert world.reader.version == Version(0, 1)
    assert not packed[0] and packed[-1], "the rate is not known at first"
    assert world.reader.num_bytes < encode(tensors)[1].size
    assert all(isinstance(gain, Gain) for s in world.server._streams.values() for gain in s._gains.values())

    packed.clear()
    world.reader._rate = 1e12
    second = changed(tensors, share=0.5)
    world.publish(second)
    assert equal(world.fetch(), second) and not any(packed)


def test_a_version_overwritten_before_it_was_read_waits_for_the_next(tmp_path: Path) -> None:
    world, tensors = World(tmp_path), policy()
    first = world.publish(tensors)
    for number in range(100, 103):
        world.writer.publish((0, number), tensors)
    for _ in range(60):
        assert world.turn() is None
    assert "no-version" in world.reader.last_problem
    world.number = 200
    world.publish(tensors)
    assert equal(world.fetch(), tensors) and world.reader.version == Version(0, 201)
    assert first.version == [0, 1]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Ping(), "wire"),
        (None, "no-version"),
    ],
)
def test_what_cannot_be_served_is_a_fault(tmp_path: Path, request_: Message | None, code: str) -> None:
    world = World(tmp_path)
    world.link.send(request_ or world.reader._request())
    world.server.poll()
    envelope = world.link.recv()
    assert envelope is not None and isinstance(envelope.message, Fault) and envelope.message.code == code


def test_the_manifest_keeps_the_learners_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    notice = world.publish(policy())
    for _ in range(100):
        arrived = world.turn()
        if arrived is not None:
            break
    assert arrived is not None
    manifest = arrived.manifest
    assert (manifest.published_s, manifest.published_mono_s, manifest.boot) == (
        notice.published_s, notice.published_mono_s, notice.boot,
    )  # fmt: skip
    assert manifest.image_digest == digests.image_digest(arrived.image)
