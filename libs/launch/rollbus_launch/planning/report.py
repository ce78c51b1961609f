"""A plan as tables for people."""

from __future__ import annotations

from typing import Any

from rollbus_launch.planning.plan import Option, Plan
from rollbus_launch.tables import show

#: Rows of a table of layouts.
MOST = 6


def show_plan(plan: Plan) -> None:
    """Print what is predicted, where memory goes, and what to run."""
    predicted, (untrained, longest) = plan.stated.prediction, plan.between
    print(
        f"{predicted.steps_per_s:,.0f} steps/s, {predicted.updates_per_s:.3g} updates/s; bottleneck: "
        f"{predicted.bottleneck} ({untrained:,.0f} steps/s while untrained, {longest:,.0f} with episodes "
        "up to the limit)"
    )
    print(f"based on: {plan.stated.basis.text}")
    show(_busy(plan), as_json=False, title="services")
    show(_memory(plan), as_json=False, title="memory")
    show([_row(option) for option in plan.options[:MOST]], as_json=False, title="layouts on one host")
    if plan.hosts:
        title = f"{plan.machines.num_hosts} hosts with {plan.machines.num_cores} cores each"
        show([_row(option) for option in plan.hosts[:MOST]], as_json=False, title=title)
    print(recommendation(plan))
    for text in plan.assumptions:
        print(f"assumed: {text}")


def recommendation(plan: Plan) -> str:
    """One line: keep it, or what to change and what that brings."""
    best = plan.recommended
    if best is plan.stated:
        return "recommended: as stated; no layout is clearly faster"
    gain = best.prediction.steps_per_s / plan.stated.prediction.steps_per_s
    settings = " ".join(map(_quoted, best.layout.settings))
    return f"recommended: {best.layout.label}, {gain:.2f} x the speed ({best.basis.kind}): {settings}"


def _row(option: Option) -> dict[str, Any]:
    row = option.row()
    row["busy"] = " ".join(f"{role} {share:.0%}" for role, share in row["busy"].items())
    return row


def _busy(plan: Plan) -> list[dict[str, Any]]:
    return [
        {"role": role, "processes": plan.stated.layout.count(role), "busy": f"{share:.0%}"}
        for role, share in plan.stated.prediction.busy.items()
    ]


def _memory(plan: Plan) -> list[dict[str, Any]]:
    rows = [{"use": use, "mb": num_bytes / 1e6} for use, num_bytes in plan.memory.items()]
    return [*rows, {"use": "total", "mb": sum(plan.memory.values()) / 1e6}]


def _quoted(setting: str) -> str:
    return f"'{setting}'" if " " in setting or "[" in setting else setting
