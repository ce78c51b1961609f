"""Inference: engines against bare onnxruntime, and the policy service against NVIDIA's inference server.

    .venv/bin/python benchmarks/bench_inference.py [--part engines,service] [--triton VENV] [--json FILE]

Every ratio is of medians of alternating repetitions of one run. ``--triton`` names an environment with
nvidia-pytriton (``python -m venv V; V/bin/pip install torch==2.13.0; V/bin/pip install torch==2.13.0
nvidia-pytriton==0.7.0``). Its server is started here twice: as it is, with its Python backend, and by
pytriton, which puts a process of its own behind it. All serve the policy by the same numpy code, so that
only the way there differs.
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

import inference_peers as peers
import numpy as np
from inference_nets import policy, rows, spec

HERE = Path(__file__).resolve().parent
#: How clients ask, address and model: what `load` takes.
Way = tuple[str, str, str]
SPIN_S = 300e-6
#: A measurement lasts so many rounds of all clients at least, if nothing but the forward pass took time.
ROUNDS = 2


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
    parser.add_argument(
        "--serve", nargs=4, metavar=("NET", "ENGINE", "ADDRESS", "SPIN_S"), help=argparse.SUPPRESS
    )
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
    """Latency and rate of the services for every batch and number of clients."""
    found = []
    with tempfile.TemporaryDirectory(prefix="rb") as folder:
        address, spinning = f"ipc://{folder}/policy", f"ipc://{folder}/spinning"
        ways = {"rollbus": ("rollbus", address, ""), "rollbus-async": ("rollbus-async", address, ""),
                "rollbus spinning": ("rollbus", spinning, "")}  # fmt: skip
        with (
            policy_service(net, "numpy", address), policy_service(net, "numpy", spinning, SPIN_S),
            peers.serving_all(net, venv, Path(folder)) as others,
        ):  # fmt: skip
            numpy_engine = engine(net, "numpy")
            for batch in batches:
                forward = _forward(numpy_engine, rows(net, batch), batch)
                for clients in clients_of:
                    load_of = (net, batch, clients, seconds)
                    found.append(_compare(load_of, {"rollbus": ways, **others}, forward, repeat))
                    _say(found[-1])
    return found


def _forward(made: Any, obs: dict[str, np.ndarray], num: int) -> Callable[[], Any]:
    return lambda: made._infer(obs, None, False, num)


def _compare(
    load_of: tuple[str, int, int, float], services: dict[str, dict[str, Way]], forward: Callable[[], Any],
    repeat: int,
) -> dict[str, Any]:  # fmt: skip
    """One load on all services, in turns: every way to ask once, then the best ones of each."""
    net, batch, clients, seconds = load_of
    seconds = max(seconds, ROUNDS * clients * alternate({"": forward}, 1)[""])
    best: dict[str, set[str]] = {}
    tried: dict[str, Any] = {}
    for service, ways in services.items():
        usable = [label for label in ways if clients > 1 or "async" not in label]
        tried |= {label: load(*ways[label], net, batch, clients, seconds / 2) for label in usable}
        best[service] = {
            min(usable, key=lambda label: tried[label]["p50_us"]),
            max(usable, key=lambda label: tried[label]["per_s"]),
        }
    results: dict[str, list[dict[str, float]]] = {}
    bare: list[float] = []
    for _ in range(repeat):
        bare.append(alternate({"": forward}, 1)[""])
        for service, labels in best.items():
            for label in labels:
                one = load(*services[service][label], net, batch, clients, seconds)
                results.setdefault(label, []).append(one)
    row: dict[str, Any] = {"part": "service", "net": net, "batch": batch, "clients": clients, "tried": tried}
    row["bare_us"] = 1e6 * median(bare)
    for service, labels in best.items():
        row[service] = {
            "p50_us": min(median(r["p50_us"] for r in results[label]) for label in labels),
            "per_s": max(median(r["per_s"] for r in results[label]) for label in labels),
            "ways": sorted(labels),
        }
    return row


def _say(row: dict[str, Any]) -> None:
    ours, bare = row["rollbus"], row["bare_us"]
    lines = [
        f"{row['net']} batch {row['batch']}, {row['clients']} clients: p50 {ours['p50_us']:.0f} us, "
        f"{bare:.0f} of it forward; {ours['per_s']:.0f} requests/s"
    ]
    for service in peers.SERVICES:
        if service in row:
            theirs = row[service]
            overhead = (theirs["p50_us"] - bare) / (ours["p50_us"] - bare)
            lines.append(
                f"    {service}: p50 {theirs['p50_us']:.0f} us, overhead {overhead:.1f}x ours; requests/s "
                f"{theirs['per_s']:.0f}, ours {ours['per_s'] / theirs['per_s']:.1f}x  "
                f"({', '.join(theirs['ways'])})"
            )
    print("\n".join(lines), flush=True)


def load(how: str, address: str, model: str, net: str, batch: int, clients: int, seconds: float) -> Any:
    """What clients in a process of their own saw."""
    arguments = [how, address, model or "-", net, batch, clients, seconds]
    done = subprocess.run(
        [sys.executable, str(HERE / "inference_load.py"), *map(str, arguments)],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def policy_service(net: str, engine_name: str, address: str, spin_s: float = 0.0) -> Iterator[None]:
    """The policy service in a process of its own."""
    command = [
        sys.executable,
        str(HERE / "bench_inference.py"),
        "--serve",
        net,
        engine_name,
        address,
        str(spin_s),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield
    finally:
        process.terminate()
        process.wait()


def _serve(net: str, name: str, address: str, spin_s: str) -> None:
    from rollbus_core import service
    from rollbus_launch.policy_service.service import PolicyService
    from rollbus_wire.zmq_link import ZmqLink

    made = engine(net, name)
    print("ready", flush=True)
    link = ZmqLink.bind(address)
    service.run([PolicyService(link, made, spec(net), made.policy.spec, spin_s=float(spin_s))])


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
