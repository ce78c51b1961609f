"""Broker, hub, actors and a scripted learner in one loop, over real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rollbus_actor.actor import Actor
from rollbus_actor.engines.torch_local import Engine
from rollbus_broker.broker import Broker
from rollbus_core.columns import HEADER_BYTES, Layout
from rollbus_core.config.models import ActorConfig, BrokerConfig, EnvConfig
from rollbus_core.feed import TRAINING_TABLE, Feed, TableConfig
from rollbus_core.paths import RunPaths
from rollbus_core.slabs import SlabFolder
from rollbus_core.weights.base import to_image
from rollbus_core.weights.digests import digest
from rollbus_core.weights.shm import WeightReader, WeightWriter
from rollbus_envs import toy
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.messages import Batch, Consumed, OpenTable, Sample
from rollbus_wire.polling import Poller, drain
from rollbus_wire.zmq_link import ZmqLink


class ScriptedLearner:
    """Samples, publishes the next version, says what it consumed."""

    def __init__(self, paths: RunPaths, feed: Feed, policy: Any) -> None:
        self.registry = ZmqLink.connect(paths.registry, paths.run_id, "learner")
        self.store = ZmqLink.connect(paths.store_endpoint, paths.run_id, "learner")
        self.writer = WeightWriter(paths.weights("policy"))
        self.slabs, self.policy, self.number = SlabFolder(paths.runtime), policy, 0
        self.batches: list[list[dict[str, Any]]] = []
        self.store.send(OpenTable(TRAINING_TABLE, feed.table.model_dump(), [0, 0]))
        self.publish()
        self.store.send(Sample(TRAINING_TABLE))

    def publish(self) -> None:
        tensors = {name: tensor.numpy() for name, tensor in self.policy.state_dict().items()}
        notice = self.writer.publish((0, self.number), to_image(tensors))
        assert notice is not None
        self.registry.send(notice)

    def poll(self) -> None:
        for envelope in drain(self.registry):
            del envelope
        for envelope in drain(self.store):
            message = envelope.message
            if not isinstance(message, Batch):
                continue
            self.batches.append([self._read(chunk) for chunk in message.chunks])
            self.number += 1
            self.publish()
            self.store.send(Consumed(TRAINING_TABLE, message.sequence, [0, self.number], self.number))
            self.store.send(Sample(TRAINING_TABLE))

    def _read(self, chunk: dict[str, Any]) -> dict[str, Any]:
        layout = Layout.from_data(chunk["layout"])
        cell = self.slabs.open(chunk["slab"], chunk["slab_bytes"])
        start = chunk["offset"]
        body = memoryview(cell)[start + HEADER_BYTES : start + layout.cell_bytes]
        assert digest(body, chunk["digest_kind"]) == chunk["digest"]
        return {"slice": chunk["slice"]} | {k: v.copy() for k, v in layout.views(cell, start).items()}


class System:
    """Broker, hub, actors and a scripted learner in one process, over real sockets."""

    def __init__(
        self, tmp_path: Path, policy: Any, feed: Feed, env: toy.Config, num_actors: int = 1,
        config: ActorConfig | None = None,
    ) -> None:  # fmt: skip
        self.config = config or ActorConfig()
        paths = RunPaths(tmp_path / "run")
        paths.create()
        self.broker = Broker(paths, BrokerConfig(heartbeat_s=0.05, lost_after_s=0.5, http=""))
        self.broker.start(Poller())
        self.learner: ScriptedLearner | None = None
        data = ZmqLink.bind(paths.hub_data(0), paths.run_id)
        self.hub = Hub(
            "hub-0", 0, EnvConfig(num_envs=8, num_slices=2), num_rows=8, num_slices=2,
            episodes=TrainingEpisodes(1, 0), data_links=[data],
            make_env=lambda num_rows: toy.make(env, num_rows),
            registry=ZmqLink.connect(paths.registry, paths.run_id), run_id=paths.run_id,
        )  # fmt: skip
        self.hub.start(Poller())
        self.actors = [self._actor(paths, index, policy, feed) for index in range(num_actors)]
        self.paths, self.feed, self.policy = paths, feed, policy

    def _actor(self, paths: RunPaths, index: int, policy: Any, feed: Feed) -> Actor:
        sender = f"actor-{index}"
        actor = Actor(
            sender, self.config, engine=Engine(policy, "cpu"), policy_spec=policy.spec, feed=feed, seed=1,
            registry=ZmqLink.connect(paths.registry, paths.run_id, sender),
            store=ZmqLink.connect(paths.store_endpoint, paths.run_id, sender),
            slabs=SlabFolder(paths.runtime), weights=WeightReader(paths.weights("policy")),
            connect=lambda endpoint: ZmqLink.connect(endpoint, paths.run_id, sender),
        )  # fmt: skip
        actor.start(Poller())
        return actor

    def turn(self) -> None:
        self.broker.poll()
        if self.learner is None:
            self.learner = ScriptedLearner(self.paths, self.feed, self.policy)
        self.learner.poll()
        self.hub.poll()
        for actor in self.actors:
            actor.poll()

    def run(self, until: Any, turns: int = 40000) -> None:
        for _ in range(turns):
            if until():
                return
            self.turn()
        raise AssertionError([actor.numbers() for actor in self.actors])

    def stop(self) -> None:
        for service in (*self.actors, self.hub, self.broker):
            service.stop()
        if self.learner is not None:
            self.learner.registry.close()
            self.learner.store.close()


def feed_of(batch_steps: int, num_decisions: int, lag: int = 1) -> Feed:
    table = TableConfig(batch_steps=batch_steps, max_lag=lag)
    return Feed(table=table, num_decisions=num_decisions, extras=("log_prob",))


def make(family: Any, env: toy.Config, **settings: Any) -> Any:
    torch.manual_seed(0)
    return family.make(family.Config(**settings), toy.make(env, 1).spec, critic=False, frame_stack=1)
