"""Every Triton kernel becomes machine code for GPUs that are not here, within what those GPUs have.

It compiles in a process of its own: not interpreted, from an empty cache, with its standard error read, where
compilers complain and go on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="ahead-of-time compilation needs the package triton")

from rollbus_accel import aot

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "kernels.md"
TARGETS = {target.name: target for target in aot.TARGETS}
OTHER_TRITON = "3.9.0"


def compiled(folder: Path, *arguments: str, path: Path | None = None) -> list[dict[str, Any]]:
    """What the compiler measured, with ``arguments``; ``path``: where another triton is installed."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    output = folder / "found.json"
    with (folder / "stderr").open("w+") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "rollbus_accel.aot", "--json", str(output), *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=1500,
        )  # fmt: skip
        errors.seek(0)
        said = errors.read()
    assert done.returncode == 0, said[-6000:]
    assert "error:" not in said.lower(), said[-6000:]
    found: list[dict[str, Any]] = json.loads(output.read_text())
    return found


def wrong(found: dict[str, Any]) -> str:
    """What is wrong with one compiled variant; "" if nothing."""
    limit = TARGETS[found["target"]].shared_limit_bytes
    if found["num_instructions"] < 10 or found["registers"] < 4:
        return "no machine code"
    if found["shared_bytes"] > limit:
        return f"{found['shared_bytes']} bytes of shared memory, of {limit}"
    if found["spill_bytes"] and not found["spill_reason"]:
        return f"spills {found['spill_bytes']} bytes and SPILLS gives no reason"
    if found["wants_matrix"] and not found["num_matrix"]:
        return "multiplies matrices without the matrix units"
    return ""


def check(found: list[dict[str, Any]]) -> None:
    faults = [f"{x['op']} {x['variant']} {x['target']}: {wrong(x)}" for x in found if wrong(x)]
    assert not faults, "\n".join(faults)
    assert {x["target"] for x in found} == set(TARGETS)
    assert {x["op"] for x in found} == set(aot.operations())


def test_the_first_variant_of_every_kernel(tmp_path: Path) -> None:
    found = compiled(tmp_path, "--quick")
    check(found)
    assert sum(x["num_matrix"] > 0 for x in found) >= 5
    # A cache would hide what does not compile any more.
    assert max(x["compile_s"] for x in found) > 0.02


def test_faults_are_seen() -> None:
    good = {
        "target": "gfx942", "registers": 32, "shared_bytes": 65536, "spill_bytes": 0, "spill_reason": "",
        "num_instructions": 100, "num_matrix": 1, "wants_matrix": True,
    }  # fmt: skip
    assert wrong(good) == ""
    assert "shared memory" in wrong(good | {"shared_bytes": 65537})
    assert "spills" in wrong(good | {"spill_bytes": 4})
    assert wrong(good | {"spill_bytes": 4, "spill_reason": "measured to be faster"}) == ""
    assert "matrix units" in wrong(good | {"num_matrix": 0})
    assert "machine code" in wrong(good | {"num_instructions": 0})


def test_unknown_names_are_refused_in_words() -> None:
    for arguments in (["--ops", "nothing"], ["--targets", "sm_1"]):
        with pytest.raises(SystemExit, match=f"{arguments[1]}.*there are"):
            aot.main(arguments)


def test_every_kernel_is_listed_and_named_once() -> None:
    for op in aot.operations():
        names = [variant.name for variant in aot.variants(op)]
        assert names and len(set(names)) == len(names), op


def test_the_page_has_every_op_and_variant() -> None:
    text = PAGE.read_text()
    for op in aot.operations():
        section = text.split(f"\n## {op}\n")[1].split("\n## ")[0]
        missing = [v.name for v in aot.variants(op) if f"| {v.name} |" not in section]
        assert not missing, f"{op} {missing}: run python -m rollbus_accel.aot --write docs/kernels.md"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_variants_with_the_installed_triton(tmp_path: Path) -> None:
    page = tmp_path / "kernels.md"
    check(compiled(tmp_path, "--write", str(page)))
    if f"with triton {version('triton')};" in PAGE.read_text():
        assert page.read_text() == PAGE.read_text(), "run python -m rollbus_accel.aot --write docs/kernels.md"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_variants_with_another_triton(tmp_path: Path) -> None:
    """The newest that was tried; the installed one is what torch pins."""
    path = tmp_path / "packages"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-compile",
        "--target",
        str(path),
    ]
    done = subprocess.run([*install, f"triton=={OTHER_TRITON}"], capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.skip(f"triton {OTHER_TRITON} cannot be installed: {done.stderr[-300:]}")
    found = subprocess.run(
        [sys.executable, "-c", "import triton; print(triton.__version__)"],
        env={**os.environ, "PYTHONPATH": str(path)}, capture_output=True, text=True, timeout=120,
    ).stdout.strip()  # fmt: skip
    assert found == OTHER_TRITON
    check(compiled(tmp_path, path=path))
