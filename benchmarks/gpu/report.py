"""The suite's result as JSON and as a Markdown table.

The JSON file is one object:

- ``suite``: version of this layout, 1.
- ``machine``: as `machine.describe`; ``device``: backend, torch's device, name, quick, flavours with reasons.
- ``limits``: `gpu.limits.Limits`.
- ``correctness``, ``kernels``, ``acting``, ``learning``: lists of `gpu.kernels.Correctness`,
  `gpu.kernels.Timing`, `gpu.actor.Acting` and `gpu.learner.Learning`, by their fields.
- ``failed``, ``skipped``: what did not run, and what there was no time or memory for, in words.
- ``wall_s``: seconds of the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

LAYOUT = 1


def markdown(result: dict[str, Any]) -> str:
    """The page for ``result``, the object of the JSON file."""
    device, limits = result["device"], result["limits"]
    wrong = [f"{x['op']}: {failure}" for x in result["correctness"] for failure in x["failures"]]
    num = sum(x["num_cases"] for x in result["correctness"])
    rates = ", ".join(f"{name} {rate / 1e12:.2f}" for name, rate in limits["matmul_flops_per_s"].items())
    parts = [
        f"# Accelerator suite: {device['name']}\n",
        f"{result['machine']['date']}, backend {device['backend']}, torch "
        f"{result['machine']['packages'].get('torch')}, {result['wall_s']:.0f} s. Copy bandwidth "
        f"{limits['copy_bytes_per_s'] / 1e9:.1f} GB/s (read and written); matmul {rates} TFLOP/s.\n",
        f"{num} cases of {len(result['correctness'])} ops checked, {len(wrong)} wrong.\n",
        *(f"- wrong: {line}" for line in wrong),
        _kernels(result["kernels"]),
        _acting(result["acting"]),
        _learning(result["learning"]),
        *(f"- failed: {line}" for line in result["failed"]),
        *(f"- skipped: {line}" for line in result["skipped"]),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _kernels(rows: Sequence[dict[str, Any]]) -> str:
    return _table(
        "op | size | dtype | flavour | ms | reference ms | of copy | of matmul | train ms | reference ms",
        (
            (
                x["op"], x["size"], x["dtype"], x["flavour"], _ms(x["time_ms"]), _ms(x["reference_ms"]),
                _part(x["copy_fraction"]), _part(x["matmul_fraction"]), _ms(x["train_ms"]),
                _ms(x["train_reference_ms"]),
            )
            for x in rows
        ),
    )  # fmt: skip


def _acting(rows: Sequence[dict[str, Any]]) -> str:
    return _table(
        "actor: policy | batch | eager ms | graph ms | rows/s",
        (
            (x["policy"], x["batch"], _ms(x["eager_ms"]), _ms(x["graphs_ms"]), f"{x['rows_per_s']:.0f}")
            for x in rows
        ),
    )


def _learning(rows: Sequence[dict[str, Any]]) -> str:
    return _table(
        "learner: policy | samples | minibatch | epoch ms | reference ms | samples/s",
        (
            (
                x["policy"], x["samples"], x["minibatch"], _ms(x["time_ms"]), _ms(x["reference_ms"]),
                f"{x['samples_per_s']:.0f}",
            )
            for x in rows
        ),
    )  # fmt: skip


def _table(head: str, rows: Iterable[Sequence[Any]]) -> str:
    lines = [f"| {head} |", "|---" * len(head.split(" | ")) + "|"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _part(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"
