"""Tables and pictures of what was measured; both come from the ledger alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learning.claims import Claim
from learning.verdicts import Records, judge

SIGNS = {True: "holds", False: "**missed**", None: "not measured"}


def write(claims: Mapping[str, Claim], records: Mapping[str, Records], out: Path) -> str:
    """Write curves.md and one picture per claim into ``out``; a summary for the terminal."""
    sections, summary = [], []
    for name, claim in claims.items():
        found = records.get(name, {})
        verdicts = [judge(claim, must, found) for must in claim.must]
        summary += [f"{name}: {verdict.text}: {SIGNS[verdict.holds]}" for verdict in verdicts]
        if not found:
            sections.append(f"## {claim.title}\n\nNot measured.\n")
            continue
        picture = f"![{claim.title}]({name}.png)\n\n" if draw(name, claim, found, out) else ""
        note = f"{claim.note.strip()}\n\n" if claim.note else ""
        lines = "".join(f"- {verdict.text}: {SIGNS[verdict.holds]}\n" for verdict in verdicts)
        sections.append(
            f"## {claim.title}\n\n{note}{_table(claim, found)}\n\n{lines}\n{picture}".rstrip() + "\n"
        )
    (out / "curves.md").write_text(_HEAD + "\n" + "\n".join(sections))
    return "\n".join(summary)


_HEAD = """# Learning curves

Written by `make curves` from `curves.json`; do not edit. Claims, arms and settings stand in
`benchmarks/learning/claims.yaml`. Each figure is the mean over evaluation episodes with fixed seeds of the
last checkpoint of a run, one figure per seed. Differences are paired by seed and episode, intervals
are bootstrapped over seeds, then episodes. Pictures: faint, returns while training; marked, evaluations.
"""


def _table(claim: Claim, records: Records) -> str:
    watched = [
        name
        for name in (*claim.watch, *claim.measures)
        if any(name in _figures(records, arm) for arm in claim.arms)
    ]
    head = ["arm", f"{claim.of} by seed", "mean", "steps", "seconds", *watched, "measured"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for arm in claim.arms:
        found = [records[arm][str(s)] for s in claim.seeds_of(arm) if str(s) in records.get(arm, {})]
        if found:
            means = [float(np.mean(record["values"])) for record in found]
            figures = [record["figures"] for record in found]
            cells = [
                f"`{arm}`", ", ".join(_shown(claim, value) for value in means),
                _shown(claim, float(np.mean(means))),
                f"{max(f['env_steps'] for f in figures):,}", f"{np.mean([f['wall_s'] for f in figures]):.0f}",
                *(", ".join(f"{f[name]:.3g}" for f in figures if name in f) for name in watched),
                f"{found[-1]['date']}, {found[-1]['commit']}",
            ]  # fmt: skip
            rows.append("| " + " | ".join(cells) + " |")
    machines = sorted({record["machine"] for arm in records.values() for record in arm.values()})
    return "\n".join(rows) + f"\n\n{claim.episodes} episodes each; {', '.join(machines)}."


def _figures(records: Records, arm: str) -> dict[str, Any]:
    return next((record["figures"] for record in records.get(arm, {}).values()), {})


def _shown(claim: Claim, value: float) -> str:
    return f"{100 * value:.0f} %" if claim.of == "success" else f"{value:.1f}"


def draw(name: str, claim: Claim, records: Records, out: Path) -> bool:
    """A picture of all arms that collect; False if none does."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="environment steps", ylabel=claim.of)
    drawn = False
    for index, arm in enumerate(claim.arms):
        found = [record for record in records.get(arm, {}).values() if record["figures"]["env_steps"]]
        for place, record in enumerate(found):
            colour, label = f"C{index % 10}", arm if place == 0 else None
            if claim.of == "return" and record["curve"]:
                axes.plot(*zip(*record["curve"]), color=colour, alpha=0.3, linewidth=0.8)
            last = [record["figures"]["env_steps"], float(np.mean(record["values"]))]
            points = [*(point for point in record["evaluations"] if point[0] < last[0]), last]
            axes.plot(*zip(*points), color=colour, marker="o", markersize=3, label=label)
            drawn = True
    if drawn:
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        figure.savefig(out / f"{name}.png", dpi=100)
    return drawn
