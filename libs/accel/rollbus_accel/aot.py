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
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollbus_accel.aot_page import page
from rollbus_accel.aot_targets import KERNELS, TARGETS, Resources, Target

#: The instructions of the matrix units, in PTX and in AMD's assembly.
MATRIX = r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma|v_s?mfmac?_\w+)"
#: Of every NVIDIA GPU since Volta.
CUDA_INSTRUCTION_BYTES = 16


def operations() -> list[str]:
    """Ops that have a Triton kernel: folders with a ``triton.py``."""
    package = importlib.import_module(KERNELS)
    folders = [Path(path) for path in package.__path__]
    return sorted(p.parent.name for folder in folders for p in folder.glob("*/triton.py"))


def variants(op: str) -> Sequence[Any]:
    """The variants that ``op`` lists for this test."""
    found: Sequence[Any] = _module(op).VARIANTS
    return found


def _module(op: str) -> Any:
    return importlib.import_module(f"{KERNELS}.{op}.triton")


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
    registers, spill_bytes, num_instructions, text = read(compiled.asm)
    return Resources(
        op, variant.name, target.name, registers, compiled.metadata.shared, spill_bytes,
        spill_reason=getattr(_module(op), "SPILLS", {}).get(variant.name, ""),
        num_instructions=num_instructions,
        num_matrix=len(re.findall(MATRIX, text)),
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


def _read_cuda(asm: Any) -> tuple[int, int, int, str]:
    """Registers a thread and bytes of stack, by the tool in triton's wheel; instructions; PTX."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__path__[0]) / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        words = [str(tool), "--dump-resource-usage", file.name]
        usage = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    num_instructions = text_bytes(asm["cubin"]) // CUDA_INSTRUCTION_BYTES
    return _number(r"REG:(\d+)", usage), _number(r"STACK:(\d+)", usage), num_instructions, asm["ptx"]


def text_bytes(elf: bytes) -> int:
    """Bytes of machine code in a 64-bit ELF file: its executable sections.

    A disassembler would say the same, in fifty times the time.
    """
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    sections = (struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count))
    executable = 0x4
    return sum(length for _, _, flags, _, _, length in sections if flags & executable)


def _read_hip(asm: Any) -> tuple[int, int, int, str]:
    """Vector registers a lane, bytes of scratch memory, instructions; assembly."""
    text = asm["amdgcn"]
    return (
        _number(r"\.vgpr_count:\s*(\d+)", text),
        _number(r"\.private_segment_fixed_size:\s*(\d+)", text),
        len(re.findall(r"^\t[a-z]+_\w+", text, re.MULTILINE)),
        text,
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise LookupError(f"the compiler's report has no {pattern!r}; does this triton write it differently?")
    return int(found[1])


def measure_all(ops: Iterable[str], targets: Iterable[Target], *, quick: bool = False) -> list[Resources]:
    """All variants for all targets, in the order op, variant, target; see `_quick` for less."""
    every = list(targets)
    return [
        measure(op, variant, target)
        for op in ops
        for variant, chosen in (_quick(variants(op), every) if quick else ((v, every) for v in variants(op)))
        for target in chosen
    ]


def _quick(listed: Sequence[Any], targets: Sequence[Target]) -> Iterator[tuple[Any, Sequence[Target]]]:
    """The first variant for all targets, and that of each further kernel for one target of each vendor."""
    one_each = list({target.backend: target for target in targets}.values())
    seen: set[str] = set()
    for variant in listed:
        name = variant.kernel.__name__
        if name not in seen:
            yield variant, one_each if seen else targets
        seen.add(name)


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
    parser.add_argument("--quick", action="store_true", help="the first variant of every kernel only")
    parser.add_argument("--json", type=Path, help="write the measurements there")
    parser.add_argument("--write", type=Path, help="write the page there")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise SystemExit("TRITON_INTERPRET=1 is set: kernels would be interpreted, not compiled; unset it")
    ops = _named(options.ops, operations(), "op")
    names = _named(options.targets, [target.name for target in TARGETS], "target")
    targets = [target for target in TARGETS if target.name in names]
    found = measure_all(ops, targets, quick=options.quick)
    if options.json:
        options.json.write_text(json.dumps([asdict(x) for x in found], indent=1) + "\n")
    if options.write:
        options.write.write_text(page(found))
    if not (options.json or options.write):
        json.dump([asdict(x) for x in found], sys.stdout, indent=1)


if __name__ == "__main__":
    main()
