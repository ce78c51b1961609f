"""Inference: engines against bare onnxruntime, and the policy service against NVIDIA's inference server.

    .venv/bin/python benchmarks/bench_inference.py [--part engines,service] [--triton VENV] [--json FILE]

Every ratio is of medians of alternating repetitions of one run. ``--triton`` names an environment with
nvidia-pytriton (``python -m venv V; V/bin/pip install torch==2.13.0; V/bin/pip install torch==2.13.0
nvidia-pytriton==0.7.0``), whose server is started here with the Python backend, which serves the policy in
numpy; the policy service uses the same numpy engine, so that only the way there differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from inference_nets import policy, rows, spec

HERE = Path(__file__).resolve().parent
#: Ways to ask NVIDIA's server, and how long it waits for more requests; the best of them counts.
WAYS, DELAYS_US = ("grpc", "http", "grpc-shm", "grpc-async"), (0, 500)


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", default="engines,service")
    parser.add_argument("--triton", type=Path, help="environment with nvidia-pytriton")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one measurement of the service")
    parser.add_argument("--nets", default="mlp,cnn")
    parser.add_argument("--batches", default="1,64,256", help="of the service")
    parser.add_argument("--clients", default="1,16,64")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", nargs=3, metavar=("NET", "ENGINE", "ADDRESS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return _serve(*arguments.serve)
    found: list[dict[str, Any]] = []
    for net in arguments.nets.split(","):
        if "engines" in arguments.part:
            found += engines(net, arguments.repeat)
        if "service" in arguments.part:
            found += services(
                net, numbers(arguments.batches), numbers(arguments.clients), arguments.repeat,
                arguments.seconds, arguments.triton,
            )  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def numbers(text: str) -> list[int]:
    """Comma-separated."""
    return [int(part) for part in text.split(",")]


# --- engines -----------------------------------------------------------------------------------


def engines(net: str, repeat: int) -> list[dict[str, Any]]:
    """Trunk of each engine against a bare session, and a whole decision against `policy.act`."""
    found = []
    made = {name: engine(net, name) for name in ("onnx", "numpy", "torch_local")}
    reference, bare = policy(net), bare_session(net)
    for num in (1, 8, 16, 64, 256):
        taken = alternate(_runs(made, reference, bare, rows(net, num), num), repeat)
        row = {"part": "engines", "net": net, "rows": num, "us": {k: 1e6 * v for k, v in taken.items()}}
        row["onnx_to_bare"] = taken["onnx forward"] / taken["bare"]
        row["act_speedup"] = {name: taken["policy.act"] / taken[f"{name} act"] for name in made}
        found.append(row)
        faster = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in row["act_speedup"].items())
        print(f"{net} {num:4} rows: onnx forward {row['onnx_to_bare']:.2f}x bare onnxruntime; decisions "
              f"against policy.act: {faster}", flush=True)  # fmt: skip
    return found


def _runs(
    made: dict[str, Any], reference: Any, bare: Any, obs: dict[str, np.ndarray], num: int
) -> dict[str, Callable[[], Any]]:
    from rollbus_policies.base import Ask

    ask, seeds = Ask("sample", ("log_prob", "value")), np.arange(num, dtype=np.uint64)
    runs: dict[str, Callable[[], Any]] = {
        "bare": lambda: bare.run(None, {"obs/obs": obs["obs"]}),
        "policy.act": lambda: reference.act(obs, None, ask, seeds),
    }
    for name, each in made.items():
        runs[f"{name} forward"] = lambda each=each: each._infer(obs, None, True, num)
        runs[f"{name} act"] = lambda each=each: each.act(obs, None, ask, seeds)
    return runs


def engine(net: str, name: str) -> Any:
    """The engine ``name`` around the net, with its weights."""
    from rollbus_actor.engines.base import make_engine
    from rollbus_core.version import Version

    made: Any = make_engine(name, policy(net), device="cpu", threads=1)
    made.pin(Version(0, 1))
    return made


def bare_session(net: str) -> Any:
    """onnxruntime on the same net with constant weights, as anyone would run it."""
    import onnxruntime

    from rollbus_actor.engines._onnx_model import build

    made = policy(net)
    trunk, own = made.describe(True), made.state_dict()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = build(trunk, {name: own[name].numpy() for name in trunk.weights})
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def alternate(runs: dict[str, Callable[[], Any]], repeat: int, budget_s: float = 0.03) -> dict[str, float]:
    """Median seconds per call of each of ``runs``, measured in turns."""
    counts = {}
    for name, run in runs.items():
        run()
        began = time.perf_counter()
        run()
        counts[name] = max(2, int(budget_s / max(1e-6, time.perf_counter() - began)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            for _ in range(counts[name]):
                began = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - began)
    return {name: median(each) for name, each in times.items()}


# --- service -----------------------------------------------------------------------------------


def services(
    net: str, batches: list[int], clients_of: list[int], repeat: int, seconds: float, venv: Path | None
) -> list[dict[str, Any]]:
    """Latency and rate of both services for every batch and number of clients."""
    found = []
    with tempfile.TemporaryDirectory(prefix="rb") as folder:
        address = f"ipc://{folder}/policy"
        with policy_service(net, "numpy", address), nvidia(net, venv, Path(folder)) as models:
            numpy_engine = engine(net, "numpy")
            for batch in batches:
                obs = rows(net, batch)
                bare = _bare(numpy_engine, obs, batch)
                for clients in clients_of:
                    row = _compare(net, batch, clients, address, models, repeat, seconds)
                    found.append(row | {"bare_us": 1e6 * bare})
                    _say(found[-1])
    return found


def _bare(made: Any, obs: dict[str, np.ndarray], num: int) -> float:
    return alternate({"": lambda: made._infer(obs, None, False, num)}, 5)[""]


def _compare(
    net: str, batch: int, clients: int, address: str, models: list[tuple[str, str, str]],
    repeat: int, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """One load on both, in turns: first every way to ask NVIDIA's server once, then its two best ones."""
    ways = {label: (how, url, model) for label, how, url, model in _ways(models, clients)}
    tried = {label: load(*way, net, batch, clients, seconds / 2) for label, way in ways.items()}
    best = {
        min(tried, key=lambda label: tried[label]["p50_us"], default=""),
        max(tried, key=lambda label: tried[label]["per_s"], default=""),
    } - {""}
    ours = ["rollbus"] if clients == 1 else ["rollbus", "rollbus-async"]
    times: dict[str, list[dict[str, float]]] = {label: [] for label in (*ours, *best)}
    for _ in range(repeat):
        for label, results in times.items():
            way = (label, address, "") if label in ours else ways[label]
            results.append(load(*way, net, batch, clients, seconds))
    row: dict[str, Any] = {"part": "service", "net": net, "batch": batch, "clients": clients, "tried": tried}
    for label, results in times.items():
        row[label] = {key: median(result[key] for result in results) for key in results[0]}
    row["ours"], row["nvidia"] = _best(row, ours), _best(row, sorted(best))
    return row


def _best(row: dict[str, Any], labels: list[str]) -> dict[str, Any]:
    return {
        "p50_us": min((row[label]["p50_us"] for label in labels), default=float("nan")),
        "per_s": max((row[label]["per_s"] for label in labels), default=float("nan")),
        "ways": labels,
    }


def _ways(models: list[tuple[str, str, str]], clients: int) -> Iterator[tuple[str, str, str, str]]:
    for model, grpc, http in models:
        for how in WAYS:
            if how != "grpc-async" or clients > 1:
                yield f"{how} {model}", how, http if how == "http" else grpc, model


def _say(row: dict[str, Any]) -> None:
    ours, theirs, bare = row["ours"], row["nvidia"], row["bare_us"]
    overhead = (theirs["p50_us"] - bare) / (ours["p50_us"] - bare)
    print(
        f"{row['net']} batch {row['batch']:3}, {row['clients']:2} clients: p50 {ours['p50_us']:.0f} us "
        f"against {theirs['p50_us']:.0f}, overhead {overhead:.1f}x lower; {ours['per_s']:.0f} requests/s "
        f"against {theirs['per_s']:.0f}, {ours['per_s'] / theirs['per_s']:.1f}x  ({', '.join(theirs['ways'])})",
        flush=True,
    )


def load(how: str, address: str, model: str, net: str, batch: int, clients: int, seconds: float) -> Any:
    """What clients in a process of their own saw."""
    arguments = [how, address, model or "-", net, batch, clients, seconds]
    done = subprocess.run(
        [sys.executable, str(HERE / "inference_load.py"), *map(str, arguments)],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def policy_service(net: str, engine_name: str, address: str) -> Iterator[None]:
    """The policy service in a process of its own."""
    command = [sys.executable, str(HERE / "bench_inference.py"), "--serve", net, engine_name, address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield
    finally:
        process.terminate()
        process.wait()


def _serve(net: str, name: str, address: str) -> None:
    from rollbus_core import service
    from rollbus_launch.policy_service import PolicyService
    from rollbus_wire.link import ZmqLink

    made = engine(net, name)
    print("ready", flush=True)
    service.run([PolicyService(ZmqLink.bind(address), made, spec(net), made.policy.spec)])


@contextmanager
def nvidia(net: str, venv: Path | None, folder: Path) -> Iterator[list[tuple[str, str, str]]]:
    """NVIDIA's server with the net in it once per delay: (model, address by gRPC, by HTTP)."""
    if venv is None:
        yield []
        return
    sys.path.insert(0, str(HERE.parent / "tests/system"))
    from triton_kit import serving

    from rollbus_actor.engines.triton_server import Config, Engine
    from rollbus_core.version import Version

    with serving(venv, folder) as server:
        models = []
        for delay in DELAYS_US:
            config = Config(url=server.grpc, model=f"{net}_{delay}", delay_us=delay, max_batch=256)
            Engine(policy(net), config=config).pin(Version(0, 1))
            models.append((f"{net}_{delay}", server.grpc, server.http))
        yield models


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
