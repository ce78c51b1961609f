"""``rollbus matrix``: which policy fits which algorithm on which actions, and why others do not."""

from __future__ import annotations

import argparse
from typing import Any

from rollbus_launch import matrix
from rollbus_launch.tables import add_json_flag, show

_LETTERS = {"discrete": "D", "multi_discrete": "M", "continuous": "C", "tokens": "T"}


def add_parser(subparsers: Any) -> None:
    """rollbus matrix [--policy NAME] [--algorithm NAME]"""
    parser = subparsers.add_parser("matrix", help="what fits together", description=__doc__)
    parser.add_argument("--policy", help="only this one; a dotted name is one of your own")
    parser.add_argument("--algorithm", help="only this one")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Algorithms by policies; for one pair, each kind of action with its reason."""
    policies = [arguments.policy] if arguments.policy else None
    algorithms = [arguments.algorithm] if arguments.algorithm else None
    found = list(matrix.pairs(policies, algorithms))
    if arguments.json or (policies and algorithms):
        show([pair._asdict() for pair in found], as_json=arguments.json)
        return 0
    rows: dict[str, dict[str, Any]] = {}
    for pair in found:
        row = rows.setdefault(pair.algorithm, {"algorithm": pair.algorithm})
        row[pair.policy] = row.get(pair.policy, "") + ("" if pair.reason else _LETTERS[pair.action])
    show(list(rows.values()), as_json=False)
    print(", ".join(f"{letter}: {action}" for action, letter in _LETTERS.items()), "actions")
    print("empty: refused; rollbus matrix --policy P --algorithm A says why")
    return 0
