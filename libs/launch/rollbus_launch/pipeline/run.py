"""Runs the stages of a pipeline that are not finished, each in a process of its own.

A stage's folder is `<stage>-<key>`; the key is a hash of everything that decides the result: its settings
and the contents of its inputs. So what is finished stays, and what changed is made anew beside it. The
record `<stage>-<key>.json` is written last and says that a stage is finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollbus_core.datasets.files import replace
from rollbus_core.paths import RunPaths
from rollbus_launch.control import wait_until_ended
from rollbus_launch.pipeline.file import Pipeline
from rollbus_launch.processes.children import end_with_parent
from rollbus_launch.stages.base import Artefact, Stage
from rollbus_wire.errors import ConfigError, RollbusError

#: Characters of a hash in a folder's name.
SHORT = 12


class StageFailed(RollbusError):
    """A command of a stage ended with ``code``."""

    def __init__(self, stage: str, command: list[str], code: int) -> None:
        super().__init__(f"stage {stage!r} failed with exit code {code}: rollbus {' '.join(command)}")
        self.exit_code = code


class Runner:
    """One pipeline in ``folder``. ``tell`` gets a line per stage."""

    def __init__(self, pipeline: Pipeline, folder: Path, tell: Callable[[str], Any] = print) -> None:
        self.pipeline, self.folder, self._tell = pipeline, folder, tell
        self.finished: dict[str, Artefact] = {}

    def run(self, redo: str = "") -> dict[str, Artefact]:
        """Finish every stage, in order. ``redo``: this one and what follows are made anew."""
        names = list(self.pipeline.stages)
        if redo and redo not in names:
            raise ConfigError(f"--redo {redo}: {self.pipeline.path} has stages {', '.join(names)}")
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, (name, stage) in enumerate(self.pipeline.stages.items()):
            again = bool(redo) and number >= names.index(redo)
            self.finished[name] = self._stage(name, stage, again)
            self._point(name)
        return self.finished

    def key(self, name: str, stage: Stage) -> str:
        """Hash of what decides the result of ``stage``, whose inputs are finished."""
        what = {"kind": stage.kind, "inputs": self._inputs(stage), **self._identity(stage)}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    # --- one stage -------------------------------------------------------------------------------

    def _stage(self, name: str, stage: Stage, again: bool) -> Artefact:
        key = self.key(name, stage)
        out = self.folder / f"{name}-{key[:SHORT]}"
        record = out.with_name(out.name + ".json")
        if again:
            self._put_aside(out, record)
        if record.exists():
            return self._kept(name, stage, out, record)
        self._note_change(name, key)
        if stage.goes_on:
            wait_until_ended(RunPaths(out))  # what a pipeline that was killed had begun
        elif out.exists():  # whole or not, nothing says what it is
            self._put_aside(out, record)
        self._tell(f"{name}: {stage.kind} -> {out}")
        found = {wanted: self.finished[wanted] for wanted in stage.inputs()}
        began, commands = time.monotonic(), stage.commands(out, found, self.pipeline.deterministic)
        for command in commands:
            call(name, command)
        artefact = Artefact(
            stage=name, kind=stage.kind, makes=stage.makes, key=key, content=stage.content(out),
            folder=str(out), inputs=self._inputs(stage), identity=self._identity(stage),
            facts=stage.facts(out), commands=commands, wall_s=round(time.monotonic() - began, 3),
        )  # fmt: skip
        replace(record, artefact.model_dump_json(indent=1).encode())
        self._tell(f"{name}: done in {artefact.wall_s:.1f} s, content {artefact.content[:SHORT]}")
        return artefact

    def _kept(self, name: str, stage: Stage, out: Path, record: Path) -> Artefact:
        try:
            artefact = Artefact.model_validate_json(record.read_text())
        except ValueError as error:
            raise ConfigError(f"{record} is not readable: {error}; rollbus run --redo {name}") from None
        if (content := stage.content(out)) != artefact.content:
            raise ConfigError(
                f"{out} has content {content[:SHORT]}, it was made with {artefact.content[:SHORT]}: somebody "
                f"changed it; rollbus run --redo {name} makes it anew"
            )
        self._tell(f"{name}: finished before, content {artefact.content[:SHORT]}")
        return artefact

    def _inputs(self, stage: Stage) -> dict[str, str]:
        return {wanted: self.finished[wanted].content for wanted in stage.inputs()}

    def _identity(self, stage: Stage) -> dict[str, Any]:
        identity = stage.identity(self.pipeline.deterministic)
        return json.loads(json.dumps(identity, default=str))  # as it stands in records

    def _note_change(self, name: str, key: str) -> None:
        """Say what is different from the last time this stage was finished."""
        link = self.folder / f"{name}.json"
        if not link.exists():
            return
        before = json.loads(link.read_text())
        stage = self.pipeline.stages[name]
        now = {"inputs": self._inputs(stage), **self._identity(stage)}
        changes = list(_changes({"inputs": before["inputs"], **before["identity"]}, now))
        self._tell(f"{name}: made anew beside {before['folder']}: {'; '.join(changes[:5])}")

    def _put_aside(self, out: Path, record: Path) -> None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for path in (record, out):
            if path.exists():
                path.rename(path.with_name(f".{path.name}-{stamp}-{os.getpid()}"))

    def _point(self, name: str) -> None:
        """``<stage>`` and ``<stage>.json`` lead to what counts now."""
        target = Path(self.finished[name].folder).name
        for link, to in ((self.folder / name, target), (self.folder / f"{name}.json", f"{target}.json")):
            temporary = link.with_name(f".{link.name}-{os.getpid()}")
            temporary.symlink_to(to)
            temporary.replace(link)


def call(stage: str, command: list[str]) -> None:
    """Run ``rollbus`` with these arguments, its output on stderr; it ends when this process does."""
    arguments = [sys.executable, "-m", "rollbus_launch", *command]
    done = subprocess.run(arguments, stdout=sys.stderr, preexec_fn=end_with_parent)
    if done.returncode:
        raise StageFailed(stage, command, done.returncode)


def _changes(before: Any, now: Any, at: str = "") -> Any:
    """Lines such as "recipe.algorithm.learning_rate 0.001 -> 0.002"."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _changes(before.get(key), now.get(key), f"{at}.{key}" if at else key)
    elif before != now:
        yield f"{at} {_brief(before)} -> {_brief(now)}"


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:SHORT] + "..."
