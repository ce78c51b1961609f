"""Print rows as a table for people or as JSON for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Every command that prints a table takes --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def show(rows: Sequence[Mapping[str, Any]], *, as_json: bool, title: str = "") -> None:
    """Print ``rows``; their keys are the columns, in the order of the first row."""
    if as_json:
        print(json.dumps(list(rows), indent=1, default=str))
        return
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for key in rows[0] if rows else ():
        table.add_column(key.replace("_", " "))
    for row in rows:
        table.add_row(*(text(value) for value in row.values()))
    Console().print(table)


def text(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
