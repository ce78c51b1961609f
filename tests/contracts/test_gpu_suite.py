"""The suite for accelerators, on the CPU: it runs, says what is wrong, and its figures add up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "benchmarks" / "gpu_suite.py"


def suite(folder: Path, *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
    """(JSON, Markdown) of a run with ``arguments`` that ends with ``code``."""
    out = folder / "result.json"
    done = subprocess.run(
        [sys.executable, str(SUITE), "--device", "cpu", "--quick", "--out", str(out), *arguments],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    text = out.with_suffix(".md").read_text()
    assert done.stdout.strip() == text.strip()
    return json.loads(out.read_text()), text


def check(result: dict[str, Any], ops: set[str]) -> None:
    assert result["suite"] == 1 and result["device"]["backend"] == "cpu" and not result["skipped"]
    limits = result["limits"]
    assert limits["copy_bytes_per_s"] > 1e8 and min(limits["matmul_flops_per_s"].values()) > 1e8
    assert {x["op"] for x in result["correctness"]} == {x["op"] for x in result["kernels"]} == ops
    assert all(x["num_cases"] > 0 and not x["failures"] for x in result["correctness"])
    for timing in result["kernels"]:
        assert timing["time_ms"] > 0 and timing["reference_ms"] > 0 and timing["copy_fraction"] > 0
    assert (
        {x["policy"] for x in result["acting"]} == {x["policy"] for x in result["learning"]} == {"mlp", "cnn"}
    )
    for acting in result["acting"]:
        assert acting["graphs_ms"] is None and "accelerator" in acting["reason"]
        assert acting["rows_per_s"] == pytest.approx(1e3 * acting["batch"] / acting["eager_ms"])


def test_two_ops_and_the_paths_of_actor_and_learner(tmp_path: Path) -> None:
    result, text = suite(tmp_path, "--ops", "rms_norm,weight_delta")
    check(result, {"rms_norm", "weight_delta"})
    rows = {x["dtype"]: x for x in result["kernels"] if x["op"] == "rms_norm"}
    # 256 x 1024 numbers of 4 bytes are read and written.
    seconds = 2 * 256 * 1024 * 4 / (rows["float32"]["copy_fraction"] * result["limits"]["copy_bytes_per_s"])
    assert 1e3 * seconds == pytest.approx(rows["float32"]["time_ms"])
    assert rows["float32"]["train_ms"] > 0 and rows["float32"]["matmul_fraction"] is None
    assert "| rms_norm | 256x1024 | float32 | reference |" in text and "0 wrong" in text


def test_what_there_is_no_time_for_is_said(tmp_path: Path) -> None:
    result, text = suite(tmp_path, "--budget-s", "0")
    assert not result["kernels"] and not result["acting"]
    assert "cases of gae: no time left" in result["skipped"] and "skipped: acting mlp 1" in text


def test_a_kernel_that_is_wrong_fails_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SUITE.parent))
    import gpu_suite
    from gpu import kernels

    from rollbus_accel.kernels import base

    def wrong(op: str, flavour: str, name: str, real: Any = base.implementation) -> Any:
        found = real(op, flavour, name)
        return found if flavour == "reference" else lambda *args: tuple(x + 1 for x in found(*args))

    monkeypatch.setattr(base, "implementation", wrong)
    found = kernels.check("gae", gpu_suite.Clock(gpu_suite.choose("cpu"), quick=True))
    assert found.num_cases == len(found.failures) > 0
    assert "not close" in found.failures[0]


@pytest.mark.long
def test_all_ops(tmp_path: Path) -> None:
    from rollbus_accel.kernels import base

    check(suite(tmp_path)[0], set(base.ops()))
