"""Checks of this machine: interpreter, memory, packages, accelerators."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rollbus_core import extras
from rollbus_core.config.load import PLUGIN_PACKAGES
from rollbus_core.cores import num_cores
from rollbus_core.descriptors import max_connections
from rollbus_core.key_folder import KeyFolder, configured
from rollbus_core.paths import remove_dead, shared_memory_root
from rollbus_wire import lookup
from rollbus_wire.errors import RollbusError
from rollbus_wire.keys import SECRET, VARIABLE, load, require_curve

MIN_SHARED_BYTES = 256 << 20
#: A connection is one: a hub with a thousand peers needs more than the usual 1024.
MIN_FILES = 4096


@dataclass
class Check:
    """One thing a run may need."""

    kind: str
    name: str
    ok: bool
    found: str
    fix: str = ""
    #: Every run needs it.
    needed: bool = False

    def row(self) -> dict[str, Any]:
        """For the table."""
        return {
            "what": f"{self.kind} {self.name}".strip(),
            "ok": self.ok,
            "needed": self.needed,
            "found": self.found,
            "fix": "" if self.ok else self.fix,
        }


def all_checks() -> list[Check]:
    """Everything, in the order in which a run would need it."""
    return [*machine(), *packages(), *backends(), *plugins()]


def machine() -> Iterator[Check]:
    """Interpreter, cores, shared memory, open files."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check(
        "machine", "python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer", True
    )
    cores = num_cores()
    yield Check("machine", "cores", cores >= 2, f"{cores}", "works, but services share one core")
    yield _leftovers()
    yield _shared_memory()
    yield _keys()
    files, sockets = max_connections()
    found = f"{files} (services raise their limit to it), {sockets} sockets"
    fix = (
        "raise the hard limit: LimitNOFILE=65536 (systemd), --ulimit nofile=65536 (docker), ulimit -Hn 65536"
    )
    yield Check("machine", "open files", files >= MIN_FILES, found, fix)


def _keys() -> Check:
    """What services here would do about keys, and whether they could."""
    folder = configured()
    try:
        require_curve()
        if folder is None:
            return Check("machine", "keys", True, f"CURVE is there; {VARIABLE} is not set: loopback only")
        rows = KeyFolder(folder).rows()
        own = [load(folder / f"{row['name']}{SECRET}").role for row in rows if row["secret_here"]]
    except RollbusError as error:
        return Check("machine", "keys", False, str(error), "see docs/security.md")
    revoked = sum(row["state"] == "revoked" for row in rows)
    found = (
        f"{folder}: {len(rows) - revoked} allowed, {revoked} revoked, secrets of {', '.join(own) or 'nobody'}"
    )
    return Check("machine", "keys", bool(rows) or any(folder.glob(f"*{SECRET}")), found,
                 f"{folder} is empty: rollbus keys create, or copy them there")  # fmt: skip


def _leftovers() -> Check:
    """Sweep what killed runs left in shared memory."""
    removed = remove_dead()
    found = f"removed {', '.join(map(str, removed))}" if removed else "none"
    return Check("machine", "folders of dead runs", True, found)


def _shared_memory() -> Check:
    root = shared_memory_root()
    try:
        free = shutil.disk_usage(root).free
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        return Check("machine", "shared memory", False, f"{root}: {error.strerror}",
                     "set ROLLBUS_RUNTIME_DIR to a writable folder in memory", True)  # fmt: skip
    return Check(
        "machine", "shared memory", free >= MIN_SHARED_BYTES, f"{free >> 20} MiB free in {root}",
        "free some, or docker --shm-size=1g, or set ROLLBUS_RUNTIME_DIR", True,
    )  # fmt: skip


def packages() -> Iterator[Check]:
    """What the distribution's extras bring, and what each package is for."""
    for each in extras.ALL:
        there = not extras.missing([each.name])
        found = f"{_version(each.distribution) if there else 'not installed'}, for {each.used_for}"
        fix = extras.install_line([extras.requirement(each.name)])
        yield Check("package", each.distribution, there, found, fix, each.needed)


def backends() -> Iterator[Check]:
    """Accelerators; each that is absent says what is missing."""
    for name in lookup.names("rollbus_accel.backends"):
        backend = lookup.find("rollbus_accel.backends", name).backend
        ok, reason = backend.available()
        yield Check("backend", name, ok, backend.device if ok else "absent", reason)


def plugins() -> Iterator[Check]:
    """Environments, policies and algorithms, with the packages they need."""
    for section, package in PLUGIN_PACKAGES.items():
        for name in lookup.names(package):
            try:
                module = lookup.find(package, name)
            except RollbusError as error:
                yield Check(section, name, False, str(error), "see the message")
                continue
            if not hasattr(module, "Config"):
                continue
            missing = extras.missing(getattr(module, "needs", ()))
            found = f"needs {', '.join(missing)}" if missing else "ready"
            fix = extras.install_line(map(extras.requirement, missing))
            yield Check(section, name, not missing, found, fix)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "installed by hand"
