"""A registry that tests of the actor hold in their hands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from actor_kit import Rig, ScriptedHub, feed

from rollbus_core.weights.base import to_image
from rollbus_core.weights.shm import WeightWriter
from rollbus_wire.link import local_pair
from rollbus_wire.messages import Assign, Message, Notice, Register, Registered
from rollbus_wire.polling import drain


class ScriptedRegistry:
    """Answers `register` and keeps what else was said."""

    def __init__(self, notices: list[Any] | None = None) -> None:
        self.link, self.actor_end = local_pair(senders=("registry", "actor"))
        self.heard: list[Message] = []
        self.notices = notices or []

    def poll(self) -> bool:
        """Always true, so that a condition can begin with it."""
        for envelope in drain(self.link):
            self.heard.append(envelope.message)
            if isinstance(envelope.message, Register):
                self.link.send(Registered(1, 0, 0.0, 3.0, notices=self.notices))
        return True

    def all(self, kind: type) -> list[Any]:
        self.poll()
        return [message for message in self.heard if isinstance(message, kind)]


def publish(writer: WeightWriter, version: tuple[int, int]) -> Notice:
    notice = writer.publish(version, to_image({"w": np.zeros(1, np.float32)}))
    assert notice is not None
    return notice


def start_with_registry(tmp_path: Path, hub: ScriptedHub, **options: Any) -> tuple[Rig, ScriptedRegistry]:
    registry = ScriptedRegistry()
    rig = Rig(tmp_path, [hub], feed=feed(16), registry=registry.actor_end, **options)
    rig.run(lambda: registry.poll() and rig.actor.member.registered)
    registry.link.send(Assign(hub.name, hub.name, [1, 1]))
    return rig, registry


def stop_in_the_sixth_step(rig: Rig, hub: ScriptedHub) -> None:
    """Five steps are done; the actions of the sixth were sent and have no outcome yet."""
    rig.run(lambda: len(hub.acts) == 5)
    hub.paused = True
    rig.run(lambda: len(hub.acts) == 6)
