"""Writes, links and removes checkpoints; knows nothing of what is in them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rollbus_core.checkpoints import (
    FORMAT,
    MANIFEST,
    file_digest,
    listed,
    name_of,
    read_manifest,
    sync,
    write_atomic,
)
from rollbus_wire.errors import CheckpointError


class CheckpointFolder:
    """The checkpoints of one run. One process writes; any number may read.

    ``keep`` newest stay, and beside them ``last``, ``best``, the protected, and those that a reader holds.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        folder.mkdir(parents=True, exist_ok=True)

    def sweep(self) -> None:
        """Remove what a killed writer left behind; only for the one that writes."""
        for path in self.folder.glob(".*"):
            if path.is_dir() and path.name.startswith((".writing-", ".removing-")):
                shutil.rmtree(path, ignore_errors=True)

    def check(self) -> None:
        """Raise `CheckpointError` if a run cannot write here, as in a copy of a run that followed links."""
        for link in (self.folder / "last", self.folder / "best"):
            if link.exists() and not link.is_symlink():
                raise CheckpointError(
                    f"{link} is no link, so it cannot be pointed at new checkpoints (a copy of a run that "
                    "followed its links looks so); remove it if the checkpoint in it is beside it, too, or "
                    "else give it that checkpoint's name (STEPS-LINEAGE.NUMBER, from its manifest.json)"
                )

    def write(self, manifest: Mapping[str, Any], files: Mapping[str, Callable[[Path], None]]) -> Path:
        """Make one checkpoint and point ``last`` at it; each of ``files`` writes itself to the path it gets.

        ``manifest`` has ``env_steps`` and ``version``. On disk when this returns.
        """
        name = name_of(manifest["env_steps"], tuple(manifest["version"]))
        temporary, target = self.folder / f".writing-{name}", self.folder / name
        if target.exists():
            self._remove(target)
        temporary.mkdir()
        digests = {}
        for file, write in files.items():
            write(temporary / file)
            digests[file] = file_digest(temporary / file)
            sync(temporary / file)
        data = {"format": FORMAT, **manifest, "files": digests}
        (temporary / MANIFEST).write_text(json.dumps(data, indent=1))
        sync(temporary / MANIFEST)
        sync(temporary)
        os.rename(temporary, target)
        self._link("last", target)
        return target

    def mark_best(self, path: Path, score: float) -> bool:
        """Point ``best`` at ``path`` if ``score`` is higher than that of the best so far."""
        if not path.is_dir() or score != score or score <= self.best_score():
            return False
        write_atomic(self.folder / "best.json", json.dumps({"name": path.name, "score": score}).encode())
        self._link("best", path)
        return True

    def forget_damaged_best(self) -> str:
        """Have no best checkpoint if it, or its score, is damaged; what is wrong, or ""."""
        best = self.folder / "best"
        try:
            self.best_score()
            if best.exists():
                read_manifest(best.resolve())
        except CheckpointError as error:
            best.unlink(missing_ok=True)
            (self.folder / "best.json").unlink(missing_ok=True)
            return f"{error}; there is no best checkpoint now, the next evaluation chooses another"
        return ""

    def best_score(self) -> float:
        """Score of ``best``, or minus infinity; raises `CheckpointError` if its file is damaged."""
        path = self.folder / "best.json"
        try:
            return float(json.loads(path.read_bytes())["score"])
        except FileNotFoundError:
            return float("-inf")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{path} is damaged ({error})") from None

    def prune(self, protected: Iterable[Path] = ()) -> list[Path]:
        """Remove what need not stay; returns what was removed."""
        linked = [(self.folder / link).resolve() for link in ("last", "best")]
        safe = {path.name for path in (*linked, *protected)}
        old = [path for path in listed(self.folder)[: -self.keep] if path.name not in safe]
        return [path for path in old if self._remove(path)]

    def _remove(self, path: Path) -> bool:
        """Remove unless a reader holds it. Renamed first: half a checkpoint never has its name."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            doomed = path.with_name(f".removing-{path.name}")
            os.rename(path, doomed)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        shutil.rmtree(doomed, ignore_errors=True)
        return True

    def _link(self, name: str, target: Path) -> None:
        temporary = self.folder / f".link-{name}"
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        temporary.symlink_to(target.name)
        os.replace(temporary, self.folder / name)
        sync(self.folder)
