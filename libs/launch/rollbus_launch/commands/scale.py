"""``rollbus scale actor=3 [RUN_DIR]``: change how many processes of a role run."""

from __future__ import annotations

import argparse
import socket
import time
from typing import Any

from rollbus_launch import room
from rollbus_launch.control import Control, run_paths
from rollbus_wire.errors import ConfigError, DeadlineExceeded
from rollbus_wire.limits import MAX_PROCESSES

SCALABLE = ("actor",)


def add_parser(subparsers: Any) -> None:
    """rollbus scale actor=N [RUN_DIR]"""
    parser = subparsers.add_parser("scale", help="add or remove actors", description=__doc__)
    parser.add_argument("target", metavar="actor=COUNT", help="how many actors there shall be")
    parser.add_argument("run_dir", nargs="?", help="default: runs/latest")
    parser.add_argument("--run-dir", dest="run_dir_option", metavar="DIR", help="the same as RUN_DIR")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds to wait until it is so")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask, then wait until as many are ready."""
    role, _, text = arguments.target.partition("=")
    if role not in SCALABLE:
        raise ConfigError(
            f"{arguments.target!r}: only actors can be scaled while a run goes on, as actor=2; "
            "the number of hubs is set at its start (env.hubs)"
        )
    if not text.isdigit() or not 1 <= int(text) <= MAX_PROCESSES:
        raise ConfigError(f"{arguments.target!r}: give a number of actors from 1 to {MAX_PROCESSES:,}")
    if arguments.run_dir and arguments.run_dir_option:
        raise ConfigError(
            f"two run folders: {arguments.run_dir!r} and --run-dir {arguments.run_dir_option!r}; give one"
        )
    count = int(text)
    started = time.monotonic()
    with Control(run_paths(arguments.run_dir or arguments.run_dir_option, reads=False)) as control:
        members = _alive(control.members().members)
        least = _together(members, role)
        if count < least:
            raise ConfigError(
                f"{arguments.target!r}: {least} {role}(s) share a process with a hub and end only with the "
                f"run; {role}={least} is the least. Train with deploy.layout=stated to have them apart"
            )
        if any(m["role"] == "launcher" and m["host"] == socket.gethostname() for m in members):
            room.check(arguments.target, count, running=sum(m["role"] == role for m in members))
        control.command("scale", **{role: count})
        while True:
            members = control.members().members
            ready, slices = _holding(members, role), _num_slices(members)
            holders = sum(map(bool, ready.values()))
            if len(ready) == count and holders >= min(count, slices):
                break
            if time.monotonic() - started > arguments.timeout:
                raise DeadlineExceeded(
                    f"after {arguments.timeout:.0f} s {len(ready)} of {count} {role}s are ready and "
                    f"{holders} hold slices; see rollbus ps"
                )
            time.sleep(0.1)
    print(
        f"{count} {role}(s) ready after {time.monotonic() - started:.1f} s: "
        + "; ".join(f"{name}: {', '.join(held) or 'idle'}" for name, held in ready.items())
    )
    if slices < count:
        print(f"number of slices: {slices}, so {count - slices} stay idle; more: env.num_slices")
    return 0


def _alive(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [m for m in members if m["state"] not in ("lost", "failed", "left")]


def _together(members: list[dict[str, Any]], role: str) -> int:
    """Members of ``role`` in the process of a member of another role."""
    others = {(m["host"], m["pid"]) for m in members if m["role"] != role}
    return sum(m["role"] == role and (m["host"], m["pid"]) in others for m in members)


def _num_slices(members: list[dict[str, Any]]) -> int:
    return sum(len(m.get("slices") or ()) for m in members if m["role"] == "hub")


def _holding(members: list[dict[str, Any]], role: str) -> dict[str, list[str]]:
    """Slices per ready member of ``role``."""
    return {
        m["name"]: list((m.get("stats") or {}).get("held") or ())
        for m in members
        if m["role"] == role and m["state"] in ("ready", "run")
    }
