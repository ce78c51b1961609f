"""A source fills tables of a real broker, each decision once, also when it is replaced midway."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
from datasets_kit import SPEC, episode, write

from rollbus_broker.broker import Broker
from rollbus_broker.sources.cells import data_layout, returns_to_go, segments
from rollbus_broker.sources.source import Source
from rollbus_core.config.models import BrokerConfig, DataConfig, DataSource
from rollbus_core.datasets.parts import parts, sized
from rollbus_core.feed import Feed, TableConfig
from rollbus_core.log import get_logger
from rollbus_core.paths import RunPaths
from rollbus_core.slabs import SlabFolder
from rollbus_learner.gather import SlabReader
from rollbus_wire.errors import ConfigError
from rollbus_wire.messages import Batch, OpenTable, Sample, TableState
from rollbus_wire.polling import Poller, drain
from rollbus_wire.zmq_link import ZmqLink

LENGTHS = (9, 1, 4, 6)
STEPS = sum(LENGTHS)


def feed(**changes: Any) -> Feed:
    table = TableConfig(sampler="replay", **changes)
    return Feed(table=table, num_decisions=4, unit="step", num_batches=1, batch_size=2000)


class World:
    """A broker, a data set and links of a learner, turned by hand."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder / "run")
        self.poller = Poller()
        self.broker = Broker(self.paths, BrokerConfig(http="", heartbeat_s=0.1))
        self.broker.start(self.poller)
        self.store = self.link(self.paths.store_endpoint)
        self.episodes = [episode(n, n, ends="terminated" if n == 4 else "truncated") for n in LENGTHS]
        write(folder / "d", self.episodes)
        self.config = DataConfig(sources=[DataSource(path=str(folder / "d"))])
        self.sources: list[Source] = []
        self.links: list[ZmqLink] = []

    def link(self, endpoint: str) -> ZmqLink:
        return ZmqLink.connect(endpoint, self.paths.run_id)

    def source(self, feeds: dict[str, Feed], stack: int = 1) -> Source:
        made = Source(
            "source-0", SPEC, parts(self.config, feeds), feeds, frame_stack=stack,
            registry=self.link(self.paths.registry), store=self.link(self.paths.store_endpoint),
            slabs=SlabFolder(self.paths.runtime), log=get_logger(self.paths, "source-0"),
        )  # fmt: skip
        made.start(self.poller)
        self.sources.append(made)
        return made

    def ask(self, message: Any) -> Any:
        number = self.store.send(message)
        for _ in range(5000):
            self.broker.poll()
            for envelope in drain(self.store):
                if envelope.re == number:
                    return envelope.message
            self.poller.wait(0.001)
        raise AssertionError(f"no answer to {message}")

    def turn(self, source: Source, until: Any) -> None:
        for _ in range(20000):
            self.broker.poll()
            source.poll()
            if until():
                return
            self.poller.wait(0.0005)
        raise AssertionError("it did not come to that")

    def draw(self, table: str) -> dict[str, np.ndarray]:
        """2000 steps: with 20 in the table every one of them comes."""
        batch = self.ask(Sample(table, 1, 2000, 7))
        assert isinstance(batch, Batch)
        read = SlabReader(SlabFolder(self.paths.runtime)).read(batch)
        return {name: column.numpy().copy() for name, column in read.items()}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path))
    made = World(tmp_path)
    yield made
    for service in (*made.sources, made.broker):
        service.stop()
    made.store.close()


def assert_all_there(world: World, drawn: dict[str, np.ndarray]) -> None:
    """Every decision of every episode with what came before and after it."""
    index, step = drawn["episode"] & 0xFFFF, drawn["step"]
    assert {(int(i), int(t)) for i, t in zip(index, step)} == {
        (i, t) for i, n in enumerate(LENGTHS) for t in range(n)
    }
    for place, (i, t) in enumerate(zip(index, step)):
        source = world.episodes[i]
        last = t == len(source) - 1
        for key in SPEC.observation:
            after = source.final_obs[key] if last else source.obs[key][t + 1]
            assert (drawn[f"obs/{key}"][place] == source.obs[key][t]).all()
            assert (drawn[f"next_obs/{key}"][place] == after).all()
        assert (drawn["env_action"][place] == source.action[t]).all()
        assert drawn["reward"][place, 0] == source.reward[t] and drawn["source"][place] == 2
        assert drawn["terminated"][place] == (last and source.terminated)
        assert drawn["truncated"][place] == (last and source.truncated)
        assert drawn["valid"][place] and drawn["num_steps"][place] == 1


def test_a_table_gets_every_decision_once(world: World) -> None:
    feeds = sized(world.config, {"demos": feed()})
    source = world.source(feeds)
    opened = world.ask(OpenTable("demos", feeds["demos"].table.model_dump(), [0, 0]))
    assert isinstance(opened, TableState)
    world.turn(source, lambda: source.finished)
    (row,) = world.broker.store.tables()
    assert row["steps"] == row["total_steps"] == STEPS
    assert row["chunks"] == sum(-(-n // 4) for n in LENGTHS)
    assert_all_there(world, world.draw("demos"))


def test_a_source_that_is_replaced_goes_on(world: World) -> None:
    feeds = sized(world.config, {"demos": feed()})
    world.ask(OpenTable("demos", feeds["demos"].table.model_dump(), [0, 0]))
    first = world.source(feeds)
    world.turn(first, lambda: first.num_steps >= 8)
    second = world.source(feeds)
    world.turn(second, lambda: second.finished)
    assert second.num_steps < STEPS
    (row,) = world.broker.store.tables()
    assert row["steps"] == row["total_steps"] == STEPS
    assert_all_there(world, world.draw("demos"))


def test_nothing_is_drawn_before_all_is_there(world: World) -> None:
    feeds = sized(world.config, {"demos": feed()})
    world.ask(OpenTable("demos", feeds["demos"].table.model_dump(), [0, 0]))
    source, number = world.source(feeds), world.store.send(Sample("demos", 1, 4, 1))
    world.turn(source, lambda: source.num_steps >= STEPS - 2)
    assert not [e for e in drain(world.store) if e.re == number]
    world.turn(source, lambda: any(e.re == number for e in drain(world.store)))
    assert source.num_steps >= STEPS - 2


def test_two_tables_share_the_episodes(world: World) -> None:
    feeds = {
        "demos": feed().model_copy(update={"part": (0.0, 0.5)}),
        "validation": feed().model_copy(update={"part": (0.5, 1.0)}),
    }
    feeds = sized(world.config, feeds)
    source = world.source(feeds)
    for name, each in feeds.items():
        world.ask(OpenTable(name, each.table.model_dump(), [0, 0]))
    world.turn(source, lambda: source.finished)
    seen = [set((world.draw(name)["episode"] & 0xFFFF).tolist()) for name in feeds]
    assert len(seen[0]) == len(seen[1]) == 2 and not seen[0] & seen[1]


def test_data_that_a_table_cannot_hold(world: World) -> None:
    with pytest.raises(ConfigError, match="takes 0 MiB, the table may have 0 MiB; raise algorithm.max_bytes"):
        world.source({"demos": feed(max_bytes=1000)})


def test_stacked_frames_are_those_of_the_episode() -> None:
    """K = 3: the two frames before decision 4 are 2 and 3; before decision 0 the gather repeats the first."""
    whole = episode(6, 1)
    layout = data_layout(SPEC, 4, 3)
    buffer = np.zeros(layout.cell_bytes, np.uint8)
    first, second = segments(whole, 5, 4)
    second.write(layout, buffer, 0)
    views = layout.views(buffer)
    frames = views["obs/joints"][:, 0]
    assert (frames[:4] == whole.obs["joints"][2:6]).all() and (frames[4] == whole.final_obs["joints"]).all()
    assert views["lengths"].tolist() == [2] and views["step"][:2, 0].tolist() == [4, 5]
    assert views["final_slot"][:, 0].tolist() == [-1, 0, -1, -1] and second.num_finals == 1
    assert views["final_return"][0] == 15.0 and views["final_success_once"][0] == 1
    first.write(layout, buffer, 0)
    assert views["lengths"].tolist() == [4] and views["last_step"].tolist() == [4] and first.num_finals == 0
    assert (frames[2:7] == whole.obs["joints"][:5]).all() and not views["terminated"].any()


def test_decisions_of_several_actions_hold_those_that_follow() -> None:
    """C = 3 of 6 actions: decision 4 holds 4, 5 and 5 again, which the episode does not have."""
    whole = episode(6, 1)
    layout = data_layout(SPEC, 4, 1, chunk=3)
    buffer = np.zeros(layout.cell_bytes, np.uint8)
    first, second = segments(whole, 5, 4)
    first.write(layout, buffer, 0)
    views = layout.views(buffer)
    for t in range(4):
        assert (views["env_action"][t, 0] == whole.action[t : t + 3]).all() and views["action_valid"][
            t, 0
        ].all()
    second.write(layout, buffer, 0)
    assert (views["env_action"][0, 0] == whole.action[[4, 5, 5]]).all()
    assert views["action_valid"][:, 0].tolist() == [
        [True, True, False], [True, False, False], [False] * 3, [False] * 3,
    ]  # fmt: skip


def test_returns_to_go_by_hand():
    """Discounted from each decision to the end, over the borders of segments."""
    assert returns_to_go(np.array([1.0, 2.0, 4.0], np.float32), 0.5).tolist() == [3.0, 4.0, 4.0]
