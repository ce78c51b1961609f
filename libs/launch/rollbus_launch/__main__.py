"""Entry of the ``rollbus`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rollbus_wire.errors import RollbusError


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, and turn errors that are the user's to mend into one message and exit code 2.

    What commands and services write is for this user alone.
    """
    os.umask(0o077)
    try:
        return _main(argv)
    except KeyboardInterrupt:
        return 130


def _main(argv: Sequence[str] | None) -> int:
    try:
        here = os.getcwd()
    except FileNotFoundError:
        print("rollbus: the current folder was removed; change into one that is there", file=sys.stderr)
        return 2
    if "" not in sys.path and here not in sys.path:
        sys.path.append(here)  # plug-ins of the user's own; installed packages come first

    from rollbus_core.descriptors import raise_limits

    raise_limits()
    arguments = _parsed(sys.argv[1:] if argv is None else argv)
    return 2 if arguments is None else _run(arguments)


def _parsed(argv: Sequence[str]) -> argparse.Namespace | None:
    """What was asked; None of nothing, after the help."""
    from importlib.metadata import version

    from rollbus_launch import commands
    from rollbus_launch.parser import Parser

    parser = Parser(prog="rollbus", description="Train robot and agent policies.")
    parser.add_argument("--version", action="version", version=f"rollbus {version('rollbus')}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in commands.all_commands():
        command.add_parser(subparsers)
    if not argv:
        parser.print_help()
        return None
    arguments, rest = parser.parse_known_args(argv)
    folders = [token for token in rest if "=" not in token and not token.startswith("-")]
    if getattr(arguments, "run_dir", "") is None and len(folders) == 1:  # it may stand after an option, too
        arguments.run_dir = folders[0]
        rest.remove(folders[0])
    settings = [token for token in rest if "=" in token and not token.startswith("-")]
    if settings != rest or (rest and not hasattr(arguments, "overrides")):
        subparsers.choices[arguments.command].error(f"unrecognized arguments: {' '.join(rest)}")
    if settings:  # key=value may stand after an option, too
        arguments.overrides += settings
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    from rollbus_core import memory

    try:
        return int(arguments.run(arguments) or 0)
    except RollbusError as error:
        text = str(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a disk, a right, an address: nothing that a traceback would explain
        text = (error.strerror or str(error)) + (f": {error.filename}" if error.filename else "")
    except (MemoryError, RuntimeError) as error:
        if not memory.is_out_of_memory(error):
            raise
        text = memory.told(error, ())
    print(f"rollbus {arguments.command}: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
