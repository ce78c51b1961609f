"""Every benchmark, one after the other, and what they printed as baselines/<machine>.json.

    python benchmarks/all.py [--only NAME ...] [--repeats 5] [--ray PYTHON] [--triton VENV]

Nothing else should run on the machine meanwhile. Peers run in environments of their own, which are named;
those that are not are left out. Each benchmark that has peers says how to make them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from machine import describe

HERE = Path(__file__).resolve().parent


def commands(repeats: int, seed: int, ray: str, triton: str) -> dict[str, list[str]]:
    """Name -> script and arguments."""
    with_ray = ["--ray", ray] if ray else []
    served = ["--part", "engines,service", "--triton", triton] if triton else ["--part", "engines"]
    return {
        "kernels": ["bench_kernels.py", "--cpu"],
        "update": ["bench_update.py", "--repeats", str(repeats)],
        "end_to_end": ["bench_end_to_end.py", "--repeats", str(repeats)],
        "returns": ["bench_returns.py"],
        "round_trip": ["bench_round_trip.py", "--where", "--repetitions", str(repeats)],
        "inference": ["bench_inference.py", *served, "--repeat", str(repeats)],
        "decoding": ["bench_decoding.py", "--repetitions", str(repeats)],
        "weights": ["bench_weights.py", *with_ray, "--repeat", str(repeats)],
        "chunks": ["bench_chunks.py", *with_ray, "--repetitions", str(repeats)],
        "scaling": ["bench_scaling.py", "--repetitions", str(repeats)],
        "plan": ["bench_plan.py", "--seed", str(seed)],
        "soak": ["bench_soak.py", "--short"],
    }


def run(script: list[str]) -> dict[str, object]:
    """Run one, show it, and return its lines, time and exit code."""
    began = time.monotonic()
    command = [sys.executable, "-u", str(HERE / script[0]), *script[1:]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.rstrip())
    code = process.wait()
    # Where the peers lie is nobody's concern.
    shown = " ".join(Path(part).name if part.startswith("/") else part for part in script)
    return {"command": shown, "took_s": time.monotonic() - began, "code": code, "printed": lines}


def main() -> int:
    """1 if a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the configurations that are planned")
    parser.add_argument("--ray", default="", help="interpreter with ray and torch")
    parser.add_argument("--triton", default="", help="environment with nvidia-pytriton")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    name = re.sub(r"[^a-z0-9]+", "-", f"{machine['cpu']} {machine['cores']} cores".lower()).strip("-")
    output = arguments.output or HERE / "baselines" / f"{name}.json"
    known = json.loads(output.read_text())["results"] if output.exists() else {}
    failed = []
    for title, script in commands(arguments.repeats, arguments.seed, arguments.ray, arguments.triton).items():
        if arguments.only and title not in arguments.only:
            continue
        print(f"== {title}: {' '.join(script)}", flush=True)
        known[title] = run(script)
        if known[title]["code"]:
            failed.append(title)
        output.parent.mkdir(exist_ok=True)
        output.write_text(json.dumps({"machine": machine, "results": known}, indent=1) + "\n")
    print(f"written: {output}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
