"""Make, list and revoke keys: what `rollbus keys` does to a folder. The files: `rollbus_wire.keys`."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zmq

from rollbus_wire.errors import AccessDenied
from rollbus_wire.keys import PUBLIC, REVOKED, SECRET, VARIABLE, AllowList, Key, check_name, require_curve
from rollbus_wire.roles import DIALS, ROLES

HTTP_TOKEN = "http.token"
#: Random bytes of a token.
_TOKEN_BYTES = 32


def configured(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder that ROLLBUS_KEYS names; None: this process works without keys."""
    folder = environment.get(VARIABLE, "")
    return Path(folder) if folder else None


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where `rollbus keys` works unless told otherwise: ROLLBUS_KEYS, else the user's own folder."""
    settings = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return configured(environment) or settings / "rollbus" / "keys"


class KeyFolder:
    """The folder in which keys are made; services read it, or copies of what they need of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self, name: str, role: str, server: str = "") -> Path:
        """A new key; the path of its secret file. ``server``: the key of whom it dials, by name.

        Without ``server`` it is the only key of the role that this role dials. Raises `AccessDenied`.
        """
        require_curve()
        if role not in ROLES:
            raise AccessDenied(f"role {role!r} is none of: {', '.join(ROLES)}")
        self._prepare()
        path = self.folder / f"{check_name(name)}{SECRET}"
        if path.exists() or (self.folder / f"{name}{PUBLIC}").exists():
            raise AccessDenied(
                f"{self.folder} has a key {name}; revoke it first (`rollbus keys revoke {name}`), or use "
                "another name"
            )
        dialled = self._dialled(role, server)
        public, secret = zmq.curve_keypair()
        key = Key(name, role, public, secret, *((dialled.public, dialled.name) if dialled else ()))
        _write(path, key.to_text(), 0o600)
        # Last, under its name at once: whoever reads the list meanwhile sees no half of it.
        _write(self.folder / f"{name}{PUBLIC}", Key(name, role, public).to_text(), 0o600)
        return path

    def revoke(self, name: str) -> None:
        """Take ``name`` off the list: its sessions end, and it is refused by name from now on."""
        public = self.folder / f"{check_name(name)}{PUBLIC}"
        if not public.exists():
            rows = self.rows()
            if any(row["name"] == name and row["state"] == "revoked" for row in rows):
                raise AccessDenied(f"the key {name} in {self.folder} is revoked already")
            known = ", ".join(row["name"] for row in rows if row["state"] == "allowed") or "none"
            raise AccessDenied(f"{self.folder} has no key {name}; keys there: {known}")
        graves = self.folder / REVOKED
        graves.mkdir(mode=0o700, exist_ok=True)
        os.rename(public, graves / f"{name}-{time.time_ns()}{PUBLIC}")
        (self.folder / f"{name}{SECRET}").unlink(missing_ok=True)

    def rows(self) -> list[dict[str, Any]]:
        """Every key: name, role, state, what of it is here, and its public half."""
        listed = AllowList(self.folder)
        rows = [
            {
                "name": entry.name, "role": entry.role, "state": "revoked" if entry.revoked else "allowed",
                "secret_here": (self.folder / f"{entry.name}{SECRET}").exists() and not entry.revoked,
                "public_key": public,
            }
            for public, entry in listed.entries().items()
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (row["state"], row["role"], row["name"]))

    def token(self) -> Path:
        """Make the bearer token for HTTP anew; its file."""
        self._prepare()
        path = self.folder / HTTP_TOKEN
        _write(path, secrets.token_urlsafe(_TOKEN_BYTES) + "\n", 0o600)
        return path

    def _prepare(self) -> None:
        """The folder, for this user alone."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.folder.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise AccessDenied(
                f"{self.folder} has mode {status.st_mode & 0o777:04o} and owner {status.st_uid}: keys are "
                f"made in a folder of your own that nobody else enters; chmod 700 {self.folder}"
            )

    def _dialled(self, role: str, server: str) -> Key | None:
        """The key of the service that ``role`` dials."""
        wanted = DIALS.get(role)
        if wanted is None and not server:
            return None
        found = [
            Key(entry.name, entry.role, public.encode())
            for public, entry in AllowList(self.folder).entries().items()
            if not entry.revoked and (entry.name == server if server else entry.role == wanted)
        ]
        if len(found) == 1:
            return found[0]
        if server:
            raise AccessDenied(f"--server {server}: {self.folder} has no key of that name")
        names = ", ".join(sorted(key.name for key in found))
        raise AccessDenied(
            f"a key of role {role} names the key of role {wanted} that it dials, and {self.folder} has "
            + (f"several: say which with --server, one of: {names}" if found else
               f"none; first: rollbus keys create {wanted} --role {wanted}")
        )  # fmt: skip


def read_token(path: Path) -> bytes:
    """The bearer token in a file that nobody else may read; raises `AccessDenied`."""
    from rollbus_wire.keys import check_private

    try:
        with open(path, "rb") as file:
            check_private(path, os.fstat(file.fileno()))
            token = file.read(1024).strip()
    except OSError as error:
        raise AccessDenied(f"token file {path} cannot be read: {error.strerror}") from None
    if len(token) < 16:
        raise AccessDenied(
            f"token file {path} holds {len(token)} characters; make one with `rollbus keys token`"
        )
    return token


def _write(path: Path, text: str, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
