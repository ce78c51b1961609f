"""Print rows as a table for people or as JSON for programs.

A word or number is never folded. A table that is too wide leaves out what may be spared, and is else
turned: a line per column of the table, as many rows side by side as fit.
"""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Characters of a line that goes to a file or a pipe, unless COLUMNS says how many.
FILE_WIDTH = 160
#: Text of several words is not squeezed below this; in the first column and in a turned table, below that.
READABLE, READABLE_WELL = 16, 32
#: Spaces between two columns.
GAP = 2
#: Digits of a content hash that a table shows; --json has all.
HASH_DIGITS = 12

#: Cells of a table, column by column: header and the texts below it.
Columns = dict[str, list[str]]


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Every command that prints a table takes --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def show(
    rows: Sequence[Mapping[str, Any]], *, as_json: bool, title: str = "", spare: Sequence[str] = ()
) -> None:
    """Print ``rows``; their keys are the columns, in the order of the first row.

    Of a table that is too wide, the columns ``spare`` are left out, the empty ones and then the first
    ones first.
    """
    if as_json:
        print(json.dumps(list(rows), indent=1, default=str))
        return
    console = _console()
    columns = {
        key.replace("_", " "): [text(row.get(key)) for row in rows] for key in (rows[0] if rows else ())
    }
    columns, left_out = _spared(columns, [key.replace("_", " ") for key in spare], console.width)
    if title:
        console.print(Text(title, style="italic"))
    if _fits(columns, console.width):
        _print_table(columns, console)
    else:
        _print_turned(columns, console)
    if left_out:
        what = f"{len(left_out)} column{'s' if len(left_out) > 1 else ''} left out"
        console.print(Text(f"{what} ({', '.join(left_out)}): wider terminal or --json"), soft_wrap=True)


def show_one(record: Mapping[str, Any], title: str = "") -> None:
    """Print one record for people, a line per entry."""
    console = _console()
    if title:
        console.print(Text(title, style="italic"))
    _print_fields([key.replace("_", " ") for key in record], [text(v) for v in record.values()], console)


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
        return ", ".join(map(text, value))
    if isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return value[:HASH_DIGITS]
    return str(value)


def _console() -> Console:
    console = Console()
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = max(console.width, FILE_WIDTH)
    return console


def _natural(header: str, cells: Sequence[str]) -> int:
    """Characters of the longest line."""
    return max(cell_len(line) for cell in [header, *cells] for line in (cell.splitlines() or [""]))


def _least(header: str, cells: Sequence[str], readable: int) -> int:
    """Below this a word would be folded, or text of several words be hard to read."""
    longest_word = max((cell_len(word) for cell in [header, *cells] for word in cell.split()), default=0)
    return max(longest_word, min(_natural("", cells), readable))


def _all_least(columns: Columns) -> list[int]:
    return [
        _least(header, cells, READABLE if place else READABLE_WELL)
        for place, (header, cells) in enumerate(columns.items())
    ]


def _fits(columns: Columns, width: int) -> bool:
    least = _all_least(columns)
    return sum(least) + GAP * (len(least) - 1) <= width


def _spared(columns: Columns, spare: Sequence[str], width: int) -> tuple[Columns, list[str]]:
    """What fits of ``columns``, and the names of those that were left out."""
    left_out: list[str] = []
    for name in sorted(spare, key=lambda name: any(cell not in ("", "-") for cell in columns.get(name, ()))):
        if _fits(columns, width):
            break
        if name in columns:
            columns = {header: cells for header, cells in columns.items() if header != name}
            left_out.append(name)
    return columns, left_out


def _widths(columns: Columns, width: int) -> list[int]:
    """The widest columns give way first, none below what it needs."""
    natural = [_natural(header, cells) for header, cells in columns.items()]
    least = _all_least(columns)
    room = width - GAP * (len(natural) - 1)
    for most in range(max(natural, default=0), 0, -1):
        widths = [max(low, min(high, most)) for low, high in zip(least, natural, strict=True)]
        if sum(widths) <= room:
            return widths
    return least


def _print_table(columns: Columns, console: Console) -> None:
    table = _table()
    for header, width in zip(columns, _widths(columns, console.width), strict=True):
        table.add_column(header, width=width)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))  # no markup: "rollbus[onnx]" stays as it is
    console.print(table)
    console.print()


def _table() -> Table:
    return Table(
        header_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0)
    )


def _print_turned(columns: Columns, console: Console) -> None:
    """A line per column of the table, in blocks of as many rows as fit side by side."""
    headers = list(columns)
    label_width = max(map(cell_len, headers))
    for block in _blocks(list(zip(*columns.values(), strict=True)), console.width - label_width):
        if len(block) == 1:
            _print_fields(headers, block[0], console)
            continue
        table = _table()
        table.add_column(headers[0], width=label_width, style="bold")
        for row in block:
            table.add_column(Text(row[0]), width=_turned_width(row))
        for place, header in enumerate(headers[1:], 1):
            table.add_row(header, *(Text(row[place]) for row in block))
        console.print(table)
        console.print()


def _turned_width(row: Sequence[str]) -> int:
    return _least("", row, READABLE_WELL)


def _blocks(rows: Sequence[Sequence[str]], width: int) -> Iterator[list[Sequence[str]]]:
    """Rows that fit beside each other in ``width``."""
    block: list[Sequence[str]] = []
    used = 0
    for row in rows:
        needed = _turned_width(row) + GAP
        if block and used + needed > width:
            yield block
            block, used = [], 0
        block.append(row)
        used += needed
    if block:
        yield block


def _print_fields(labels: Sequence[str], values: Sequence[str], console: Console) -> None:
    """One record, a line per entry; what is longer than a line goes on below itself."""
    indent = max(map(cell_len, labels), default=0) + GAP
    for label, value in zip(labels, values, strict=True):
        lines = textwrap.wrap(
            value, max(READABLE, console.width - indent), break_long_words=False, break_on_hyphens=False
        )
        first = Text.assemble((label.ljust(indent), "bold"), (lines or [""])[0])
        console.print(first, soft_wrap=True)
        for line in lines[1:]:
            console.print(Text(" " * indent + line), soft_wrap=True)
    console.print()
