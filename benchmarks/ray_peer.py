"""Chunks from one process to another with Ray, for `bench_chunks.py`: the producer fills a new array for
every chunk, an actor reads every byte of it and its answer is awaited, 16 chunks are in flight.

    RAY_PYTHON benchmarks/ray_peer.py '{"4096": 3000}'

prints one line of JSON per size: {"bytes": size, "per_s": chunks per second}.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import ray
from chunk_work import fill, read, source

IN_FLIGHT, WARM_UP = 16, 32


@ray.remote  # type: ignore[untyped-decorator]
class Consumer:
    """Reads what it is given."""

    def take(self, chunk: np.ndarray) -> int:
        return read(chunk)


def rate(consumer: object, num_bytes: int, num: int) -> float:
    """Chunks per second."""
    made = source(num_bytes)
    answers: list[object] = []
    started = 0.0
    for number in range(WARM_UP + num):
        if number == WARM_UP:
            ray.get(answers)
            answers, started = [], time.perf_counter()
        chunk = np.empty(num_bytes, np.uint8)
        fill(chunk, made, number)
        answers.append(consumer.take.remote(chunk))  # type: ignore[attr-defined]
        if len(answers) >= IN_FLIGHT:
            ray.get(answers.pop(0))
    ray.get(answers)
    return num / (time.perf_counter() - started)


def main() -> None:
    """Measure every size of the argument."""
    folder = os.path.dirname(os.path.abspath(__file__))
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
        object_store_memory=2 * 10**9, runtime_env={"env_vars": {"PYTHONPATH": folder}},
    )  # fmt: skip
    consumer = Consumer.remote()
    for size, num in json.loads(sys.argv[1]).items():
        print(json.dumps({"bytes": int(size), "per_s": rate(consumer, int(size), num)}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
