"""The service that evaluates checkpoints while training goes on; the newest one wins.

It polls the evaluation's own hub and actor in its turns and never waits, so that it may share a
process with others.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rollbus_core.access import Access
from rollbus_core.checkpoint_folder import CheckpointFolder
from rollbus_core.lines import LineFile
from rollbus_core.member import Member
from rollbus_core.paths import RunPaths
from rollbus_core.service import Service
from rollbus_launch.evaluation.evaluate import Running, Settings
from rollbus_launch.evaluation.result import Evaluation
from rollbus_wire.errors import CheckpointError, PeerLost
from rollbus_wire.link import Link
from rollbus_wire.messages import CheckpointSaved, Evaluated
from rollbus_wire.polling import Poller

BUILD_S = 60.0
#: Rows that an evaluation lacks are told of after this long.
LACKS_S = 3.0


class Evaluator(Service):
    """Waits for `CheckpointSaved`, evaluates, marks the best, says `Evaluated`."""

    role = "evaluator"

    def __init__(self, name: str, resolved: Any, paths: RunPaths, registry: Link, access: Access) -> None:
        super().__init__(name)
        self._access = access
        self.resolved, self.paths, self._link = resolved, paths, registry
        self._membership = self.member = Member(
            registry, self.role, name, stats=self.stats, state=lambda: self.state
        )
        #: Since when the evaluation that is going on lacks rows.
        self._lacks_since: float | None = None
        self._pending: CheckpointSaved | None = None
        self._current: tuple[CheckpointSaved, Running] | None = None
        self._results = LineFile(paths.evaluations)
        self._last_path = ""

    def start(self, poller: Poller) -> None:
        super().start(poller)
        poller.add(self._link)
        self.state = "run"

    def poll(self) -> bool:
        self._results.flush()
        for envelope in self._membership.poll():
            message = envelope.message
            if isinstance(message, CheckpointSaved) and message.path != self._last_path:
                self._pending = message
        if self._current is not None:
            return self._advance(*self._current)
        if self._pending is None:
            return False
        saved, self._pending = self._pending, None
        self._begin(saved)
        return True

    def wake_in_s(self) -> float:
        if self._current is None:
            return 0.1
        return min(service.wake_in_s() for service in self._current[1].services)

    def drain(self) -> None:
        self.state = "stopped"

    def stop(self) -> None:
        self._end()
        self._results.close()
        self._membership.leave("stopped")
        self._link.close()

    def stats(self) -> dict[str, Any]:
        """Numbers of the heartbeat: rows that an evaluation has lacked for longer than peers take to dial."""
        numbers = self._current[1].awaited() if self._current is not None else {}
        if not numbers.get("rows_missing"):
            self._lacks_since = None
            return {}
        now = time.monotonic()
        self._lacks_since = now if self._lacks_since is None else self._lacks_since
        return numbers | {"refused": self._access.refusals()} if now - self._lacks_since > LACKS_S else {}

    def _begin(self, saved: CheckpointSaved) -> None:
        self._last_path = saved.path
        self._membership.stage("build evaluation", BUILD_S)
        config = self.resolved.recipe.eval
        settings = Settings(config.episodes, config.num_envs, config.seed, config.mode, config.listen)
        try:
            running = Running(Path(saved.path), self.resolved, settings, self._access)
        except CheckpointError as error:
            if saved.final:
                raise
            # Retention was faster; a newer one is on its way.
            self._membership.failure = str(error)
        else:
            self._current = (saved, running)
            for service in running.services:
                service.start(self.poller)
        self._membership.stage("evaluate" if self._current else "wait")

    def _advance(self, saved: CheckpointSaved, running: Running) -> bool:
        busy = False
        for service in running.services:
            busy |= service.poll()
        if not running.done:
            return busy
        evaluation, wanted = self._result(saved, running), self.resolved.recipe.stop_when.eval_return
        enough = evaluation is not None and wanted is not None and evaluation.mean_return >= wanted
        if not (saved.final or enough):
            running.expect_another()
        self._end()
        if evaluation is not None:
            self._report(saved, evaluation)
        return True

    def _result(self, saved: CheckpointSaved, running: Running) -> Evaluation | None:
        """What the evaluation came to; None if the environment finished no episode and others follow."""
        try:
            return running.result()
        except PeerLost as error:
            if saved.final:
                raise
            self._membership.failure = str(error)
            return None

    def _end(self) -> None:
        if self._current is not None:
            for service in reversed(self._current[1].services):
                service.stop()
            self._current = None
            self._membership.stage("wait")

    def _report(self, saved: CheckpointSaved, evaluation: Evaluation) -> None:
        result = evaluation.to_data()
        folder = CheckpointFolder(self.paths.checkpoints, self.resolved.recipe.checkpoint.keep)
        folder.mark_best(Path(saved.path), evaluation.mean_return)
        self._results.put(result)
        self._membership.send(
            Evaluated(path=saved.path, version=saved.version, env_steps=saved.env_steps, result=result)
        )
