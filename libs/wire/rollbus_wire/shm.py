"""Prove that two processes see the same memory: one writes a file, the other reads it back."""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Union

PREFIX = "nonce-"
_SIZE = 16


def write_nonce(folder: Union[str, Path]) -> str:
    """Write a file of random bytes into ``folder``; ``NAME=HEX`` names it and what it holds."""
    name = PREFIX + os.urandom(8).hex()
    content = os.urandom(_SIZE).hex()
    descriptor = os.open(str(Path(folder) / name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)
    return "%s=%s" % (name, content)


def same_memory(nonce: str, folder: Union[str, Path]) -> bool:
    """Whether ``nonce``, which another process wrote, is found in this process's ``folder``.

    The name is looked up in ``folder`` only: what comes from outside never chooses a path.
    """
    name, _, digits = nonce.partition("=")
    if not name.startswith(PREFIX) or os.path.basename(name) != name:
        return False
    try:
        descriptor = os.open(str(Path(folder) / name), os.O_RDONLY | os.O_NOFOLLOW)
    except (OSError, ValueError):  # a name may hold anything, a null byte too
        return False
    try:
        found = os.read(descriptor, 2 * _SIZE + 1)
    finally:
        os.close(descriptor)
    return len(found) == 2 * _SIZE and hmac.compare_digest(found, digits.encode())


def remove_nonce(nonce: str, folder: Union[str, Path]) -> None:
    """Remove the file of one's own ``nonce``."""
    try:
        os.unlink(str(Path(folder) / os.path.basename(nonce.partition("=")[0])))
    except FileNotFoundError:
        pass
