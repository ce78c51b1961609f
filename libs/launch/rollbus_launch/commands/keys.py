"""``rollbus keys``: make, list and revoke the keys of services, robots and clients (docs/security.md)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollbus_core.key_folder import KeyFolder, configured, default_folder
from rollbus_launch.tables import add_json_flag, show
from rollbus_wire.keys import PUBLIC, VARIABLE, load
from rollbus_wire.roles import DIALS, ROLES


def add_parser(subparsers: Any) -> None:
    """rollbus keys create NAME --role ROLE | list | revoke NAME | token"""
    parser = subparsers.add_parser("keys", help="make, list and revoke keys", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key", description="Make the key NAME.")
    create.add_argument("name", help="of the file and in logs, such as arm-1")
    create.add_argument("--role", required=True, choices=ROLES)
    create.add_argument(
        "--server", default="", help="the key of whom it dials; default: the only one of that role"
    )
    listing = actions.add_parser("list", help="all keys", description="All keys, the revoked ones too.")
    revoke = actions.add_parser("revoke", help="take a key off the list", description="Revoke the key NAME.")
    revoke.add_argument("name")
    token = actions.add_parser("token", help="make the bearer token of HTTP", description="Make it anew.")
    for action in (create, listing, revoke, token):
        action.add_argument(
            "--folder", type=Path, default=None, help=f"default: {VARIABLE}, or {default_folder()}"
        )
        add_json_flag(action)
        action.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; raises `AccessDenied`."""
    folder = KeyFolder(arguments.folder or default_folder())
    return {"create": _create, "list": _list, "revoke": _revoke, "token": _token}[arguments.action](
        folder, arguments
    )


def _create(keys: KeyFolder, arguments: argparse.Namespace) -> int:
    path = keys.create(arguments.name, arguments.role, arguments.server)
    key = load(path)
    row = {
        "name": key.name, "role": key.role, "secret_file": str(path), "server": key.server or None,
        "public_key": key.public.decode(),
    }  # fmt: skip
    show([row], as_json=arguments.json)
    if not arguments.json:
        print(_what_next(keys, path, arguments.role))
    return 0


def _what_next(keys: KeyFolder, path: Path, role: str) -> str:
    if role in ("peer", "client"):
        call = f'run_env(env, "tcp://HOST:PORT", key="{path.name}")'
        if role == "client":
            call = f'PolicyClient("tcp://HOST:PORT", key="{path.name}")'
        return f"copy {path} to the machine that uses it, as the only file it needs: {call}"
    listens = role in ("broker", "hub", "learner", "actor")
    here = "" if configured() == keys.folder else f" (export {VARIABLE}={keys.folder})"
    allow = f", and {keys.folder}/*{PUBLIC} as its allow-list if it listens" if listens else ""
    return f"services on this machine find it{here}; for {role} on another host, copy {path}{allow}"


def _list(keys: KeyFolder, arguments: argparse.Namespace) -> int:
    rows = keys.rows()
    show(rows, as_json=arguments.json)
    if not rows and not arguments.json:
        print(f"{keys.folder} has no keys; roles: broker, {', '.join(DIALS)}")
    return 0


def _revoke(keys: KeyFolder, arguments: argparse.Namespace) -> int:
    keys.revoke(arguments.name)
    row = {"name": arguments.name, "state": "revoked"}
    show([row], as_json=arguments.json)
    if not arguments.json:
        print(f"services that read {keys.folder} end its sessions at once; bring copies of it up to date")
    return 0


def _token(keys: KeyFolder, arguments: argparse.Namespace) -> int:
    path = keys.token()
    show([{"name": "http", "file": str(path)}], as_json=arguments.json)
    if not arguments.json:
        print("used at the broker's next start")
    return 0
