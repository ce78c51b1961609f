"""The launcher's watch over a run: what it does when words are lost."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rollbus_broker.broker import Broker
from rollbus_core import service
from rollbus_core.checkpoint_folder import CheckpointFolder
from rollbus_core.config.load import load
from rollbus_core.config.models import BrokerConfig
from rollbus_core.member import Member
from rollbus_core.paths import RunPaths
from rollbus_launch import session
from rollbus_launch.session import Session
from rollbus_wire.messages import CheckpointSaved, Evaluated
from rollbus_wire.zmq_link import ZmqLink


class Display:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []

    def finished(self, env_steps: int, updates: int) -> None:
        self.done = env_steps, updates

    def evaluated(self, result: dict[str, Any]) -> None:
        self.results.append(result)


def test_a_final_checkpoint_that_nobody_heard_of_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner announced it while the broker was away and is gone: the launcher announces it anew."""
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(session, "ANNOUNCED_S", 0.2)
    monkeypatch.setattr(session.LocalLauncher, "up", lambda *_: None)  # the evaluator is the one below
    recipe = tmp_path / "r.yaml"
    recipe.write_text("env: {name: toy, num_envs: 8}\n")
    paths = RunPaths(tmp_path / "run")
    paths.create()
    manifest = {"env_steps": 640, "version": [0, 5], "updates": 5}
    saved = CheckpointFolder(paths.checkpoints, keep=2).write(manifest, {})
    display, done = Display(), threading.Event()
    with paths.alive():
        broker = Broker(paths, BrokerConfig(heartbeat_s=0.1, lost_after_s=5.0))
        serving = threading.Thread(target=service.run, args=([broker],), kwargs={"should_stop": done.is_set})
        serving.start()
        evaluator = Member(ZmqLink.connect(paths.registry, paths.run_id), "evaluator", "evaluator-0")
        watch = Session(load(recipe, []), paths, display)
        began = time.monotonic()
        try:
            while not watch._over():
                assert time.monotonic() - began < 30.0
                for envelope in watch.member.poll():
                    watch._handle(envelope)
                for envelope in evaluator.poll():
                    message = envelope.message
                    if isinstance(message, CheckpointSaved):
                        assert message == CheckpointSaved(str(saved), [0, 5], 640, 5, final=True)
                        result = {"checkpoint": message.path, "mean_return": 1.5}
                        evaluator.send(Evaluated(message.path, message.version, 640, result))
                time.sleep(0.01)
        finally:
            watch.link.close()
            evaluator.link.close()
            if watch.nursery:
                watch.nursery.close()
            done.set()
            serving.join()
    assert [r["mean_return"] for r in display.results] == [1.5] and display.done == (640, 5)
    assert time.monotonic() - began > 0.2
