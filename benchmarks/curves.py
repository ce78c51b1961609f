"""Learning curves of the claims in benchmarks/learning/claims.yaml, into docs/results.

    python benchmarks/curves.py [CLAIM ...] [--smoke] [--minutes 210] [--jobs 2] [--report]

Two runs at a time, each with one thread and at most ten minutes, then those that need the machine to
themselves. What curves.json knows already, of the same recipe and settings, is kept: it goes on where it was
cut.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from learning import claims, report
from learning.runs import ROOT, Ledger, Trainer

RUNS, RESULTS = ROOT / "runs" / "curves", ROOT / "docs" / "results"


class Work:
    """Claims that are trained until ``deadline`` (monotonic seconds)."""

    def __init__(self, ledger: Ledger, smoke: bool, deadline: float) -> None:
        self._ledger, self._smoke, self._deadline = ledger, smoke, deadline
        self.failed: list[str] = []
        #: Not begun, because it was too late.
        self.left: list[str] = []

    def do(self, wanted: dict[str, claims.Claim], jobs: int) -> None:
        """Seeds of all claims, ``jobs`` at a time, first seeds first."""
        tasks = [(place, name, seed) for name in wanted for place, seed in enumerate(wanted[name].seeds)]
        tasks.sort(key=lambda task: task[0])
        trainers = {
            name: Trainer(name, claim, self._ledger, RUNS / ("smoke" if self._smoke else "full"), self._smoke)
            for name, claim in wanted.items()
        }
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda task: self._seed(trainers[task[1]], task[2]), tasks))

    def _seed(self, trainer: Trainer, seed: int) -> None:
        for arm in trainer.claim.arms:
            if seed in trainer.claim.seeds_of(arm):
                if time.monotonic() >= self._deadline:
                    self.left.append(f"{trainer.name}/{arm}-{seed}")
                    continue
                try:
                    trainer.measure(arm, seed)
                except subprocess.CalledProcessError as error:
                    self.failed.append(f"{trainer.name}/{arm}-{seed}: {' '.join(error.cmd[2:5])} failed")
                else:
                    print(f"{time.strftime('%H:%M:%S')} {trainer.name}/{arm}-{seed}", flush=True)


def main() -> int:
    """All claims, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("claims", nargs="*", help="only these")
    parser.add_argument(
        "--smoke", action="store_true", help="a few updates, one seed and one arm of each recipe"
    )
    parser.add_argument("--minutes", type=float, default=210.0, help="begin no run after this long")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="train nothing, write the report anew")
    arguments = parser.parse_args()
    known = claims.read()
    if unknown := sorted(set(arguments.claims) - set(known)):
        parser.error(f"{unknown[0]} is no claim; there are {', '.join(known)}")
    wanted = {name: known[name] for name in arguments.claims or known}
    if arguments.smoke:
        wanted = {name: claims.smoked(claim) for name, claim in wanted.items()}
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ledger = Ledger.read(arguments.out / "curves.json")
    work = Work(ledger, arguments.smoke, time.monotonic() + 60 * arguments.minutes)
    if not arguments.report:
        work.do({name: claim for name, claim in wanted.items() if not claim.alone}, arguments.jobs)
        work.do({name: claim for name, claim in wanted.items() if claim.alone}, 1)
    print(report.write(wanted if arguments.smoke else known, ledger.records, arguments.out))
    print("\n".join(work.failed))
    if work.left:
        print(f"no time was left for {', '.join(work.left)}; run this again, what is measured is kept")
    return bool(work.failed or work.left)


if __name__ == "__main__":
    raise SystemExit(main())
