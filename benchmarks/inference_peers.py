"""NVIDIA's inference server with the policies of bench_inference in it, set up in two ways."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from inference_nets import policy, rows

HERE = Path(__file__).resolve().parent
#: "triton": the server with its Python backend; "pytriton": behind the package of that name.
SERVICES = ("triton", "pytriton")
#: Ways to ask, and how long the server waits for more requests; the best of them counts.
WAYS, DELAYS_US = ("grpc", "http", "grpc-shm", "grpc-async"), (0, 500)
MAX_BATCH = 256


@contextlib.contextmanager
def serving_all(net: str, venv: Path | None, folder: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """Service -> label -> (way, address, model); nothing without ``venv``."""
    if venv is None:
        yield {}
        return
    sys.path.insert(0, str(HERE.parent / "tests/system"))
    from triton_kit import serving

    with serving(venv, folder) as server, pytriton(net, venv, folder) as (grpc, http):
        models = {f"{net}_{delay}": delay for delay in DELAYS_US}
        for model, delay in models.items():
            _load(net, server.grpc, model, delay)
        yield {
            "triton": _ways(list(models), server.grpc, server.http),
            "pytriton": _ways([f"{net}_pytriton"], grpc, http),
        }


def _ways(models: list[str], grpc: str, http: str) -> dict[str, tuple[str, str, str]]:
    # pytriton refuses shared memory unless its server is reconfigured, and gains nothing by it.
    ways = [way for way in WAYS if "shm" not in way or "pytriton" not in models[0]]
    return {
        f"{way} {model}": (way, http if way == "http" else grpc, model) for model in models for way in ways
    }


def _load(net: str, grpc: str, model: str, delay_us: int) -> None:
    from rollbus_actor.engines.triton_server import Config, Engine
    from rollbus_core.version import Version

    config = Config(url=grpc, model=model, delay_us=delay_us, max_batch=MAX_BATCH)
    Engine(policy(net), config=config).pin(Version(0, 1))


@contextlib.contextmanager
def pytriton(net: str, venv: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Addresses (gRPC, HTTP) of a pytriton server, a process of its environment."""
    from triton_kit import free_port

    from rollbus_actor.engines._triton_repository import files

    made = policy(net)
    trunk, own = made.describe(True), made.state_dict()
    place = folder / "pytriton_model"
    place.mkdir()
    for name, content in files(trunk).items():
        (place / name).write_bytes(content)
    flat = np.concatenate([own[name].numpy().reshape(-1) for name in trunk.weights])
    np.save(place / "weights.npy", flat)
    np.save(place / "example.npy", rows(net, 1)["obs"])
    grpc, http, metrics = (free_port() for _ in range(3))
    command = [venv / "bin/python", HERE / "pytriton_peer.py", place, f"{net}_pytriton", grpc, http, metrics]
    log = (folder / "pytriton.log").open("w")
    process = subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        env={"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")), "OMP_NUM_THREADS": "1",
             "PATH": f"{venv / 'bin'}:/usr/bin:/bin", "HOME": str(folder)},
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdin is not None
        while (line := process.stdout.readline()).strip() != "ready":
            assert line, (folder / "pytriton.log").read_text()[-2000:]
        yield f"127.0.0.1:{grpc}", f"127.0.0.1:{http}"
    finally:
        process.communicate("\n", timeout=60)
