"""Kernels as fractions of the machine's limits: ``python benchmarks/bench_kernels.py --cpu``.

Bytes are those of the inputs, read once, and of the outputs, written once. The limit is a copy that moves
as many bytes, read and written, in the same process. Everything is measured in turn, and medians are shown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rollbus_accel.kernels import base

STEPS, ROWS = 128, 4096
#: Acceptance: fraction of the copy bandwidth.
TARGETS = {"gae": 0.60, "vtrace": 0.30}
Call = Callable[[], object]


def alternating(calls: dict[str, Call], repeats: int) -> dict[str, float]:
    """Median seconds of each call, all taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def num_bytes(tensors: list[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def trajectory() -> dict[str, Tensor]:
    """[STEPS, ROWS] columns with one end in fifty and no gaps."""
    torch.manual_seed(0)
    shape = (STEPS, ROWS)
    terminated, truncated = torch.rand(shape) < 0.01, torch.rand(shape) < 0.01
    return {
        "reward": torch.randn(shape),
        "discount": torch.full(shape, 0.99),
        "value": torch.randn(shape),
        "next_value": torch.randn(shape),
        "terminated": terminated,
        "done": terminated | truncated,
        "valid": torch.ones(shape, dtype=torch.bool),
    }


def copying(bytes_moved: int) -> Call:
    """A copy that reads and writes ``bytes_moved`` together."""
    source = np.random.default_rng(0).integers(0, 255, bytes_moved // 2, dtype=np.uint8)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


def estimators(repeats: int) -> None:
    """GAE and V-trace in numba against a copy."""
    from rollbus_accel.kernels.gae import gae
    from rollbus_accel.kernels.vtrace import vtrace

    columns = trajectory()
    log_ratio = 0.3 * torch.randn(STEPS, ROWS)
    calls: dict[str, tuple[Call, int]] = {}
    with base.use("numba"):
        for name, function, inputs in (
            ("gae", gae, columns),
            ("vtrace", vtrace, columns | {"log_ratio": log_ratio}),
        ):
            outputs = function(**inputs, lam=0.95)
            moved = num_bytes([*inputs.values(), *outputs])
            calls[name] = (lambda f=function, x=inputs: f(**x, lam=0.95), moved)
        for name, (call, moved) in calls.items():
            seconds = alternating({"ours": call, "copy": copying(moved)}, repeats)
            fraction = seconds["copy"] / seconds["ours"]
            verdict = "ok" if fraction >= TARGETS[name] else "BELOW"
            print(
                f"{name:8} {STEPS} x {ROWS} float32: {moved / seconds['ours'] / 1e9:6.2f} GB/s, "
                f"copy {moved / seconds['copy'] / 1e9:6.2f} GB/s, {fraction:5.0%} of it "
                f"(target {TARGETS[name]:.0%}: {verdict})"
            )


def versus_reference(repeats: int) -> None:
    """Times of numba over those of the plain torch reference, forward and, where there is one, backward."""
    from rollbus_accel.kernels import gae, ppo_loss, sample_categorical, vtrace
    from rollbus_accel.kernels.ppo_loss import cases as ppo_cases
    from rollbus_accel.kernels.sample_categorical import cases as choice_cases

    columns = trajectory() | {"lam": 0.95}
    jobs: dict[str, Call] = {
        "gae 128x4096": lambda: gae.gae(**columns),
        "vtrace 128x4096": lambda: vtrace.vtrace(columns["reward"], **columns),
    }
    for rows in (16, 256):
        logits = choice_cases.rows(rows, 6, torch.float32)
        jobs[f"sample_categorical {rows}x6"] = lambda x=logits: sample_categorical.sample_categorical(**x)
    for num in (256, 2048, 16384):
        made = ppo_cases.samples(num, dtype=torch.float32, entropy_coef=0.01)
        inputs = [made[name].requires_grad_() for name in ("log_prob", "value", "entropy")]
        jobs[f"ppo_loss {num}, with gradients"] = lambda m=made, i=inputs: torch.autograd.grad(
            ppo_loss.ppo_loss(**m).mean(), i
        )
    for name, job in jobs.items():
        calls = {flavour: _under(flavour, job) for flavour in ("reference", "numba")}
        for call in calls.values():
            call()
        seconds = alternating(calls, repeats)
        print(
            f"{name:32} numba {seconds['numba'] * 1e6:8.0f} us, "
            f"{seconds['reference'] / seconds['numba']:6.2f}x as fast as plain torch"
        )


def _under(flavour: str, job: Call) -> Call:
    def call() -> None:
        with base.use(flavour):
            job()

    return call


def main() -> None:
    """Parse, run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="numba kernels on one core")
    parser.add_argument("--repeats", type=int, default=101)
    args = parser.parse_args()
    if not args.cpu:
        parser.error("give --cpu")
    torch.set_num_threads(1)
    estimators(args.repeats)
    versus_reference(max(11, args.repeats // 4))


if __name__ == "__main__":
    main()
