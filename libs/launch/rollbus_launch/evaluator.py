"""The service that evaluates checkpoints while training goes on; the newest one wins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollbus_core.checkpoint_folder import CheckpointFolder
from rollbus_core.member import Member
from rollbus_core.paths import RunPaths
from rollbus_core.service import Service
from rollbus_launch.evaluate import evaluate
from rollbus_wire.errors import CheckpointError
from rollbus_wire.link import Link, Poller
from rollbus_wire.messages import CheckpointSaved, Evaluated


class Evaluator(Service):
    """Waits for `CheckpointSaved`, evaluates, says `Evaluated` and appends to evaluations.jsonl."""

    role = "evaluator"

    def __init__(
        self, name: str, resolved: Any, paths: RunPaths, registry: Link, should_stop: Callable[[], bool]
    ) -> None:
        super().__init__(name)
        self._should_stop = should_stop
        self.resolved, self.paths, self._link = resolved, paths, registry
        self.member = Member(registry, self.role, name, state=lambda: self.state)
        self._pending: CheckpointSaved | None = None
        self._last_path = ""

    def start(self, poller: Poller) -> None:
        super().start(poller)
        poller.add(self._link)
        self.state = "run"

    def poll(self) -> bool:
        self._receive()
        if self._pending is None:
            return False
        saved, self._pending = self._pending, None
        self._evaluate(saved)
        return True

    def drain(self) -> None:
        self.state = "stopped"

    def stop(self) -> None:
        assert self.member is not None
        self.member.leave("stopped")
        self._link.close()

    def _receive(self) -> None:
        assert self.member is not None
        for envelope in self.member.poll():
            message = envelope.message
            if isinstance(message, CheckpointSaved) and message.path != self._last_path:
                self._pending = message

    def _evaluate(self, saved: CheckpointSaved) -> None:
        assert self.member is not None
        self._last_path = saved.path
        self.member.stage("evaluate")
        try:
            result = self._result(Path(saved.path))
        except CheckpointError as error:  # retention was faster; a newer one is on its way
            self.member.failure = str(error)
            return
        finally:
            self.member.stage("wait")
        CheckpointFolder(self.paths.checkpoints, self.resolved.recipe.checkpoint.keep).mark_best(
            Path(saved.path), result["mean_return"]
        )
        with open(self.paths.evaluations, "a") as lines:
            lines.write(json.dumps(result) + "\n")
        self.member.send(
            Evaluated(path=saved.path, version=saved.version, env_steps=saved.env_steps, result=result)
        )

    def _result(self, path: Path) -> dict[str, Any]:
        config = self.resolved.recipe.eval
        return evaluate(
            path, self.resolved, episodes=config.episodes, num_envs=config.num_envs,
            seed=config.seed, mode=config.mode, listen=config.listen,
            should_stop=lambda: self._should_stop() or self.stop_requested, on_turn=self._receive,
        ).to_data()  # fmt: skip
