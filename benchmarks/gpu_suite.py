"""Check and time every kernel, the actor's and the learner's path on whatever accelerator there is.

``python benchmarks/gpu_suite.py`` takes the best accelerator and under five minutes, prints a Markdown table
and writes it and ``gpu_suite.json`` (layout: gpu/report.py). Figures are fractions of what the same run
measured as the device's copy bandwidth and matmul rate. Exit status 1: something was wrong or did not run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import machine
import torch
from gpu import actor, kernels, learner, limits, policies, report
from gpu.clock import Clock
from gpu.failures import FAILURES, first_line

from rollbus_accel.backends.base import choose
from rollbus_accel.kernels import base


class Budget:
    """Runs parts while there is time, and remembers which it left out."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.skipped: list[str] = []
        self.failed: list[str] = []

    def run(self, name: str, call: Callable[[], Any]) -> list[dict[str, Any]]:
        """[what ``call`` gives], or [] if it is late, does not fit the device's memory or fails."""
        if time.monotonic() > self._end:
            self.skipped.append(f"{name}: no time left")
            return []
        try:
            return [asdict(call())]
        except torch.OutOfMemoryError as error:
            self.skipped.append(f"{name}: {first_line(error)}")
        except FAILURES as error:
            self.failed.append(f"{name}: {first_line(error)}")
        return []


def run(clock: Clock, ops: Sequence[str], budget_s: float) -> dict[str, Any]:
    """The result, as the JSON file holds it."""
    start, budget = time.monotonic(), Budget(budget_s)
    limit = limits.measure(clock)
    result: dict[str, Any] = {
        "suite": report.LAYOUT,
        "machine": machine.describe(),
        "device": _device(clock),
        "limits": asdict(limit),
        "correctness": [],
        "kernels": [],
        "acting": [],
        "learning": [],
    }
    for op in ops:
        result["correctness"] += budget.run(f"cases of {op}", lambda op=op: kernels.check(op, clock))
    for op in ops:
        for bench, dtype in kernels.benches(op, clock):
            result["kernels"] += budget.run(
                f"{op} {bench.name} {dtype}",
                lambda op=op, b=bench, d=dtype: kernels.measure(op, b, d, clock, limit),
            )
    for name in policies.SPECS:
        for batch in actor.batches(clock):
            call = lambda n=name, b=batch: actor.measure(n, b, clock)  # noqa: E731
            result["acting"] += budget.run(f"acting {name} {batch}", call)
        result["learning"] += budget.run(f"learning {name}", lambda n=name: learner.measure(n, clock))
    left = {"failed": budget.failed, "skipped": budget.skipped}
    return result | left | {"wall_s": round(time.monotonic() - start, 1)}


def _device(clock: Clock) -> dict[str, Any]:
    runtime = getattr(torch, clock.backend.device)
    name = getattr(runtime, "get_device_name", lambda *_: machine.describe()["cpu"])
    return {
        "backend": clock.backend.name,
        "torch": clock.device,
        "name": name() if clock.backend.device == "cpu" else name(0),
        "quick": clock.quick,
        "flavours": [asdict(flavour) for flavour in clock.backend.flavours()],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="auto", help="a backend: auto, cuda, rocm, ascend, musa, xpu, cpu"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes; the CPU gets them in any case")
    parser.add_argument("--ops", default="", help="comma-separated; default: all")
    parser.add_argument(
        "--budget-s", type=float, default=270.0, help="seconds after which parts are left out"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("gpu_suite.json"), help="the JSON file; .md beside it"
    )
    options = parser.parse_args(arguments)
    backend = choose(options.device)
    clock = Clock(backend, options.quick or backend.device == "cpu")
    ops = options.ops.split(",") if options.ops else base.ops()
    result = run(clock, ops, options.budget_s)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    text = report.markdown(result)
    options.out.with_suffix(".md").write_text(text)
    print(text)
    return 1 if result["failed"] or any(x["failures"] for x in result["correctness"]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
