"""``rollbus serve SERVICE[+SERVICE]``: one process in the foreground, as systemd or docker runs it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import zmq

from rollbus_core.paths import RunPaths
from rollbus_wire import sockets
from rollbus_wire.errors import ConfigError
from rollbus_wire.limits import MAX_PROCESSES

ROLES = ("broker", "source", "hub", "actor", "learner", "evaluator")
#: A run has one of each of these.
SINGLE = frozenset({"broker", "source", "learner", "evaluator"})


def add_parser(subparsers: Any) -> None:
    """rollbus serve SERVICE[+SERVICE] [key=value ...] [--config FILE] [--run-dir DIR] [--index N]"""
    parser = subparsers.add_parser(
        "serve", help="run one service in the foreground",
        description=__doc__ + " Options can be environment variables, and addresses and folders are: "
        "docs/deployment.md lists them.",
    )  # fmt: skip
    parser.add_argument("services", metavar="SERVICE[+SERVICE]", help="of: " + ", ".join(ROLES))
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value",
        help="settings on top of --config, which the first service of a run settles for all",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=Path, default=os.environ.get("ROLLBUS_CONFIG"), help="recipe or resolved config"
    )
    parser.add_argument("--run-dir", type=Path, default=os.environ.get("ROLLBUS_RUN_DIR"))
    parser.add_argument(
        "--index", default=os.environ.get("ROLLBUS_INDEX", "0"),
        help="which of several services of this kind: 0, 1, ..., or auto: the first that no other process of "
        "this host has (default: 0)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Resolve the configuration once per run folder, then serve."""
    from rollbus_launch.processes.children import LAUNCHER_PID
    from rollbus_launch.serve import serve
    from rollbus_launch.settling import settle

    roles = arguments.services.split("+")
    unknown = [role for role in roles if role not in ROLES]
    if unknown or len(set(roles)) != len(roles):
        raise ConfigError(f"{arguments.services!r}: give services joined by '+', of: {', '.join(ROLES)}")
    index = _index(arguments.index, roles)
    if not arguments.run_dir:
        raise ConfigError("say where the run is: --run-dir DIR or ROLLBUS_RUN_DIR")
    if LAUNCHER_PID not in os.environ:  # a launcher has settled it, whatever its own environment says
        overrides = [*os.environ.get("ROLLBUS_SET", "").split(), *arguments.overrides]
        settle(RunPaths(arguments.run_dir), Path(arguments.config) if arguments.config else None, overrides)
    end(serve(roles, index, Path(arguments.run_dir)))


def _index(text: str, roles: list[str]) -> int | None:
    """None: any."""
    single = sorted(SINGLE.intersection(roles))
    if text == "auto":
        return 0 if single else None
    if single and text != "0":
        raise ConfigError(f"--index {text!r}: a run has one {single[0]}, which has index 0")
    if not text.isdecimal() or int(text) >= MAX_PROCESSES:
        raise ConfigError(f"--index {text!r}: give 0 to {MAX_PROCESSES - 1}, or auto")
    return int(text)


def end(code: int) -> NoReturn:
    """End now: what was sent is flushed, and tearing down torch takes longer than stopping did.

    A failure may leave sockets that no service has closed; they are closed here.
    """
    zmq.Context.instance().destroy(sockets.LINGER_MS)
    with contextlib.suppress(OSError):  # they may go to a full disk
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
