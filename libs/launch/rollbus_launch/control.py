"""Ask a running run: who is there, scale, stop."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbus_core.access import Access
from rollbus_core.paths import REGISTRY, RunPaths, remove_dead
from rollbus_launch import ending
from rollbus_wire.errors import ConfigError, DeadlineExceeded, PeerLost
from rollbus_wire.messages import Command, ListMembers, Members, Message
from rollbus_wire.polling import wait_reply

LATEST = Path("runs/latest")
#: The services of a run that was killed are gone after this long.
ENDING_S = 20.0


def run_paths(run_dir: str | None, *, reads: bool = True) -> RunPaths:
    """Paths of ``run_dir``, or of the newest run; checked, if the caller ``reads`` what is there."""
    folder = Path(run_dir) if run_dir else LATEST
    if not run_dir and not folder.exists():
        raise ConfigError("there is no runs/latest here; name the run folder, or train something first")
    if not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder} is not a run folder: it has no config.yaml")
    paths = RunPaths(folder)
    if reads:
        paths.check()
    return paths


def wait_until_ended(paths: RunPaths, timeout_s: float = ENDING_S) -> bool:
    """Whether no process of the run is left within ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while paths.runtime.exists():
        remove_dead()
        if time.monotonic() > deadline:
            return not paths.runtime.exists()
        time.sleep(0.1)
    return True


def how_it_ended(paths: RunPaths) -> str:
    """What the last start of a run that is over has left: a launcher its summary, a broker its mark."""
    mark, began, told = ending.stopped_by(paths), _time(paths.config), _time(paths.summary)
    if mark and _time(paths.stopped) >= max(began, told):
        return f"because it was stopped by {mark}"
    with contextlib.suppress(OSError, ValueError, KeyError):
        if told >= began:  # else of an earlier start
            summary = json.loads(paths.summary.read_text())
            num, unit = summary["env_steps"], "steps"
            if not num:
                num, unit = summary["updates"], "updates"
            return f"by {summary['stopped_by']}, at {num:,} {unit}"
    return f"without a summary, so it was killed or failed; its logs: {paths.logs}"


def _hanging(paths: RunPaths) -> str:
    """Which processes of a run that does not answer are there, and what ends them."""
    pids = paths.claimants()
    if not pids:
        return ""
    ids = " ".join(map(str, dict.fromkeys(pids.values())))
    return f"; there are {named(pids)}: if they hang, kill -9 {ids}"


def named(pids: Mapping[str, int]) -> str:
    """Members and their processes, for people."""
    return ", ".join(f"{name} (process {pid})" for name, pid in pids.items())


def _time(path: Path) -> float:
    """When ``path`` was written; 0: it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class Control:
    """A short conversation with the registry of one run."""

    def __init__(self, paths: RunPaths, timeout_s: float = 3.0) -> None:
        self.paths, self.timeout_s = paths, timeout_s

    def __enter__(self) -> Control:
        if REGISTRY not in os.environ and not self.paths.held():
            self.paths.check()
            raise ConfigError(
                f"the run in {self.paths.root} has ended, {how_it_ended(self.paths)} "
                f"(a run whose broker is on another host is asked with {REGISTRY})"
            )
        self.link = Access.from_environment().connect("admin", self.paths.registry, self.paths.run_id)
        return self

    def __exit__(self, *_: Any) -> None:
        self.link.close()

    def ask(self, message: Message) -> Message:
        """The registry's answer; an error that names the run if there is none."""
        try:
            return wait_reply(self.link, self.link.send(message), self.timeout_s)
        except (DeadlineExceeded, PeerLost):
            raise DeadlineExceeded(
                f"no broker answers for {self.paths.root} at {self.paths.registry} within "
                f"{self.timeout_s:.3g} s{_hanging(self.paths)}; its logs: {self.paths.logs}"
            ) from None

    def members(self) -> Members:
        """Who is there."""
        answer = self.ask(ListMembers())
        assert isinstance(answer, Members)
        return answer

    def command(self, name: str, **arguments: Any) -> Message:
        """Have something done."""
        return self.ask(Command(name=name, arguments=arguments))
