"""Weights: to actors of one host against memcpy and Ray, and over a link of 1 Gbit/s.

    .venv/bin/python benchmarks/bench_weights.py [--ray PYTHON] [--mb 1000] [--link-mb 256] [--json FILE]

Every figure is the median of alternating repetitions of one run. ``--ray`` names an interpreter that has
ray and torch (``python -m venv ray; ray/bin/pip install ray torch``). The link needs root: a network
namespace whose loopback is limited by ``tc``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

NAMESPACE = "rollbus-bench"
HERE = Path(__file__).resolve()


def model(num_mb: float) -> dict[str, tuple[int, ...]]:
    """Shapes of a transformer of float32, about ``num_mb`` MB: 20 % embedding, the rest in layers."""
    layers = max(1, round(num_mb * 0.8 / 50.3))
    shapes: dict[str, tuple[int, ...]] = {"embedding": (int(num_mb * 0.2e6 / 4096), 1024)}
    for i in range(layers):
        shapes |= {
            f"{i}.qkv": (3072, 1024), f"{i}.out": (1024, 1024), f"{i}.norm": (1024,),
            f"{i}.up": (4096, 1024), f"{i}.bias": (4096,), f"{i}.down": (1024, 4096),
        }  # fmt: skip
    return shapes


def tensors(num_mb: float, seed: int = 0) -> dict[str, np.ndarray]:
    """The model with random weights."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape, np.float32) * np.float32(0.02)
        for name, shape in model(num_mb).items()
    }  # fmt: skip


class Child:
    """A process that answers one line of JSON per line of JSON."""

    def __init__(self, python: str, *arguments: str) -> None:
        command = [*python.split(), str(HERE), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended: {self.process.wait()}")
        return json.loads(line)

    def ask(self, value: Any) -> Any:
        self.tell(value)
        return self.answer()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def requests() -> Iterator[Any]:
    """A child's requests."""
    for line in sys.stdin:
        yield json.loads(line)


def reply(value: Any) -> None:
    """A child's answer."""
    print(json.dumps(value), flush=True)


# --- one host --------------------------------------------------------------------------------------


def reader_process(prefix: str, num_mb: str) -> None:
    """An actor: copies what a notice names into its own tensors."""
    from rollbus_core.weights.copying import copy_tensors
    from rollbus_core.weights.shm import WeightReader
    from rollbus_wire.messages import from_data

    own = {name: np.ones(shape, np.float32) for name, shape in model(float(num_mb)).items()}
    reader = WeightReader(Path(prefix))
    reply("ready")
    for request in requests():
        with reader.open(from_data("notice", request["notice"]), request["verify"]) as there:  # type: ignore[arg-type]
            copy_tensors(own, there)
        reply(float(own["0.norm"][0]))


def ray_process(num_mb: str, num_actors: str) -> None:
    """A learner and actors in Ray: put, get, load_state_dict; of torch's tensors, or of numpy's."""
    # Four copies of 1 GB beside ours come near what Ray takes for the end of the memory: it would kill them.
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"
    import ray
    import torch

    ray.init(num_cpus=8, object_store_memory=4 << 30, include_dashboard=False, log_to_driver=False)
    shapes = model(float(num_mb))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, shape in shapes.items():
                value = torch.nn.Parameter(torch.zeros(shape), requires_grad=False)
                self.register_parameter(name.replace(".", "_"), value)

    @ray.remote(num_cpus=0)
    class Actor:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.net = Net()

        def load(self, state: Any) -> bool:
            self.net.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
            return True

    arrays = {name.replace(".", "_"): value for name, value in tensors(float(num_mb)).items()}
    states = {"torch": {name: torch.from_numpy(value) for name, value in arrays.items()}, "numpy": arrays}
    actors = [Actor.remote() for _ in range(int(num_actors))]
    reply("ready")
    for kind, count in requests():
        began = time.perf_counter()
        reference = ray.put(states[kind])
        ray.get([actor.load.remote(reference) for actor in actors[:count]])
        reply(time.perf_counter() - began)
        del reference
    ray.shutdown()


def one_host(options: argparse.Namespace) -> dict[str, Any]:
    """Copies to 1, 2 and 4 actors, beside memcpy and Ray."""
    from rollbus_core.weights.shm import WeightWriter
    from rollbus_wire.messages import to_data

    weights = tensors(options.mb)
    num_bytes = sum(value.nbytes for value in weights.values())
    source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    most = max(options.readers)
    times: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        writer = WeightWriter(Path(folder) / "weights-policy", num_bytes + 65536)
        readers = [Child(sys.executable, "reader", str(writer.prefix), str(options.mb)) for _ in range(most)]
        ray = Child(options.ray, "ray", str(options.mb), str(most)) if options.ray else None
        children = [*readers, *([ray] if ray else [])]
        for child in children:
            child.answer()
        number = 0

        def publish() -> Any:
            nonlocal number
            number += 1
            weights["0.norm"][0] = number
            notice = writer.publish((0, number), weights)
            assert notice is not None
            return to_data(notice)

        def broadcast(notice: Any, count: int, verify: bool) -> None:
            for child in readers[:count]:
                child.tell({"notice": notice, "verify": verify})
            assert all(child.answer() == number for child in readers[:count])

        for _ in range(3):  # every reader maps every buffer once
            broadcast(publish(), most, True)
            if ray is not None:
                ray.ask(["numpy", most])
        for _ in range(options.repeat):
            timed(times, "memcpy", lambda: np.copyto(target, source))
            for count in options.readers:
                notice = publish()
                timed(times, f"copy {count}", lambda n=notice, c=count: broadcast(n, c, False))
                timed(times, f"verify {count}", lambda n=notice, c=count: broadcast(n, c, True))
                timed(times, f"publish to applied {count}", lambda c=count: broadcast(publish(), c, True))
                for kind in ("torch", "numpy") if ray is not None else ():
                    times[f"ray {kind} {count}"].append(ray.ask([kind, count]))  # type: ignore[union-attr]
            timed(times, "publish", publish)
        for child in children:
            child.end()
    return report_host(options, num_bytes, {name: statistics.median(found) for name, found in times.items()})


def timed(times: dict[str, list[float]], name: str, run: Callable[[], Any]) -> None:
    """Append the seconds that ``run`` takes."""
    began = time.perf_counter()
    run()
    times[name].append(time.perf_counter() - began)


def report_host(options: argparse.Namespace, num_bytes: int, found: dict[str, float]) -> dict[str, Any]:
    rate = num_bytes / found["memcpy"]
    publish = rate_of(num_bytes, found["publish"])
    print(f"{num_bytes / 1e9:.2f} GB, memcpy {rate / 1e9:.1f} GB/s, publish {publish}")
    results: dict[str, Any] = {"bytes": num_bytes, "median_s": found}
    for count in options.readers:
        copied = count * num_bytes / found[f"copy {count}"] / rate
        verified = count * num_bytes / found[f"verify {count}"] / rate
        line = (
            f"{count} actors: copy {copied:.0%} of memcpy (bar 80 %), with digest {verified:.0%} (bar 40 %)"
        )
        results[f"copy_{count}"], results[f"verify_{count}"] = copied, verified
        print(line, flush=True)
        for kind in ("torch", "numpy"):
            if f"ray {kind} {count}" in found:
                whole = found[f"ray {kind} {count}"] / found[f"publish to applied {count}"]
                results[f"ray_{kind}_{count}"] = whole
                alone = found[f"ray {kind} {count}"] / found[f"copy {count}"]
                results[f"ray_{kind}_{count}_copy"] = alone
                print(
                    f"    Ray, {kind} tensors: put, get, load_state_dict take {whole:.1f}x the time of ours, "
                    f"publish to applied with digest (bar 3x), and {alone:.1f}x that of the actors' copies"
                )
    return results


def rate_of(num_bytes: float, seconds: float) -> str:
    return f"{num_bytes / seconds / 1e9:.1f} GB/s"


# --- another host ----------------------------------------------------------------------------------


def relay_process(prefix: str, cast: str) -> None:
    """The relay of another host: what came, how long it took, and over how many bytes."""
    from rollbus_core.weights.age import age_s
    from rollbus_core.weights.relay import WeightRelay
    from rollbus_wire.messages import from_data
    from rollbus_wire.zmq_link import ZmqLink

    relay = WeightRelay(Path(prefix), ZmqLink.connect, cast=cast)
    before = 0
    for request in requests():
        wanted: Any = from_data("notice", request)
        while (here := relay.local(wanted)) is None or here.version < wanted.version:
            time.sleep(0.001)
        seconds, total = age_s(here), relay.stream.num_bytes if relay.stream else 0
        with relay.open(here) as there:
            reply([seconds, total - before, float(there["0.norm"][0]), relay.stream.link_bytes_per_s])  # type: ignore[union-attr]
        before = total
    relay.close()


def link_process(num_mb: str, repeat: str) -> None:
    """Inside the namespace: a learner whose versions change wholly or by 1 %, and two relays."""
    from rollbus_core.weights.served import ServedWriter
    from rollbus_core.weights.shm import WeightWriter
    from rollbus_wire.messages import to_data
    from rollbus_wire.zmq_link import ZmqLink

    weights = tensors(float(num_mb))
    rng = np.random.default_rng(1)
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        writer = ServedWriter(
            WeightWriter(Path(folder) / "there-policy"), lambda: ZmqLink.bind("tcp://127.0.0.1:0")
        )
        relays = {
            cast: Child(sys.executable, "relay", f"{folder}/here-{cast or 'float32'}-policy", cast)
            for cast in ("", "bfloat16")
        }  # fmt: skip
        number = 0

        def send(label: str) -> None:
            nonlocal number
            for cast, relay in relays.items():
                number += 1
                weights["0.norm"][0] = number
                notice = writer.publish((0, number), weights)
                assert notice is not None
                seconds, num_bytes, value, _ = relay.ask(to_data(notice))
                assert abs(value - number) <= number * 2**-8
                found[f"{label} {cast or 'float32'}"].append((seconds, num_bytes))

        send("first")
        for _ in range(int(repeat)):
            for value in weights.values():
                value += np.float32(1e-3)
            send("full")
            for value in weights.values():
                flat = value.reshape(-1)
                flat[rng.integers(0, flat.size, max(1, flat.size // 100))] *= np.float32(1.5)
            send("delta")
        for relay in relays.values():
            relay.end()
        writer.close()
    reply({name: [statistics.median(v) for v in zip(*pairs)] for name, pairs in found.items()})


@contextmanager
def namespace(rate: str) -> Iterator[list[str]]:
    """A network namespace whose loopback carries ``rate``; the command that enters it."""
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    enter = ["ip", "netns", "exec", NAMESPACE]
    try:
        subprocess.run([*enter, "ip", "link", "set", "lo", "mtu", "1500", "up"], check=True)
        limit = f"tc qdisc add dev lo root tbf rate {rate} burst 128kb latency 50ms"
        subprocess.run([*enter, *limit.split()], check=True)
        yield enter
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=True)


def other_host(options: argparse.Namespace) -> dict[str, Any]:
    """Whole images and deltas over a limited link."""
    if os.geteuid() != 0:
        print("link: skipped, a network namespace needs root")
        return {}
    with namespace(options.rate) as enter:
        child = Child(" ".join([*enter, sys.executable]), "link", str(options.link_mb), str(options.repeat))
        found = child.answer()
        child.end()
    for name, (seconds, num_bytes) in found.items():
        print(f"{options.rate} {name}: {num_bytes / 1e6:.1f} MB, {seconds:.2f} s, publish to readable")
    (full_s, full_bytes), (delta_s, delta_bytes) = found["full float32"], found["delta float32"]
    fewer, faster = full_bytes / delta_bytes, full_s / delta_s
    print(f"delta of 1 %: {fewer:.0f}x fewer bytes (bar 10x), {faster:.1f}x less time (bar 5x)")
    return {"fewer_bytes": fewer, "less_time": faster, "median_s_bytes": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=float, default=1000, help="MB of weights on one host")
    parser.add_argument("--link-mb", type=float, default=256, help="MB of weights over the link")
    parser.add_argument("--rate", default="1gbit", help="rate of the link, as tc writes it")
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ray", default="", help="an interpreter that has ray and torch")
    parser.add_argument("--part", choices=["host", "link", "all"], default="all")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.part in ("host", "all"):
        results["host"] = one_host(options)
    if options.part in ("link", "all"):
        results["link"] = other_host(options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


CHILDREN: dict[str, Callable[..., None]] = {
    "reader": reader_process, "ray": ray_process, "relay": relay_process, "link": link_process,
}  # fmt: skip

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in CHILDREN:
        CHILDREN[sys.argv[1]](*sys.argv[2:])
    else:
        main()
