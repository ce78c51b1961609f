"""One fetch per host, by real processes and sockets: who holds the lock fetches, the next one takes over."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from weights_kit import changed, equal, policy

from rollbus_core.version import Version
from rollbus_core.weights.age import age_s, stamp
from rollbus_core.weights.relay import LocalNotice, WeightRelay
from rollbus_core.weights.served import ServedWriter
from rollbus_core.weights.shm import WeightReader, WeightWriter
from rollbus_wire.messages import Notice, to_data
from rollbus_wire.zmq_link import ZmqLink

PATIENCE_S = 20.0


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[ServedWriter]:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    writer = WeightWriter(tmp_path / "there" / "weights-policy")
    served = ServedWriter(writer, lambda: ZmqLink.bind("tcp://127.0.0.1:0"))
    yield served
    served.close()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The slot on the other host."""
    return tmp_path / "here" / "weights-policy"


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def local(relay: WeightRelay, notice: Notice) -> Notice:
    """Wait until this host has what ``notice`` names."""
    found: list[Notice] = []

    def there() -> bool:
        here = relay.local(notice)
        found[:] = [here] if here is not None and here.version == notice.version else []
        return bool(found)

    until(there)
    return found[0]


def checksum(tensors: dict[str, np.ndarray]) -> int:
    return zlib.crc32(b"".join(tensors[name].tobytes() for name in sorted(tensors)))


def relay_on(prefix: Path) -> WeightRelay:
    return WeightRelay(prefix, ZmqLink.connect)


def test_one_fetches_and_all_read(learner: ServedWriter, here: Path) -> None:
    first, second = relay_on(here), relay_on(here)
    tensors = policy()
    for number in range(1, 4):
        notice = learner.publish((0, number), tensors)
        assert notice is not None and notice.stream.startswith("tcp://127.0.0.1:")
        for relay in (first, second):  # in this order: the first one takes the lock
            found = local(relay, notice)
            with relay.open(found) as there:
                assert equal({name: value.copy() for name, value in there.items()}, tensors)
            assert (found.published_s, found.published_mono_s) == (
                notice.published_s, notice.published_mono_s,
            )  # fmt: skip
        tensors = changed(tensors, seed=number)
    assert first.holds_lock and not second.holds_lock and second.stream is None
    first.close()
    last = learner.publish((0, 4), tensors)
    assert last is not None
    local(second, last)
    assert second.holds_lock
    second.close()


_ACTOR = """
import json, sys, time, zlib
from pathlib import Path
from rollbus_core.weights.relay import WeightRelay
from rollbus_wire.zmq_link import ZmqLink
from rollbus_wire.messages import from_data
relay = WeightRelay(Path(sys.argv[1]), ZmqLink.connect)
for line in sys.stdin:
    notice = from_data("notice", json.loads(line))
    while (here := relay.local(notice)) is None or here.version < notice.version:
        time.sleep(0.005)
    with relay.open(here) as tensors:
        total = zlib.crc32(b"".join(tensors[name].tobytes() for name in sorted(tensors)))
    bytes_ = relay.stream.num_bytes if relay.stream else 0
    print(json.dumps([here.version, total, relay.holds_lock, bytes_]), flush=True)
"""


class Process:
    """An actor's process on the other host."""

    def __init__(self, prefix: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ACTOR, str(prefix)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def tell(self, notice: Notice) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(to_data(notice)).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> tuple[list[int], int, bool, int]:
        assert self.process.stdout is not None
        version, total, holds, num_bytes = json.loads(self.process.stdout.readline())
        return version, total, holds, num_bytes

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def test_the_next_process_takes_over_and_needs_only_what_changed(learner: ServedWriter, here: Path) -> None:
    tensors = policy()
    one = learner.publish((0, 1), tensors)
    assert one is not None
    actors = [Process(here), Process(here)]
    try:
        for actor in actors:
            actor.tell(one)
        answers = [actor.answer() for actor in actors]
        assert [a[:2] for a in answers] == [([0, 1], checksum(tensors))] * 2
        assert sum(a[3] > 0 for a in answers) == 1, "the image crossed the link once"
        holder = 0 if answers[0][3] else 1
        actors[holder].kill()
        new = changed(tensors)
        two = learner.publish((0, 2), new)
        assert two is not None
        actors[1 - holder].tell(two)
        version, found, holds, num_bytes = actors[1 - holder].answer()
        assert version == [0, 2] and holds
        assert found == checksum(new)
        assert 0 < num_bytes < 0.1 * one.num_bytes, "a delta to what the dead relay left in the slot"
    finally:
        for actor in actors:
            actor.kill()


def test_a_learner_that_starts_again_elsewhere_is_followed(tmp_path: Path, here: Path) -> None:
    (tmp_path / "here").mkdir()
    relay, tensors = relay_on(here), policy()
    for lineage in range(2):
        writer = WeightWriter(tmp_path / f"learner{lineage}-policy")
        served = ServedWriter(writer, lambda: ZmqLink.bind("tcp://127.0.0.1:0"))
        notice = served.publish((lineage, 5), tensors)
        assert notice is not None
        with relay.open(local(relay, notice)) as found:
            assert np.array_equal(found["base.w"], tensors["base.w"])
        served.close()
        tensors = changed(tensors, seed=lineage)
    relay.close()


def test_what_ends_the_relay_is_raised_in_the_actor(here: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()

    def refuse(endpoint: str) -> ZmqLink:
        raise OSError(f"no route to {endpoint}")

    relay = WeightRelay(here, refuse)
    notice = Notice("policy", [0, 1], 0, 1, 0, 1, stream="tcp://127.0.0.1:1")
    relay.local(notice)
    until(lambda: relay.failure)
    with pytest.raises(OSError, match="no route"):
        relay.local(notice)


def test_a_local_notice_is_replaced_whole(tmp_path: Path) -> None:
    file = LocalNotice(tmp_path / "weights-policy")
    assert file.read() is None
    notice = Notice("policy", [2, 5], 1, 9, 1 << 63, 10, stream="x")
    file.write(notice)
    assert LocalNotice(tmp_path / "weights-policy").read() == notice
    (tmp_path / "weights-policy.notice").write_text("{")
    assert LocalNotice(tmp_path / "weights-policy").read() is None


def test_age_is_by_the_monotonic_clock_of_one_boot_and_else_by_the_wall() -> None:
    wall, monotonic, boot = stamp()
    same = Notice("p", [0, 1], 0, 1, 0, 1, published_s=wall - 500, published_mono_s=monotonic - 2, boot=boot)
    assert age_s(same) == pytest.approx(2.0, abs=0.5)
    other = Notice(
        "p", [0, 1], 0, 1, 0, 1, published_s=wall - 5, published_mono_s=monotonic - 2, boot="other"
    )
    assert age_s(other) == pytest.approx(5.0, abs=0.5)
    assert age_s(Notice("p", [0, 1], 0, 1, 0, 1)) == 0.0, "it does not say"
    assert age_s(Notice("p", [0, 1], 0, 1, 0, 1, published_s=wall + 99)) == 0.0, "clocks differ"


def test_a_slot_of_ones_own_host_is_read_as_before(tmp_path: Path) -> None:
    notice = WeightWriter(tmp_path / "weights-policy").publish((0, 1), {"w": np.ones(3)})
    assert notice is not None and notice.boot == stamp()[2]
    reader = WeightReader(tmp_path / "weights-policy")
    assert reader.local(notice) is notice
    assert Version.of(notice.version) == Version(0, 1)
