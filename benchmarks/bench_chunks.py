"""Chunks from an actor through the store to a learner: messages per second at three sizes, against peers.

    python benchmarks/bench_chunks.py [--ray PYTHON] [--peers DIR] [--reverb PYTHON] [--rlinf PYTHON]

Producer, store and consumer are three processes. The producer writes fresh bytes into every cell and
commits it with its digest; the store checks the digest, logs and acknowledges; the consumer reads every
byte where it lies and then checks that the cell was not used again. Peers run in interpreters of their own,
in turn with ours: Ray with `ray_peer.py`, which fills and reads as we do (`chunk_work.py`), the others with
the scripts of ``--peers``, which do less. What is not given prints "not installed".
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from chunk_work import fill, read, source

from rollbus_broker.store.store import Store
from rollbus_core.columns import HEADER_BYTES, Layout
from rollbus_core.config.models import BrokerConfig
from rollbus_core.feed import TableConfig
from rollbus_core.requests import Requests
from rollbus_core.slabs import SlabFolder
from rollbus_core.weights.digests import BEST, digest
from rollbus_wire.messages import (
    Batch,
    Commit,
    Consumed,
    Durable,
    Message,
    OpenTable,
    Sample,
    Ticket,
    TicketRequest,
)
from rollbus_wire.polling import Poller
from rollbus_wire.zmq_link import ZmqLink

#: Bytes of a chunk -> (chunks of a batch, chunks of one repetition).
SIZES = {4096: (128, 12_800), 450_000: (16, 3200), 9_600_000: (1, 400)}
TARGETS = {4096: 5.0, 450_000: 5.0, 9_600_000: 2.0}
REPETITIONS = 5
TABLE, ROWS = "bench", 1
#: What a peer of ``--peers`` calls the rows that count: the fastest of them is compared.
PEER_ROWS = re.compile(r"Channel put->get|Worker send->recv|write\+sample \(random\)")
#: Bytes of a chunk -> chunks of one repetition with Ray.
RAY_SIZES = {4096: 3000, 450_000: 1000, 9_600_000: 150}


def layout(num_bytes: int) -> Layout:
    """One chunk of this many bytes: one decision whose column is the rest."""
    return Layout.build(
        {"lengths": ("int32", (ROWS,)), "data": ("uint8", (1, num_bytes))},
        num_decisions=1, num_rows=ROWS, num_finals=0,
    )  # fmt: skip


def serve_store(endpoint: str, folder: str) -> None:
    """The broker's store in a process of its own."""
    config = BrokerConfig(slab_bytes=64 << 20)
    link = ZmqLink.bind(endpoint)
    store = Store(link, Path(folder), Path(folder) / "log", config, 1, time.monotonic())
    poller = Poller()
    poller.add(link)
    while True:
        if not store.poll(time.monotonic()):
            poller.wait(0.05)


class Producer:
    """An actor's side of the store plane, with as many tickets as the table gives."""

    def __init__(self, endpoint: str, folder: str, num_bytes: int, num: int, in_flight: int) -> None:
        self._link = ZmqLink.connect(endpoint)
        self._requests, self._slabs = Requests(self._link), SlabFolder(Path(folder))
        self._layout, self._left, self._to_ask = layout(num_bytes), num, num
        self._data = self._layout.to_data()
        self._made = source(num_bytes)
        self._tickets: list[Ticket] = []
        for _ in range(in_flight):
            self._ask()

    def run(self) -> None:
        poller = Poller()
        poller.add(self._link)
        while self._left:
            busy, _ = self._requests.poll()
            if self._tickets:
                for ticket in self._tickets:
                    self._write(ticket)
                self._tickets = []
            elif not busy:
                poller.wait(0.05)

    def _ask(self) -> None:
        if self._to_ask:
            self._to_ask -= 1
            self._requests.ask(TicketRequest(TABLE, "s", ROWS, 1, self._data), self._granted)

    def _granted(self, reply: Message) -> None:
        assert isinstance(reply, Ticket), reply
        self._tickets.append(reply)

    def _write(self, ticket: Ticket) -> None:
        buffer = self._slabs.open(ticket.slab, ticket.slab_bytes)
        cell = memoryview(buffer)[ticket.offset : ticket.offset + self._layout.cell_bytes]
        views = self._layout.views(buffer, ticket.offset)
        views["lengths"][:] = 1
        fill(views["data"][0], self._made, ticket.ticket)
        commit = Commit(
            ticket.ticket, np.ones(ROWS, np.int32), 0, digest(cell[HEADER_BYTES:]), [1, 0], [1, 0],
            [0, ticket.ticket], digest_kind=BEST,
        )  # fmt: skip
        self._requests.ask(commit, self._committed)
        self._ask()

    def _committed(self, reply: Message) -> None:
        self._left -= 1


class Consumer:
    """A learner's side: reads all of every batch in the slabs."""

    def __init__(self, endpoint: str, folder: Path, per_batch: int) -> None:
        self._link, self._slabs = ZmqLink.connect(endpoint), SlabFolder(folder)
        self._requests = Requests(self._link)
        self._layouts: dict[int, Layout] = {}
        self._poller = Poller()
        self._poller.add(self._link)
        self.sum = 0
        settings = TableConfig(batch_steps=per_batch, max_lag=1, max_bytes=2 << 30).model_dump()
        self._wait(OpenTable(TABLE, settings, [1, 0]))

    def take(self, num_batches: int) -> float:
        """Seconds from the first batch to the last of ``num_batches``."""
        started = 0.0
        for number in range(num_batches):
            batch = self._wait(Sample(TABLE))
            assert isinstance(batch, Batch), batch
            self._read(batch)
            self._requests.ask(Consumed(TABLE, batch.sequence, [1, 0], batch.sequence), lambda _: None)
            self._requests.ask(Durable(TABLE, batch.sequence), lambda _: None)
            if number == 0:
                started = time.perf_counter()
        return time.perf_counter() - started

    def _read(self, batch: Batch) -> None:
        for chunk in batch.chunks:
            buffer = self._slabs.open(chunk["slab"], chunk["slab_bytes"])
            known = self._layouts.get(chunk["slab"])
            if known is None:
                known = self._layouts[chunk["slab"]] = Layout.from_data(chunk["layout"])
            views = known.views(buffer, chunk["offset"])
            total = read(views["data"][0])
            assert np.ndarray((1,), np.uint64, buffer, chunk["offset"])[0] == chunk["generation"]
            self.sum += total

    def _wait(self, message: Message) -> Message:
        found: list[Message] = []
        self._requests.ask(message, found.append)
        while not found:
            busy, _ = self._requests.poll()
            if not busy:
                self._poller.wait(0.05)
        return found[0]


def produce(endpoint: str, folder: str, num_bytes: int, num: int, in_flight: int) -> None:
    Producer(endpoint, folder, num_bytes, num, in_flight).run()


def start(body: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=body, args=arguments, daemon=True)
    process.start()
    return process


def ours(num_bytes: int) -> float:
    """Chunks per second."""
    per_batch, num = SIZES[num_bytes]
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        endpoint = f"ipc://{folder}/s"
        store = start(serve_store, endpoint, folder)
        consumer = Consumer(endpoint, Path(folder), per_batch)
        producer = start(produce, endpoint, folder, num_bytes, num, 2 * per_batch)
        batches = num // per_batch
        took = consumer.take(batches)
        for process in (producer, store):
            process.kill()
            process.join(10)
    return (batches - 1) * per_batch / took


def ray_peer(python: str) -> dict[int, float]:
    """Bytes -> chunks per second."""
    script = Path(__file__).parent / "ray_peer.py"
    command = [*python.split(), str(script), json.dumps(RAY_SIZES)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=600, env=_plain_environment())
    rows = [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{")]
    if not rows:
        raise RuntimeError(f"Ray measured nothing: {output.stderr[-2000:]}")
    return {row["bytes"]: row["per_s"] for row in rows}


def _plain_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def peer(python: str, script: Path) -> dict[int, float]:
    """Bytes -> messages per second of the fastest way that ``script`` measures."""
    best: dict[int, float] = {}
    output = subprocess.run([*python.split(), str(script)], capture_output=True, text=True, timeout=600)
    for line in output.stdout.splitlines():
        if line.startswith("RESULT "):
            row = json.loads(line[7:])
            if PEER_ROWS.search(row["peer"]):
                best[int(row["wl"])] = max(best.get(int(row["wl"]), 0.0), row["sps"])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--peers", type=Path, help="Folder with rvb.py and rlinf_ch.py.")
    scripts = {"reverb": "rvb.py", "rlinf": "rlinf_ch.py"}
    for name in ("ray", *scripts):
        parser.add_argument(f"--{name}", help=f"Interpreter that has {name}.")
    options = parser.parse_args()
    rates: dict[int, list[float]] = {size: [] for size in SIZES}
    peers: dict[str, list[dict[int, float]]] = {}
    for _ in range(options.repetitions):
        for size in SIZES:
            rates[size].append(ours(size))
        if options.ray:
            peers.setdefault("ray", []).append(ray_peer(options.ray))
        for name, script in scripts.items():
            if options.peers and getattr(options, name):
                peers.setdefault(name, []).append(peer(getattr(options, name), options.peers / script))
    for size, values in rates.items():
        rate = statistics.median(values)
        print(f"{size} bytes: {rate:.0f} chunks/s, {rate * size / 1e6:.0f} MB/s, digest {BEST}")
        for name in ("ray", *scripts):
            found = [each[size] for each in peers.get(name, []) if size in each]
            text = "not installed"
            if found:
                theirs = statistics.median(found)
                text = f"{theirs:.0f}/s, ratio {rate / theirs:.1f} (>= {TARGETS[size]:g})"
            print(f"    {name}: {text}")


if __name__ == "__main__":
    main()
