"""Print rows as a table for people or as JSON for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: Characters of a line that goes to a file or a pipe.
FILE_WIDTH = 160


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Every command that prints a table takes --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def show(rows: Sequence[Mapping[str, Any]], *, as_json: bool, title: str = "") -> None:
    """Print ``rows``; their keys are the columns, in the order of the first row."""
    if as_json:
        print(json.dumps(list(rows), indent=1, default=str))
        return
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    table = Table(
        title=title or None, title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for place, key in enumerate(rows[0] if rows else ()):
        table.add_column(key.replace("_", " "), overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(escape(text(value)) for value in row.values()))  # "rollbus[onnx]" is no markup
    console.print(table)


def show_one(record: Mapping[str, Any], title: str = "") -> None:
    """Print one record for people, a line per entry."""
    rows = [{"what": key.replace("_", " "), "value": value} for key, value in record.items()]
    show(rows, as_json=False, title=title)


def text(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        size = abs(value)
        return f"{value:.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.3g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
