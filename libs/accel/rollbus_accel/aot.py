"""Compile every Triton kernel to machine code for GPUs that are not here, and read what it costs.

``python -m rollbus_accel.aot`` compiles all variants of all ops for all targets; ``--write FILE`` makes the
page docs/kernels.md of it, ``--json FILE`` the measurements. Nothing runs: this finds kernels that do not
compile, spill, need more shared memory than a target has or miss its matrix units.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KERNELS = "rollbus_accel.kernels"


@dataclass(frozen=True)
class Target:
    """A kind of GPU to compile for."""

    name: str
    #: triton's names: back end, architecture, lanes that run together.
    backend: str
    arch: int | str
    warp_size: int
    #: Shared memory (LDS) that one program may have, from the vendors' guides.
    shared_limit_bytes: int
    #: What instructions of the matrix units look like.
    matrix: str


TARGETS = (
    Target("sm_80", "cuda", 80, 32, 166_912, r"\b[HI]G?MMA\b|\b[DQ]MMA\b"),
    Target("sm_90", "cuda", 90, 32, 232_448, r"\b[HIQDW]G?MMA\b|WARPGROUP"),
    Target("sm_100", "cuda", 100, 32, 232_448, r"\bUTC\w*MMA\b|\b[HIQDW]MMA\b"),
    Target("gfx942", "hip", "gfx942", 64, 65_536, r"\bv_(s?w?mfma|mfma)\w*"),
    Target("gfx950", "hip", "gfx950", 64, 163_840, r"\bv_(s?w?mfma|mfma)\w*"),
)


@dataclass(frozen=True)
class Resources:
    """What one variant takes on one target."""

    op: str
    variant: str
    target: str
    registers: int
    shared_bytes: int
    #: Local memory of a thread: what does not fit its registers.
    spill_bytes: int
    num_instructions: int
    #: Instructions of the matrix units.
    num_matrix: int
    #: Whether the kernel multiplies matrices of 16-bit numbers, which every target has units for.
    wants_matrix: bool
    compile_s: float


def operations() -> list[str]:
    """Ops that have a Triton kernel: folders with a ``triton.py``."""
    package = importlib.import_module(KERNELS)
    folders = [Path(path) for path in package.__path__]
    return sorted(p.parent.name for folder in folders for p in folder.glob("*/triton.py"))


def variants(op: str) -> Sequence[Any]:
    """The variants that ``op`` lists for this test."""
    found: Sequence[Any] = importlib.import_module(f"{KERNELS}.{op}.triton").VARIANTS
    return found


def measure(op: str, variant: Any, target: Target) -> Resources:
    """Compile one variant for one target."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=variant.kernel,
        signature={name: _kind(variant, name)[0] for name in variant.kernel.arg_names},
        constexprs={(variant.kernel.arg_names.index(n),): value for n, value in variant.constexprs.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(variant.kernel.arg_names)
            if _kind(variant, name)[1]
        },
    )
    start = time.monotonic()
    compiled = triton.compile(
        source,
        target=GPUTarget(target.backend, target.arch, target.warp_size),
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages},
    )
    seconds = time.monotonic() - start
    read = _read_cuda if target.backend == "cuda" else _read_hip
    registers, spill_bytes, code = read(compiled.asm)
    return Resources(
        op, variant.name, target.name, registers, compiled.metadata.shared, spill_bytes,
        num_instructions=len(code), num_matrix=sum(bool(re.search(target.matrix, line)) for line in code),
        wants_matrix=bool(re.search(r"tt\.dot .*x(bf16|f16)>", compiled.asm["ttir"])),
        compile_s=round(seconds, 3),
    )  # fmt: skip


def _kind(variant: Any, name: str) -> tuple[str, bool]:
    """(triton's type, whether a multiple of 16) of one argument.

    Pointers are, as those of torch's tensors; a number is where its type ends in ":16", as triton sees by
    itself at run time.
    """
    kind, _, divisor = str(variant.signature.get(name, "constexpr")).partition(":")
    return kind, kind.startswith("*") or divisor == "16"


def _read_cuda(asm: Any) -> tuple[int, int, list[str]]:
    """Registers a thread, bytes of stack, instructions; from the cubin by the tools in triton's wheel."""
    import triton.backends.nvidia

    tools = Path(triton.backends.nvidia.__path__[0]) / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        usage = _output([tools / "cuobjdump", "--dump-resource-usage", file.name])
        listing = _output([tools / "nvdisasm", "-c", file.name])
    code = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(\S.*);", listing, re.MULTILINE)
    return _number(r"REG:(\d+)", usage), _number(r"STACK:(\d+)", usage), code


def _read_hip(asm: Any) -> tuple[int, int, list[str]]:
    """Vector registers a lane, bytes of scratch memory, instructions; from the assembly."""
    text = asm["amdgcn"]
    code = re.findall(r"^\t([a-z]+_\w+.*)$", text, re.MULTILINE)
    return (
        _number(r"\.vgpr_count:\s*(\d+)", text),
        _number(r"\.private_segment_fixed_size:\s*(\d+)", text),
        code,
    )


def _output(command: list[Any]) -> str:
    done = subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise LookupError(f"the compiler's report has no {pattern!r}; does this triton write it differently?")
    return int(found[1])


def measure_all(
    ops: Iterable[str], targets: Iterable[Target], *, first_only: bool = False
) -> list[Resources]:
    """All variants, or the first of each kernel, in the order op, variant, target."""
    chosen = list(targets)
    found = []
    for op in ops:
        seen: set[str] = set()
        for variant in variants(op):
            if first_only and variant.kernel.__name__ in seen:
                continue
            seen.add(variant.kernel.__name__)
            found += [measure(op, variant, target) for target in chosen]
    return found


def _named(names: str, known: Sequence[str], kind: str) -> list[str]:
    """The comma-separated ``names``; "all" is every one."""
    chosen = list(known) if names == "all" else names.split(",")
    for name in chosen:
        if name not in known:
            raise SystemExit(f"{name!r} is no {kind}; there are: {', '.join(known)}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="rollbus_accel.aot", description=__doc__)
    parser.add_argument("--ops", default="all", help="comma-separated; default: all")
    parser.add_argument("--targets", default="all", help="comma-separated; default: all")
    parser.add_argument("--first", action="store_true", help="only the first variant of each kernel")
    parser.add_argument("--json", type=Path, help="write the measurements there")
    parser.add_argument("--write", type=Path, help="write the page there")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise SystemExit("TRITON_INTERPRET=1 is set: kernels would be interpreted, not compiled; unset it")
    ops = _named(options.ops, operations(), "op")
    names = _named(options.targets, [target.name for target in TARGETS], "target")
    targets = [target for target in TARGETS if target.name in names]
    found = measure_all(ops, targets, first_only=options.first)
    if options.json:
        options.json.write_text(json.dumps([asdict(x) for x in found], indent=1) + "\n")
    if options.write:
        from rollbus_accel.aot_page import page

        options.write.write_text(page(found))
    if not (options.json or options.write):
        json.dump([asdict(x) for x in found], sys.stdout, indent=1)


if __name__ == "__main__":
    main()
