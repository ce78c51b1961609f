"""Key folders for tests, written by hand as docs/security.md states the format."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import zmq

from rollbus_wire.keys import PUBLIC, SECRET, Key


def make_key(folder: Path, name: str, role: str, server: Optional[Key] = None) -> Path:
    """Both files of a new key; the secret one's path."""
    public, secret = zmq.curve_keypair()
    key = Key(name, role, public, secret, server.public if server else b"", server.name if server else "")
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / (name + PUBLIC)).write_text(Key(name, role, public).to_text())
    path = folder / (name + SECRET)
    path.touch(0o600)
    path.write_text(key.to_text())
    return path


def revoke(folder: Path, name: str) -> None:
    """Put ``name`` among the revoked."""
    (folder / "revoked").mkdir(exist_ok=True)
    (folder / (name + PUBLIC)).rename(folder / "revoked" / (name + PUBLIC))
