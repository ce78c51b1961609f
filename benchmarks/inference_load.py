"""Clients of an inference service, in a process of their own: prints one line of JSON.

    python benchmarks/inference_load.py HOW ADDRESS MODEL NET BATCH CLIENTS SECONDS

HOW: rollbus, or for NVIDIA's server grpc, http (a thread per client) and grpc-shm: every client has one
request in flight. rollbus-async and grpc-async: one client that has as many in flight.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from inference_nets import rows

WARM_UP_S = 0.5
#: An answer that takes longer is none: with many clients the last of a round waits for all others.
PATIENCE_S = 60.0


def main() -> None:
    """Ask for SECONDS, then print rate and median latency."""
    how, address, model, net, batch, clients, seconds = sys.argv[1:]
    obs = rows(net, int(batch))["obs"]
    latencies: list[tuple[float, float]] = []
    began = time.perf_counter()
    until = began + WARM_UP_S + float(seconds)
    ways: dict[str, Callable[..., None]] = {
        "rollbus": _rollbus, "rollbus-async": _rollbus_asynchronous, "grpc-async": _asynchronous
    }  # fmt: skip
    ways.get(how, _threads)(how, address, model, obs, int(clients), until, latencies)
    counted = [taken for at, taken in latencies if at > began + WARM_UP_S]
    p50_us = 1e6 * median(counted) if counted else float("inf")
    print(json.dumps({"per_s": len(counted) / float(seconds), "p50_us": p50_us}))


def _rollbus(
    how: str, address: str, model: str, obs: np.ndarray, clients: int, until: float, latencies: Any
) -> None:
    import zmq

    from rollbus_wire.messages import Decided
    from rollbus_wire.policy_client import PolicyClient

    asked = {}
    poller = zmq.Poller()
    for _ in range(clients):
        client = PolicyClient(address, PATIENCE_S)
        poller.register(client.link.socket, zmq.POLLIN)
        client.send({"obs": obs})
        asked[client.link.socket] = [client, time.perf_counter()]
    while time.perf_counter() < until:
        for socket, _ in poller.poll(1000):
            entry = asked[socket]
            client, since = entry
            _, answer = client.receive()
            now = time.perf_counter()
            assert isinstance(answer, Decided), answer
            latencies.append((now, now - since))
            entry[1] = time.perf_counter()
            client.send({"obs": obs})


def _rollbus_asynchronous(
    how: str, address: str, model: str, obs: np.ndarray, clients: int, until: float, latencies: Any
) -> None:
    from rollbus_wire.messages import Decided
    from rollbus_wire.policy_client import PolicyClient

    client = PolicyClient(address, PATIENCE_S)
    sent = {client.send({"obs": obs}): time.perf_counter() for _ in range(clients)}
    while time.perf_counter() < until:
        number, answer = client.receive()
        now = time.perf_counter()
        assert isinstance(answer, Decided), answer
        latencies.append((now, now - sent.pop(number)))
        sent[client.send({"obs": obs})] = time.perf_counter()


def _request(api: Any, obs: np.ndarray) -> Any:
    made = api.InferInput(
        "in_obs_obs", list(obs.shape), {"uint8": "UINT8", "float32": "FP32"}[obs.dtype.name]
    )
    made.set_data_from_numpy(obs)
    return made


def _threads(
    how: str, address: str, model: str, obs: np.ndarray, clients: int, until: float, latencies: Any
) -> None:
    import importlib

    protocol, _, shared = how.partition("-")
    api = importlib.import_module(f"tritonclient.{protocol}")

    def one(number: int) -> None:
        client = api.InferenceServerClient(address)
        outputs = [api.InferRequestedOutput("out_params")]
        make = _shared(api, client, obs, number) if shared else lambda: [_request(api, obs)]
        while time.perf_counter() < until:
            since = time.perf_counter()
            client.infer(model, make(), outputs=outputs).as_numpy("out_params")
            now = time.perf_counter()
            latencies.append((now, now - since))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _shared(api: Any, client: Any, obs: np.ndarray, number: int) -> Callable[[], list[Any]]:
    from tritonclient.utils import shared_memory

    name = f"bench_{os.getpid()}_{number}"
    region = shared_memory.create_shared_memory_region(name, f"/{name}", obs.nbytes)
    client.register_system_shared_memory(name, f"/{name}", obs.nbytes)

    def make() -> list[Any]:
        shared_memory.set_shared_memory_region(region, [obs])
        made = api.InferInput("in_obs_obs", list(obs.shape), "UINT8" if obs.dtype == np.uint8 else "FP32")
        made.set_shared_memory(name, obs.nbytes)
        return [made]

    return make


def _asynchronous(
    how: str, address: str, model: str, obs: np.ndarray, clients: int, until: float, latencies: Any
) -> None:
    from tritonclient import grpc

    client = grpc.InferenceServerClient(address)
    outputs = [grpc.InferRequestedOutput("out_params")]
    room = threading.Semaphore(clients)

    while time.perf_counter() < until:
        room.acquire()
        since = time.perf_counter()

        def done(result: Any, error: Any, since: float = since) -> None:
            now = time.perf_counter()
            latencies.append((now, now - since))
            room.release()
            assert error is None, error

        client.async_infer(model, [_request(grpc, obs)], done, outputs=outputs)
    for _ in range(clients):
        room.acquire()


if __name__ == "__main__":
    main()
