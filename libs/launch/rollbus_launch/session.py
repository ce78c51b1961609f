"""One training run from the launcher's side: processes up, watch, finish, down."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

from rollbus_core.access import Access
from rollbus_core.checkpoints import read_manifest
from rollbus_core.config.feeds import streams
from rollbus_core.feed import TRAINING_TABLE
from rollbus_core.member import Member
from rollbus_core.paths import RunPaths
from rollbus_launch import room
from rollbus_launch.launchers.base import ProcessSpec
from rollbus_launch.launchers.local import LocalLauncher, ProcessFailed
from rollbus_launch.planning.auto_layout import Measuring
from rollbus_launch.processes import last_words, nursery, silence, stacks
from rollbus_launch.processes.children import start_command
from rollbus_launch.processes.hung import Patience
from rollbus_launch.processes.nursery import Nursery
from rollbus_launch.records import prepare_drawing
from rollbus_wire.errors import ConfigError
from rollbus_wire.link import Envelope
from rollbus_wire.messages import (
    CheckpointSaved,
    Command,
    Evaluated,
    Gone,
    ListMembers,
    Members,
)
from rollbus_wire.polling import Poller

#: Services whose state is part of a checkpoint of a deterministic run.
STATEFUL = frozenset({"hub", "actor", "learner"})
TURN_S = 0.1
STATUS_S = 0.5
#: After the learner has finished, the last evaluation may take this long.
LAST_EVALUATION_S = 600.0
#: People are told of a broker that has not answered for this long.
BROKER_TOLD_S = 5.0
#: Where the stack begins in what a service says of a failure.
_STACK = "\nTraceback (most recent call last):\n"
#: If the learner's word of its final checkpoint has not come so long after it ended, it was lost.
ANNOUNCED_S = 5.0


class Session:
    """Runs the processes of a resolved recipe until training is over."""

    def __init__(self, resolved: Any, paths: RunPaths, display: Any) -> None:
        self.recipe, self.paths, self.display = resolved.recipe, paths, display
        self.nursery = Nursery(paths) if nursery.available() else None
        self.launcher = LocalLauncher(
            paths, max_restarts=self.recipe.deploy.restarts, min_healthy=self.recipe.deploy.min_healthy,
            on_exit=self._on_exit, on_again=self._tell_gone,
            start=self.nursery.start if self.nursery else start_command,
            about=lambda process: last_words.about(process, self.members, self.recipe.env.placement),
        )  # fmt: skip
        self.link = Access.from_environment().connect("admin", paths.registry, paths.run_id)
        self.member = Member(self.link, "launcher", "launcher-0")
        self.member.stage("watch")
        self.members: list[dict[str, Any]] = []
        self.evaluation: dict[str, Any] | None = None
        #: What steps cost, as it was reported while the learner ran.
        self.costs = Measuring()
        #: Failures that have been shown, by member.
        self._shown: dict[str, str] = {}
        #: Stacks that have been shown, without their numbers.
        self._stacks: set[str] = set()
        self._silence = silence.Silence()
        deploy = self.recipe.deploy
        self._patience = Patience(deploy.hung_after_s, deploy.start_timeout_s, time.monotonic())
        self._broker_told = False
        self.stopped_by = ""
        self._final_path = ""
        self._learner_done_at = 0.0
        self._stop = False

    def request_stop(self, *_: object) -> None:
        """Signal handler: end in order."""
        self._stop, self.stopped_by = True, "interrupt"

    def run(self) -> None:
        """Until the learner is done and the final checkpoint is evaluated, or a stop."""
        poller = Poller()
        poller.add(self.link)
        next_status = 0.0
        try:
            for process in layout(self.recipe):
                self.launcher.up(process)
            while not (self._stop or self.member.stop_requested or self._over()):
                poller.wait(TURN_S)
                for envelope in self.member.poll():
                    self._handle(envelope)
                self._watch()
                self._end_hanging()
                if (now := time.monotonic()) >= next_status:
                    next_status = now + STATUS_S
                    self.member.send(ListMembers())
            if self.member.stop_requested:
                self.stopped_by = "rollbus stop"
        finally:
            threading.Thread(target=prepare_drawing, daemon=True).start()
            if self.nursery:
                self.nursery.close()
            self.launcher.down(self.recipe.deploy.stop_timeout_s)
            self.link.close()

    def _watch(self) -> None:
        """Notice ended processes. Raises `ProcessFailed`, without a stack that was shown before."""
        try:
            self.launcher.poll()
        except ProcessFailed as error:
            raise ProcessFailed(self._once(str(error))) from None

    def _once(self, text: str) -> str:
        """``text`` without its stack if one like it, but for numbers, was shown before."""
        line, begins, stack = text.partition(_STACK)
        kind = re.sub(r"\d+", "0", stack)
        if begins and kind in self._stacks:
            return f"{line} (its stack stands above)"
        self._stacks.add(kind)
        return text

    def _handle(self, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, Members):
            self.members, self._broker_told = message.members, False
            self._patience.heard(m["name"] for m in self.members if m["state"] == "lost")
            self._note_failures()
            self._note_silent()
            if self.launcher.running("learner"):
                self.costs.hear(message.members)
            self.display.update(message.members, self.evaluation)
        elif isinstance(message, CheckpointSaved):
            if message.final:
                self._final_path = message.path
                self.display.finished(message.env_steps, message.updates)
            if not self.launcher.running("evaluator"):
                self.launcher.up(ProcessSpec(("evaluator",), 0))
        elif isinstance(message, Evaluated):
            self.evaluation = dict(message.result)
            self.display.evaluated(self.evaluation)
            target = self.recipe.stop_when.eval_return
            if target is not None and self.evaluation["mean_return"] >= target:
                self.stopped_by = "evaluation"
        elif isinstance(message, Command) and message.name == "scale":
            for role, count in message.arguments.items():
                self._scale(str(role), int(count))

    def _scale(self, role: str, count: int) -> None:
        try:
            room.check(f"{role}={count}", count, running=self.launcher.num_running(role))
        except ConfigError as error:
            self.display.note(f"not scaled: {error}")
        else:
            self.launcher.scale(role, count)

    def _note_failures(self) -> None:
        """Show what goes wrong inside a member that lives on, such as an environment that raises."""
        for member in self.members:
            text = silence.own_failure(member)
            # Lines that differ in numbers only, as rows and addresses do, are one failure.
            kind = re.sub(r"(?<!restart )\d+", "0", text)
            ended = member["state"] == "failed"  # told when it ended
            if text and not ended and self._shown.get(member["name"]) != kind:
                self._shown[member["name"]] = kind
                self.display.note(f"{member['name']}, stage {member.get('stage')}: {self._once(text)}")

    def _note_silent(self) -> None:
        """Say of a process that is silent but lives what it does: its stage, its last failure, its stack."""
        silent = silence.lost(self.members)
        ask, tell = self._silence.seen(silent)
        for process in tell:
            members = silent[process]
            stack = stacks.read(self.paths, members[0]["name"], members[0]["pid"])
            limit_s, shown = self.recipe.deploy.hung_after_s, self._silence.shown(stack)
            self.display.note(silence.told(members, stack, limit_s, shown=shown))
        for process in ask:
            self.launcher.ask_stack(*_role_and_index(silent[process][0]["name"]))

    def _end_hanging(self) -> None:
        """Kill what lives but has been silent for too long; it starts again within its budget."""
        self._patience.turn(time.monotonic())
        silent_s = self._patience.broker_s
        if silent_s > BROKER_TOLD_S and not self._broker_told and self.launcher.running("broker"):
            self._broker_told = True
            self.display.note(f"the broker has not answered for {silent_s:.0f} s; the others wait for it")
        pids = {member["name"]: member["pid"] for member in self.members}
        hanging = [(name, pids.get(name)) for name in self._patience.hanging]
        if self._patience.broker_hangs:
            self._patience.broker_again()
            hanging.append(("broker-0", None))
        for name, pid in hanging:
            if self.launcher.kill(*_role_and_index(name), pid):
                limit = f"{self.recipe.deploy.hung_after_s:g} s (deploy.hung_after_s)"
                self.display.note(f"{name} hangs: it lives, but was lost for more than {limit}; it is killed")

    def _on_exit(self, process: ProcessSpec, pid: int, reason: str) -> None:
        self._tell_gone(process, pid, reason)
        if "broker" in process.roles:
            self._patience.broker_again()
        if self.launcher.goes_on(process):  # else the reason ends the run, and is told then
            self.display.note(self._once(reason))
            self._begin_anew(process)
            if "learner" in process.roles and self.launcher.running("learner"):
                self.display.note(f"the learner starts again {self._resume_point()}")

    def _tell_gone(self, process: ProcessSpec, pid: int, reason: str = "begins anew") -> None:
        for role in process.roles:
            self.member.send(Gone(role=role, name=f"{role}-{process.index}", pid=pid, reason=reason))

    def _begin_anew(self, process: ProcessSpec) -> None:
        """A deterministic run goes on from its checkpoint as a whole, environments included."""
        if self.recipe.run.deterministic and not STATEFUL.isdisjoint(process.roles):
            self.launcher.again(STATEFUL)

    def _resume_point(self) -> str:
        last = self.paths.checkpoints / "last"
        if self.recipe.run.resume == "never" or not last.exists():
            return "from the beginning: there is no checkpoint to go on from"
        return f"from checkpoint {last.resolve().name}"

    def _over(self) -> bool:
        """The learner has ended and its last checkpoint is evaluated (or waited for long enough)."""
        if self.launcher.running("learner"):
            return False
        now = time.monotonic()
        self._learner_done_at = self._learner_done_at or now
        if self.stopped_by:
            return True
        if not self._final_path and now - self._learner_done_at > ANNOUNCED_S:
            self._announce_last()
        done = self.evaluation and self.evaluation["checkpoint"] == self._final_path
        return bool(done) or now - self._learner_done_at > LAST_EVALUATION_S

    def _announce_last(self) -> None:
        """Say in the learner's place which checkpoint is its last: it told a broker that was away."""
        last = (self.paths.checkpoints / "last").resolve()
        self._final_path = str(last)
        manifest = read_manifest(last, verify=False)
        self.member.send(
            CheckpointSaved(
                str(last), manifest["version"], manifest["env_steps"], manifest["updates"], final=True
            )
        )


def _role_and_index(member: str) -> tuple[str, int]:
    role, _, index = member.rpartition("-")
    return role, int(index)


def newest_checkpoint(paths: RunPaths) -> Path:
    """``best`` if there is one, else ``last``."""
    best = paths.checkpoints / "best"
    return best if best.exists() else paths.checkpoints / "last"


def layout(recipe: Any) -> list[ProcessSpec]:
    """The processes of a run, entry by entry of ``deploy.processes``.

    The further processes of an entry hold those of its services of which there are that many. A run that
    only learns from data has no hubs and actors; one with data has a source.
    """
    counts = {"hub": recipe.env.hubs, "actor": recipe.actor.count}
    idle = set() if TRAINING_TABLE in streams(recipe) else {"hub", "actor"}
    entries = [[role.strip() for role in entry.split("+")] for entry in recipe.deploy.processes]
    if recipe.data.sources and not any("source" in entry for entry in entries):
        entries.insert(1, ["source"])
    specs = []
    for entry in entries:
        wanted = {role: counts.get(role, 1) for role in entry if role not in idle}
        if not wanted:
            continue
        for index in range(max(wanted.values())):
            specs.append(ProcessSpec(tuple(role for role, n in wanted.items() if n > index), index))
    return specs
