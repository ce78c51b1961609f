"""Where a run keeps what: the run folder on disk and the runtime folder in shared memory.

The runtime folder (mode 0700) holds sockets, slabs and weight buffers. It lives as long as a
process holds a shared `flock` on its ``alive`` file; `remove_dead` sweeps the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollbus_core.kinds import FILE, FOLDER, SOCKET, strange_files, unlike
from rollbus_wire.errors import ConfigError, SharedMemoryFull
from rollbus_wire.limits import MAX_PROCESSES

PREFIX = "rollbus-"
#: Environment variable with the endpoint of a broker that this host's run folder does not tell.
REGISTRY = "ROLLBUS_REGISTRY"
#: A runtime folder that nobody holds yet is left alone for this long.
UNFINISHED_S = 30.0
#: Folder of a run -> names of the files in it, of which there are some per process.
_MANY = {
    "logs": re.compile(r".*\.(jsonl|stderr|stack|failure\.json)"),
    "audit": re.compile(r".*\.jsonl"),
    "episodes": re.compile(r"hub-\d+\.(jsonl|json|part)"),
    "store": re.compile(r"slab-.*|log\.partial"),
}


def shared_memory_root() -> Path:
    """The folder for runtime folders: ROLLBUS_RUNTIME_DIR, else /dev/shm."""
    return Path(os.environ.get("ROLLBUS_RUNTIME_DIR", "/dev/shm"))


class AlreadyRuns(ConfigError):
    """Another process of this host is what this one would be."""


class RunPaths:
    """Paths of one run. Nothing is created here."""

    def __init__(self, run_dir: str | Path) -> None:
        self.root = Path(run_dir).resolve()
        try:
            digest = hashlib.sha256(str(self.root).encode()).hexdigest()[:12]
        except UnicodeEncodeError:
            raise ConfigError(
                f"run folder {str(self.root)!r} has a name that is not UTF-8; choose another one"
            ) from None
        self.runtime = shared_memory_root() / f"{PREFIX}{os.getuid()}-{digest}"
        self.config = self.root / "config.yaml"
        self.metrics = self.root / "metrics.jsonl"
        self.evaluations = self.root / "evaluations.jsonl"
        self.summary = self.root / "summary.json"
        #: That services without a launcher were stopped in order, and by whom.
        self.stopped = self.root / "stopped.json"
        self.curve = self.root / "curve.png"
        #: Where the broker says its HTTP address.
        self.http = self.root / "http.txt"
        self.chaos = self.root / "chaos.json"
        #: Where `rollbus policy` listens.
        self.policy_socket = self.root / "policy.sock"
        self.tensorboard = self.root / "tensorboard"
        self.logs = self.root / "logs"
        self.checkpoints = self.root / "checkpoints"
        self.audit = self.root / "audit"
        self.store = self.root / "store"
        self.episodes = self.root / "episodes"
        self.store_log = self.store / "log"
        self.boot_file = self.store / "boot.json"
        self.broker_lock = self.store / "lock"
        files = (
            self.config, self.metrics, self.evaluations, self.summary, self.stopped, self.curve, self.http,
            self.chaos,
        )  # fmt: skip
        folders = (self.tensorboard, self.logs, self.checkpoints, self.audit, self.store, self.episodes)
        #: All that a run may leave in its folder.
        self.contents = (*files, *folders)
        #: What has to be of which kind, if it is there.
        self.kinds = {
            **dict.fromkeys(folders, FOLDER),
            **dict.fromkeys(files, FILE),
            **dict.fromkeys((self.store_log, self.boot_file, self.broker_lock), FILE),
            **dict.fromkeys((self.checkpoints / "lineage", self.checkpoints / "best.json"), FILE),
            self.policy_socket: SOCKET,
        }
        #: Messages of other runs are refused; hosts with different run folders state a common id.
        self.run_id = os.environ.get("ROLLBUS_RUN_ID") or digest

    @property
    def registry(self) -> str:
        """Endpoint of the registry plane; one that the environment states may be on another host."""
        return os.environ.get(REGISTRY, f"ipc://{self.runtime}/registry")

    @property
    def store_endpoint(self) -> str:
        """Endpoint of the store plane."""
        return os.environ.get("ROLLBUS_STORE", f"ipc://{self.runtime}/store")

    def failure(self, process: str) -> Path:
        """Where a process leaves what ended it."""
        return self.logs / f"{process}.failure.json"

    @property
    def weights_endpoint(self) -> str:
        """Where the learner serves weights to other hosts; empty: it serves none."""
        return os.environ.get("ROLLBUS_WEIGHTS", "")

    def hub_data(self, index: int) -> str:
        """Endpoint of a hub's data plane; of tcp with port ``*``, each start of a hub takes a free one."""
        return os.environ.get("ROLLBUS_HUB_DATA") or f"ipc://{self.runtime}/hub-{index}-data"

    def hub_peers(self, index: int) -> str:
        """Endpoint of a hub's peer plane."""
        return f"ipc://{self.runtime}/hub-{index}-peers"

    def starts(self, index: int) -> Path:
        """Where a hub writes each episode that ended with the options it began with."""
        return self.episodes / f"hub-{index}.jsonl"

    def option_state(self, index: int) -> Path:
        """Where a hub keeps what its source of options has learned."""
        return self.episodes / f"hub-{index}.json"

    def weights(self, policy: str) -> Path:
        """Prefix of the slot's buffer files."""
        return self.runtime / f"weights-{policy}"

    def check(self) -> None:
        """Raise `ConfigError` with all that is not of its kind, before anything opens it."""
        problems = [unlike(path, wanted) for path, wanted in self.kinds.items()]
        for folder, names in _MANY.items():
            problems += [unlike(path, FILE) for path in strange_files(self.root / folder, names)]
        if any(problems):
            raise ConfigError("\n".join(f"{problem}; move it away" for problem in problems if problem))

    def create(self) -> None:
        """Make the run folder and the runtime folder; raises with what to do if it cannot."""
        self.check()
        try:
            for folder in (self.root, self.logs, self.checkpoints, self.store):
                folder.mkdir(0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            reason = unlike(self.root, FOLDER) or error.strerror
            raise ConfigError(
                f"run folder {self.root} cannot be written: {reason}; choose another one with --run-dir"
            ) from None
        try:
            _make_private(self.runtime)
        except OSError as error:
            raise SharedMemoryFull(
                f"runtime folder {self.runtime} cannot be made: {error.strerror}; "
                "set ROLLBUS_RUNTIME_DIR to a writable folder in memory"
            ) from None

    def require_shared_memory(self, num_bytes: int) -> None:
        """Refuse to start where the first slabs and weights would not fit."""
        free = shutil.disk_usage(self.runtime).free
        if free < num_bytes:
            raise SharedMemoryFull(
                f"{self.runtime.parent} has {free >> 20} MiB free, a run needs at least "
                f"{num_bytes >> 20} MiB (2 x broker.slab_bytes); free some, give it more "
                "(docker: --shm-size), or set ROLLBUS_RUNTIME_DIR"
            )

    @contextlib.contextmanager
    def claimed(self, roles: Sequence[str], index: int | None) -> Iterator[int]:
        """Be the only process of this host that is any of ``roles`` with ``index``, which is given, while the
        block runs. None: the first that is free.

        The runtime folder must be held. Raises `AlreadyRuns` with the other process.
        """
        tried = range(MAX_PROCESSES) if index is None else (index,)
        for number in tried:
            with contextlib.ExitStack() as claims:
                try:
                    for role in roles:
                        claims.callback(os.close, self._claim(f"{role}-{number}"))
                except AlreadyRuns:
                    if number == tried[-1]:
                        raise
                    continue
                yield number
                return

    def _claim(self, member: str) -> int:
        descriptor = os.open(self.runtime / f"{member}.pid", os.O_RDWR | os.O_CREAT, 0o600)
        if not _locked(descriptor):
            pid = os.read(descriptor, 20).decode() or "?"
            os.close(descriptor)
            raise AlreadyRuns(
                f"{member} of the run in {self.root} runs already, as process {pid}; end that one first, or, "
                "of hubs and actors, serve another --index"
            )
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        return descriptor

    def claimants(self) -> dict[str, int]:
        """Member -> pid of the processes of this host that are one now."""
        found = {}
        for path in sorted(self.runtime.glob("*.pid")):
            with contextlib.suppress(OSError, ValueError), open(path, "rb+") as file:
                if not _locked(file.fileno()):
                    found[path.stem] = int(file.read(20))
        return found

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Hold the runtime folder for as long as the block runs."""
        descriptor = _hold(self.runtime)
        try:
            yield
        finally:
            os.close(descriptor)

    def held(self) -> bool:
        """Whether a process of this user on this host holds the runtime folder."""
        try:
            descriptor = os.open(self.runtime / "alive", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return not _locked(descriptor)
        finally:
            os.close(descriptor)


def remove_dead(root: Path | None = None) -> list[Path]:
    """Remove this user's runtime folders that no process holds; returns them."""
    folders = (root or shared_memory_root()).glob(f"{PREFIX}{os.getuid()}-*")
    return [folder for folder in folders if _remove_unheld(folder)]


def _make_private(folder: Path) -> None:
    """Make ``folder`` for this user alone; unlike `Path.mkdir`, one that is swept meanwhile is no error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"runtime folder {folder} has mode {stat.S_IMODE(status.st_mode):04o} and owner "
            f"{status.st_uid}: somebody else could put files there; remove it, or set "
            "ROLLBUS_RUNTIME_DIR to a folder of your own"
        )


def _locked(descriptor: int) -> bool:
    """Lock the file exclusively until ``descriptor`` is closed; False: somebody else holds a lock on it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _hold(runtime: Path) -> int:
    """Descriptor with a shared lock on the ``alive`` file of ``runtime``; both are made if absent."""
    while True:
        _make_private(runtime)
        try:
            descriptor = os.open(runtime / "alive", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # swept between the two lines
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(runtime / "alive")):
                return descriptor
        os.close(descriptor)  # swept while this waited for the lock


def _remove_unheld(folder: Path) -> bool:
    """Remove ``folder`` under the exclusive lock, so that nobody can begin to hold it meanwhile."""
    try:
        descriptor = os.open(folder / "alive", os.O_RDWR)
    except FileNotFoundError:
        return _remove_unfinished(folder)
    try:
        if unheld := _locked(descriptor):
            shutil.rmtree(folder, ignore_errors=True)
        return unheld
    finally:
        os.close(descriptor)


def _remove_unfinished(folder: Path) -> bool:
    """A folder without ``alive`` is one that is just being made, or what is left of a crash."""
    try:
        if time.time() - folder.stat().st_mtime < UNFINISHED_S:
            return False
    except FileNotFoundError:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True
