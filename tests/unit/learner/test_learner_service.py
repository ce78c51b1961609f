"""The learner as a service, against the real broker over real sockets; only the actor is scripted."""

from __future__ import annotations

import json
import time
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from learner_kit import SPEC, Regression, make_layout

from rollbus_broker.broker import Broker
from rollbus_core.checkpoints import listed, load_policy_tensors
from rollbus_core.config.models import (
    BrokerConfig,
    CheckpointConfig,
    DeployConfig,
    EvalConfig,
    LearnerConfig,
    RunConfig,
    StopConfig,
)
from rollbus_core.member import Member
from rollbus_core.metrics import summary
from rollbus_core.paths import RunPaths
from rollbus_core.requests import Requests
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version
from rollbus_core.weights.base import from_image
from rollbus_core.weights.shm import WeightReader, WeightWriter
from rollbus_learner.learner import Learner
from rollbus_learner.loop import NonFiniteLoss
from rollbus_wire.errors import CheckpointError, Diverged
from rollbus_wire.messages import (
    CheckpointSaved,
    Commit,
    Committed,
    Evaluated,
    Notice,
    Ticket,
    TicketRequest,
)
from rollbus_wire.polling import Poller
from rollbus_wire.spec import EnvSpec
from rollbus_wire.zmq_link import ZmqLink

LAYOUT = make_layout(4, 2, shape=(2,), finals=8)


class ScriptedActor:
    """Writes chunks of two rows x four decisions with the newest version it was told of."""

    def __init__(self, paths):
        self.member = Member(ZmqLink.connect(paths.registry, paths.run_id, "scripted"), "actor", "actor-0")
        store = ZmqLink.connect(paths.store_endpoint, paths.run_id, "scripted")
        self.requests, self.slabs = Requests(store), SlabFolder(paths.runtime)
        self.notices, self.committed, self.draw, self.step = [], [], np.random.default_rng(0), 0
        self.waiting, self.ticket = False, None

    def poll(self):
        for envelope in self.member.poll():
            if isinstance(envelope.message, Notice):
                self.notices.append(envelope.message)
        self.requests.poll()
        if self.notices and not self.waiting:
            self.waiting = True
            self.requests.ask(TicketRequest("train", "hub-0/0", 2, 4, LAYOUT.to_data()), self.take)
        if self.ticket and Version.of(self.notices[-1].version) >= Version.of(self.ticket.min_version):
            self.write(self.ticket)

    def take(self, ticket):
        """The notice of the version that it needs comes another way, and may come later."""
        assert isinstance(ticket, Ticket), ticket
        self.ticket = ticket

    def write(self, ticket):
        self.ticket = None
        buffer = self.slabs.open(ticket.slab, ticket.slab_bytes)
        cell, version = LAYOUT.views(buffer, ticket.offset), Version.of(self.notices[-1].version)
        for column in cell.values():
            column[...] = 0
        cell["obs/x"][...] = self.draw.normal(size=(5, 2, 2))
        cell["reward"][..., 0] = cell["obs/x"][:-1, :, 0] - cell["obs/x"][:-1, :, 1]
        cell["num_steps"][...] = 1
        cell["version"][...] = version.pack()
        cell["final_slot"][...] = -1
        cell["step"][...] = self.step + np.arange(4)[:, None]
        cell["episode"][...] = np.arange(2)
        cell["truncated"][3, 0], cell["final_slot"][3, 0] = True, 0
        cell["final_return"][0], cell["final_length"][0] = self.step, 4
        cell["lengths"][...] = 4
        self.step += 4
        data = memoryview(buffer)[ticket.offset + 64 : ticket.offset + LAYOUT.cell_bytes]
        commit = Commit(
            ticket.ticket, np.full(2, 4, np.int32), 1, zlib.crc32(data), list(version), list(version),
            [0, self.step],
        )  # fmt: skip
        self.requests.ask(commit, self.done)

    def done(self, message):
        assert isinstance(message, Committed)
        self.committed.append(message.sequence)
        self.waiting = False

    def close(self):
        self.member.link.close()
        self.requests.link.close()


def recipe(**sections):
    sections.setdefault("run", RunConfig(total_steps=80, audit=True))
    sections.setdefault("eval", EvalConfig(episodes=2))
    sections.setdefault("stop_when", StopConfig())
    return SimpleNamespace(
        learner=LearnerConfig(device="cpu", gap_limit=sections.pop("gap_limit", 0.0)),
        checkpoint=CheckpointConfig(keep=2, every_steps=sections.pop("save_every", 0)),
        broker=BrokerConfig(), deploy=DeployConfig(), **sections,
    )  # fmt: skip


class World:
    """Broker, scripted actor and launcher; learners come and go."""

    def __init__(self, run_dir):
        self.paths, self.poller = RunPaths(run_dir), Poller()
        self.paths.create()
        self.paths.config.write_text("run: {}\n")
        config = BrokerConfig(http="", heartbeat_s=0.05)
        self.broker = Broker(self.paths, config)
        self.broker.start(self.poller)
        self.actor = ScriptedActor(self.paths)
        self.launcher = Member(ZmqLink.connect(self.paths.registry, self.paths.run_id), "launcher", "l")
        self.heard = []

    def learner(self, algorithm=None, **sections):
        algorithm = algorithm or Regression()
        paths, run_id = self.paths, self.paths.run_id
        registry, store = (
            ZmqLink.connect(paths.registry, run_id),
            ZmqLink.connect(paths.store_endpoint, run_id),
        )
        learner = Learner(
            "learner-0", algorithm, {"train": algorithm.feed}, recipe(**sections), paths,
            registry=registry, store=store, weights=WeightWriter(paths.weights("policy"), 1 << 12),
        )  # fmt: skip
        learner.start(self.poller)
        return learner

    def turn(self, learner, until, *, acting=True, limit_s=20.0):
        deadline = time.monotonic() + limit_s
        while not until():
            busy = self.broker.poll()
            if acting:
                self.actor.poll()
            self.heard += [envelope.message for envelope in self.launcher.poll()]
            busy |= learner.poll()
            assert time.monotonic() < deadline, (learner.state, learner.stats())
            if not busy:
                self.poller.wait(0.002)

    def finish(self, learner):
        self.turn(learner, lambda: learner.finished)
        learner.stop()
        self.turn(SimpleNamespace(poll=bool, state="", stats=dict), Elapsed(0.2))

    def close(self):
        self.actor.close()
        self.launcher.link.close()
        self.broker.stop()


class Elapsed:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def __call__(self):
        return time.monotonic() > self.end


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "rt"))
    world = World(tmp_path / "run")
    yield world
    world.close()


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_whole_run(world):
    learner = world.learner(save_every=30)
    world.turn(learner, lambda: world.actor.notices)
    # The version it starts from is there before any data: nothing was asked of the table yet.
    assert world.actor.notices[0].version == [0, 0] and not world.actor.committed
    image = WeightReader(world.paths.weights("policy")).read(world.actor.notices[0])
    assert set(from_image(image)) == {"layer.weight", "layer.bias", "mean", "num"}
    world.finish(learner)

    lines = rows(world.paths.metrics)
    assert [line["update"] for line in lines] == list(range(1, 11))
    assert [line["env_steps"] for line in lines] == list(range(8, 81, 8))
    assert all(line["samples"] == 8 and line["lag_max"] <= 1 and line["episodes"] == 1 for line in lines)
    assert lines[-1]["fit"] < lines[0]["fit"] and lines[2]["return_mean"] == 8.0
    assert summary(lines)["updates"] == 10
    # Saved at 32, 64 and at the end; two are kept.
    assert [p.name for p in listed(world.paths.checkpoints)] == ["000000000064-0.8", "000000000080-0.10"]
    saved = [m for m in world.heard if isinstance(m, CheckpointSaved)]
    assert [(m.final, m.env_steps, m.version) for m in saved] == [(True, 80, [0, 10])]
    tensors, manifest = load_policy_tensors(saved[0].path)
    assert (
        manifest["applied"] == {"train": 10}
        and EnvSpec.from_data(manifest["spec"]) == SPEC
        and tensors["num"] == 80
    )
    applied = rows(world.paths.audit / "applied.jsonl")
    assert [line["sequence"] for line in applied] == sorted({line["sequence"] for line in applied})
    runs = [line["rows"] for line in applied]
    assert [r[0] for r in runs] == [[[0, 4 * n, 4]] for n in range(10)]
    assert [line["truncated"] for line in applied] == [[[3, 0]]] * 10
    assert (world.paths.checkpoints / "last" / "config.yaml").exists()


def test_resume_goes_on_in_a_new_lineage(world):
    learner = world.learner(save_every=30)
    world.turn(learner, lambda: learner.trainer.counters.updates >= 6)
    learner.stop()  # as if it had died: no drain, the last checkpoint is that of update 4
    algorithm = Regression()
    second = world.learner(algorithm, run=RunConfig(total_steps=80, audit=True, resume="must"))
    counters = second.trainer.counters
    assert (counters.version, counters.env_steps, counters.applied) == ((1, 4), 32, {"train": 4})
    assert algorithm.policy.num == 32 and algorithm.running > 1.0
    world.finish(second)
    versions = [tuple(line["version"]) for line in rows(world.paths.audit / "applied.jsonl")]
    assert versions[:6] == [(0, n) for n in range(1, 7)] and versions[6:] == [(1, n) for n in range(5, 11)]
    # Nothing that the surviving line applied comes twice: (0, 1..4), then lineage 1.
    steps = [line["rows"][0][0][1] for line in rows(world.paths.audit / "applied.jsonl")]
    surviving = steps[:4] + steps[6:]
    assert len(set(surviving)) == len(surviving)
    assert summary(rows(world.paths.metrics))["env_steps"] == 80


def test_without_a_checkpoint_a_restart_still_gets_a_new_lineage(world):
    for lineage in range(2):
        learner = world.learner()
        assert learner.trainer.counters.version == (lineage, 0)
        learner.stop()
    with pytest.raises(CheckpointError, match="run.resume is must"):
        world.learner(run=RunConfig(resume="must"))


def test_a_drain_saves_but_asks_for_no_evaluation(world):
    learner = world.learner()
    world.turn(learner, lambda: learner.trainer.counters.updates >= 2)
    learner.drain()
    assert learner.finished and learner.member is not None
    learner.stop()
    assert len(listed(world.paths.checkpoints)) == 1
    world.turn(SimpleNamespace(poll=bool, state="", stats=dict), Elapsed(0.2))
    assert not [m for m in world.heard if isinstance(m, CheckpointSaved)]


def test_an_evaluation_that_is_good_enough_ends_training(world):
    learner = world.learner(
        run=RunConfig(total_steps=10**6), eval=EvalConfig(every_steps=16, episodes=2),
        stop_when=StopConfig(eval_return=9.0),
    )  # fmt: skip

    def saved():
        return [m for m in world.heard if isinstance(m, CheckpointSaved)]

    def evaluate(message, score, episodes=2):
        result = {"mean_return": score, "episodes": [{}] * episodes}
        world.launcher.send(Evaluated(message.path, message.version, message.env_steps, result))

    world.turn(learner, lambda: len(saved()) >= 1)
    first = saved()[0]
    assert first.env_steps == 16 and not first.final
    evaluate(first, 3.0)
    newer = saved()[-1]
    world.turn(learner, lambda: saved()[-1] is not newer)
    evaluate(saved()[-1], 10.0, episodes=1)  # too few episodes to count
    world.turn(learner, Elapsed(0.3))
    assert not learner.finished
    evaluate(saved()[-1], 9.5)
    world.finish(learner)
    assert not saved()[-1].final, "what was good enough is not evaluated again"
    assert learner.trainer.counters.env_steps < 10**6


def test_evaluation_waits_for_the_training_return(world):
    learner = world.learner(run=RunConfig(total_steps=80), eval=EvalConfig(every_steps=8, start_return=10.0))
    world.finish(learner)
    # Returns are 0, 4, 8, ...; their mean reaches 10 at the sixth update.
    saved = [m for m in world.heard if isinstance(m, CheckpointSaved)]
    assert [m.updates for m in saved if not m.final] == [6, 7, 8, 9, 10]


def test_a_loss_that_is_not_finite_ends_it_with_the_minibatch(world):
    learner = world.learner(Regression(breaks_at=2))
    with pytest.raises(NonFiniteLoss, match="'also'"):
        world.turn(learner, lambda: False)
    learner.stop()
    assert (world.paths.root / "not-finite-2.safetensors").exists()
    assert listed(world.paths.checkpoints) == [] and len(rows(world.paths.metrics)) == 2


def test_a_gap_beyond_the_limit_ends_it(world):
    algorithm = Regression()
    algorithm.label = lambda batch, roles, progress: {"log_prob_gap": 0.1 * progress.updates}
    learner = world.learner(algorithm, gap_limit=0.25)
    with pytest.raises(Diverged, match="gap_limit"):
        world.turn(learner, lambda: False)
    learner.stop()
    assert [line["log_prob_gap"] for line in rows(world.paths.metrics)][-1] == pytest.approx(0.3)


def test_a_publish_without_a_free_buffer_is_made_up_for(world):
    learner = world.learner(run=RunConfig(total_steps=10**6))
    publish, refuse = learner.weights.publish, [3]

    def sometimes(version, image):
        if learner.trainer.counters.updates == 2 and refuse[0]:
            refuse[0] -= 1
            return None
        return publish(version, image)

    learner.weights.publish = sometimes
    # The newest wins: 2 may have been overtaken by 3.
    world.turn(learner, lambda: world.actor.notices and world.actor.notices[-1].version[1] >= 3)
    learner.drain()
    learner.stop()
    assert refuse == [0]
