"""The weight slot: whole versions or none, whatever readers and writers do or die of."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rollbus_core.version import Version
from rollbus_core.weights import digests
from rollbus_core.weights.base import from_image, to_image
from rollbus_core.weights.shm import HEADER_BYTES, Header, WeightReader, WeightWriter, buffer_path
from rollbus_wire.errors import SharedMemoryFull, StaleRead
from rollbus_wire.messages import Notice


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return tmp_path / "weights-policy"


def test_round_trip(prefix: Path) -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7, np.int64)}
    writer = WeightWriter(prefix, 16)
    notice = writer.publish(Version(2, 5), to_image(tensors))
    assert notice is not None
    assert (notice.policy, notice.version, notice.generation) == ("policy", [2, 5], 1)
    found = from_image(WeightReader(prefix).read(notice))
    assert set(found) == {"a", "n"}
    assert np.array_equal(found["a"], tensors["a"]) and found["n"] == 7


def test_tensors_are_read_in_place_and_the_pin_ends_with_the_block(prefix: Path) -> None:
    writer, reader = WeightWriter(prefix), WeightReader(prefix)
    for number in range(8):
        value = np.full((3, 5), number, np.float32)
        notice = writer.publish((0, number), {"w": value.T, "n": np.array(number)})
        assert notice is not None and writer.publishes_skipped == 0
        with reader.open(notice) as tensors:
            assert np.array_equal(tensors["w"], value.T) and tensors["n"] == number
            assert not tensors["w"].flags.writeable
            assert tensors["w"].base is not None
        assert np.array_equal(from_image(reader.read(notice))["w"], value.T)


def test_damage_is_found_before_anything_is_seen(prefix: Path) -> None:
    notice = WeightWriter(prefix).publish((0, 1), {"w": np.arange(50.0)})
    assert notice is not None
    with open(buffer_path(prefix, notice.buffer), "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"x")
    reader = WeightReader(prefix)
    with pytest.raises(StaleRead, match="the old version stays"), reader.open(notice):
        raise AssertionError("the block must not be entered")
    with reader.open(notice, verify=False) as tensors:
        assert tensors["w"].shape == (50,)


def test_a_change_under_the_lock_is_a_mixture(prefix: Path) -> None:
    writer, reader = WeightWriter(prefix), WeightReader(prefix)
    notice = writer.publish((0, 1), {"w": np.arange(50.0)})
    assert notice is not None
    with pytest.raises(StaleRead, match="generation 77"), reader.open(notice):
        with open(buffer_path(prefix, notice.buffer), "r+b") as file:  # a writer that ignores the lock
            Header(generation=77).write(file.fileno())


def test_a_file_that_is_too_short_is_stale_and_no_bus_error(prefix: Path) -> None:
    notice = WeightWriter(prefix).publish((0, 1), {"w": np.arange(5000.0)})
    assert notice is not None
    os.truncate(buffer_path(prefix, notice.buffer), 4096)
    with pytest.raises(StaleRead, match="has 4096 bytes"):
        WeightReader(prefix).read(notice)


def test_a_slot_that_was_made_anew_is_mapped_anew(prefix: Path) -> None:
    reader = WeightReader(prefix)
    for number in range(2):
        writer = WeightWriter(prefix)
        notice = writer.publish((number, 1), {"w": np.full(9, number)})
        assert notice is not None
        with reader.open(notice) as tensors:
            assert (tensors["w"] == number).all()
        for buffer in range(3):
            buffer_path(prefix, buffer).unlink()


_READER = """
import sys, time
from pathlib import Path
from rollbus_core.weights.shm import WeightReader
from rollbus_wire.messages import Notice
notice = Notice("policy", [0, 1], *(int(x) for x in sys.argv[2:6]), digest_kind=sys.argv[6])
with WeightReader(Path(sys.argv[1])).open(notice) as tensors:
    print(int(tensors["w"].sum()), flush=True)
    time.sleep(60)
"""


def test_a_reader_that_dies_gives_its_pin_back(prefix: Path) -> None:
    writer = WeightWriter(prefix)
    notice = writer.publish((0, 1), {"w": np.ones(1 << 16)})
    assert notice is not None
    numbers = [notice.buffer, notice.generation, notice.digest, notice.num_bytes]
    command = [sys.executable, "-c", _READER, str(prefix), *map(str, numbers), notice.digest_kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None and int(process.stdout.readline()) == 1 << 16
    for number in range(2, 8):
        later = writer.publish((0, number), {"w": np.ones(4)})
        assert later is not None and later.buffer != notice.buffer
    process.send_signal(signal.SIGKILL)
    process.wait()
    buffers = set()
    for number in range(8, 12):
        later = writer.publish((0, number), {"w": np.ones(4)})
        assert later is not None
        buffers.add(later.buffer)
    assert notice.buffer in buffers and writer.publishes_skipped == 0


def test_header_is_as_documented(prefix: Path) -> None:
    WeightWriter(prefix, 4).publish((3, 9), b"abcd")
    data = buffer_path(prefix, 0).read_bytes()
    assert data[:8] == b"RBWEIGHT"
    assert np.frombuffer(data, "<u8", 4, 8).tolist() == [1, 4, 3, 9]
    assert data[HEADER_BYTES : HEADER_BYTES + 4] == b"abcd"


def test_every_bit_flip_is_found(prefix: Path) -> None:
    notice = WeightWriter(prefix, 8).publish((0, 1), b"12345678")
    assert notice is not None
    reader, path = WeightReader(prefix), buffer_path(prefix, notice.buffer)
    good = path.read_bytes()
    for place in [*range(HEADER_BYTES, HEADER_BYTES + 8), *range(40)]:
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(StaleRead):
            reader.read(notice)
    path.write_bytes(good)
    assert reader.read(notice) == b"12345678"


def test_an_old_notice_is_stale_and_newest_wins(prefix: Path) -> None:
    writer, reader = WeightWriter(prefix, 8), WeightReader(prefix)
    notices = [writer.publish((0, n), b"v%d" % n) for n in range(7)]
    assert all(notices)
    assert reader.read(notices[-1]) == b"v6"  # type: ignore[arg-type]
    assert reader.read(notices[-2]) == b"v5"  # type: ignore[arg-type]
    with pytest.raises(StaleRead, match="generation"):
        reader.read(notices[3])  # type: ignore[arg-type]


def test_a_pinned_buffer_survives_five_publishes(prefix: Path) -> None:
    writer, reader = WeightWriter(prefix, 8), WeightReader(prefix)
    first = writer.publish((0, 0), b"pinned")
    assert first is not None
    with reader.pin(first) as descriptor:
        for n in range(1, 6):
            notice = writer.publish((0, n), b"v%d" % n)
            assert notice is not None and notice.buffer != first.buffer
            assert WeightReader(prefix).read(notice) == b"v%d" % n
        assert os.pread(descriptor, 6, HEADER_BYTES) == b"pinned"
    assert writer.publishes_skipped == 0


def test_no_free_buffer_is_counted_and_tried_again(prefix: Path) -> None:
    writer, reader = WeightWriter(prefix, 8), WeightReader(prefix)
    notices = [writer.publish((0, n), b"v%d" % n) for n in range(3)]
    with reader.pin(notices[0]), reader.pin(notices[1]):  # type: ignore[arg-type]
        assert writer.publish((0, 3), b"v3") is None
        assert writer.publishes_skipped == 1
    late = writer.publish((0, 4), b"v4")
    assert late is not None and reader.read(late) == b"v4"


def test_a_buffer_being_written_is_stale_at_once(prefix: Path) -> None:
    notice = WeightWriter(prefix, 8).publish((0, 1), b"x")
    assert notice is not None
    with open(buffer_path(prefix, notice.buffer), "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(StaleRead, match="being written"):
            WeightReader(prefix).read(notice)
        assert time.monotonic() - began < 0.5


@pytest.mark.parametrize("buffer", [-1, 3, 10**9])
def test_a_notice_cannot_name_another_file(prefix: Path, buffer: int) -> None:
    with pytest.raises(StaleRead, match="buffer"):
        WeightReader(prefix).read(Notice("policy", [0, 1], buffer, 1, 0, 1))


def test_images_may_grow(prefix: Path) -> None:
    writer, reader = WeightWriter(prefix, 4), WeightReader(prefix)
    small = writer.publish((0, 0), b"tiny")
    assert small is not None
    with reader.pin(small):
        large = writer.publish((0, 1), bytes(range(256)) * 4096)
    assert large is not None
    assert reader.read(large) == bytes(range(256)) * 4096
    assert reader.read(small) == b"tiny"


def test_a_successor_goes_on_above_all_generations(prefix: Path) -> None:
    first = WeightWriter(prefix, 8)
    old = [first.publish((0, n), b"old%d" % n) for n in range(4)]
    first.close()
    notice = WeightWriter(prefix, 8).publish((1, 3), b"new")
    assert notice is not None and old[-1] is not None
    assert notice.generation == old[-1].generation + 1 and notice.buffer != old[-1].buffer
    assert WeightReader(prefix).read(notice) == b"new"


def test_full_memory_is_an_error_with_advice(prefix: Path) -> None:
    with pytest.raises(SharedMemoryFull, match="no room for weights of .*shm-size|.*file that large"):
        WeightWriter(prefix, 1 << 60)


_WRITER = """
import sys
from pathlib import Path
from rollbus_core.weights.shm import WeightWriter
writer = WeightWriter(Path(sys.argv[1]), 1 << 22)
number = 0
while True:
    number += 1
    notice = writer.publish((0, number), bytes([number % 251]) * (1 << 22))
    if notice:
        print(number, notice.buffer, notice.generation, notice.digest, flush=True)
"""


def test_a_writer_killed_in_mid_copy_leaves_no_mixture(prefix: Path) -> None:
    for delay in (0.005, 0.013, 0.021, 0.034, 0.055, 0.08):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(prefix)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines()
        process.wait()
        whole = 0
        for line in lines:
            fields = [int(field) for field in line.split()]
            if len(fields) != 4:
                continue
            number, buffer, generation, digest = fields
            notice = Notice(
                "policy", [0, number], buffer, generation, digest, 1 << 22, digest_kind=digests.BEST
            )  # fmt: skip
            try:
                image = WeightReader(prefix).read(notice)
            except StaleRead:
                continue
            assert image == bytes([number % 251]) * (1 << 22)
            whole += 1
        assert whole >= 1
        # The lock died with the writer: its successor needs no repair.
        successor = WeightWriter(prefix, 1 << 22)
        assert successor.publish((1, 0), b"after") is not None
        successor.close()


def test_a_half_written_buffer_has_no_length(prefix: Path) -> None:
    writer = WeightWriter(prefix, 1 << 24)
    notices = [writer.publish((0, n), bytes(1 << 24)) for n in range(3)]
    seen = []

    def watch() -> None:
        with open(buffer_path(prefix, 0), "rb") as file:
            while not done.is_set():
                seen.append(Header.read(file.fileno()))

    done = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    for n in range(3, 12):
        writer.publish((0, n), bytes([n]) * (1 << 24))
    done.set()
    thread.join()
    assert notices[0] is not None
    for header in seen:
        assert header.length in (0, 1 << 24)
        assert (header.length == 0) == (header.number == 0 and header.generation != 1)


def test_an_unreadable_image_is_stale() -> None:
    with pytest.raises(StaleRead, match="not readable"):
        from_image(b"\x00" * 20)
