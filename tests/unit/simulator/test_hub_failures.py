"""An environment that fails is seen, and one that never finishes an episode ends the hub."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hub_kit import Actor, Log, Script

from rollbus_core.config.models import EnvConfig
from rollbus_simulator.episodes import EpisodeList, EpisodeSource, TrainingEpisodes
from rollbus_simulator.failures import MAX_KINDS, FailureLog, max_failed_episodes, where
from rollbus_simulator.hub import Hub
from rollbus_wire.env import Rows, StepResult
from rollbus_wire.errors import RollbusError
from rollbus_wire.link import local_pair
from rollbus_wire.messages import Goodbye
from rollbus_wire.peer import Peer
from rollbus_wire.polling import Poller
from rollbus_wire.zmq_link import ZmqLink

ROWS = 2


class Flawed(Script):
    """Fails at step 3 of each row's every ``period``-th episode, in the way ``flaw`` says."""

    def __init__(self, flaw: str, period: int = 1, length: int = 5) -> None:
        super().__init__(ROWS, length=lambda seed: length)
        self.flaw, self.period = flaw, period

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        result = super().step(rows, actions, observe)
        bad = (self.steps[rows] == 3) & (self.begun[rows] % self.period == 0)
        if not bad.any():
            return result
        assert result.obs is not None
        if self.flaw == "raise":
            raise RuntimeError("joint 3 exploded")
        if self.flaw == "shape":
            return StepResult(
                {"obs": np.zeros((len(rows), 3), np.float32)},
                result.reward,
                result.terminated,
                result.truncated,
            )
        if self.flaw == "nan":
            result.obs["obs"][bad, 1] = np.nan
        else:
            result.reward[bad] = np.inf
        return result


class Rig:
    """A hub, a real `Peer` that dialled in over a socket, and an actor."""

    def __init__(self, folder: Path, env: Script, episodes: EpisodeSource | None = None) -> None:
        mine, theirs = local_pair()
        link = ZmqLink.bind(f"ipc://{folder}/peers")
        self.log = Log()
        self.hub = Hub(
            "hub-0", 0, EnvConfig(placement="dial_in"), num_rows=ROWS, num_slices=1,
            episodes=episodes or TrainingEpisodes(1), data_links=[mine], peer_link=link, log=self.log,
        )  # fmt: skip
        self.hub.start(Poller())
        self.endpoint, self.env = link.endpoint, env
        self.actor = Actor(theirs)
        self.actor.attach("hub-0/0")
        self.dial()

    def dial(self) -> None:
        self.link = ZmqLink.connect(self.endpoint)
        self.peer = Peer(self.env, self.link, "arm")
        self.peer.dial()

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.hub.poll()
            self.peer.poll()
            for tick in self.actor.ticks():
                self.actor.act(tick)

    def turn_for(self, seconds: float) -> None:
        """Turns count nothing on a busy machine: the sockets' own threads need their share of time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.turn()

    def failures(self) -> list[dict[str, Any]]:
        return [fields for event, fields in self.log.lines if event == "environment failed"]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Any]:
    made: list[Rig] = []

    def make(env: Script, episodes: EpisodeSource | None = None) -> Rig:
        made.append(Rig(tmp_path, env, episodes))
        return made[-1]

    yield make
    for each in made:
        each.hub.stop()
        each.link.close()


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("raise", ["joint 3 exploded"]),
        ("shape", ["observation 'obs'", "[2, 3]", "[2, 2]"]),
        ("nan", ["observation 'obs' at [1] is nan"]),
        ("reward", ["reward is inf"]),
    ],
)
def test_an_environment_that_fails_in_every_episode_ends_the_hub(
    rig: Any, flaw: str, words: list[str]
) -> None:
    run = rig(Flawed(flaw))
    with pytest.raises(RollbusError) as raised:
        run.turn_for(60)
    words = [*words, "arm", "row", "env step 3", "rollbus_wire.check"]
    assert all(word in run.hub._peers.failure for word in words)
    for word in ["hub hub-0", "failed in 50 episodes", "The limit is 50", *words]:
        assert word in str(raised.value)
    assert run.hub.counters.episodes == 0 and run.hub.counters.interrupted == 50
    assert len(run.failures()) == 1 and words[0] in run.failures()[0]["text"]


@pytest.mark.parametrize("flaw", ["raise", "nan", "shape"])
def test_an_environment_that_fails_every_third_episode_goes_on(rig: Any, flaw: str) -> None:
    run = rig(Flawed(flaw, period=3))
    while run.hub.counters.interrupted < 60:
        run.turn()
    assert run.hub.counters.episodes >= 100 and run.hub.counters.failed_in_a_row <= 2


def test_a_peer_that_is_lost_again_and_again_is_no_failure_of_the_environment(rig: Any) -> None:
    run = rig(Script(ROWS, length=lambda seed: 10**6))
    while run.hub.counters.interrupted < 60:
        steps = run.hub.counters.steps
        while run.hub.counters.steps < steps + 2 * ROWS:
            run.turn()
        run.link.send(Goodbye("killed"))
        while run.hub._peers.sessions:
            run.hub.poll()
        run.link.close()
        run.dial()
    assert run.hub.counters.failed_in_a_row == 0 and not run.failures()


def test_a_list_of_episodes_counts_its_own_losses(rig: Any) -> None:
    listed = EpisodeList(3, 30)
    run = rig(Flawed("nan"), listed)
    while not listed.done:
        run.turn()
    assert [r["lost"] for r in listed.results] == [True] * 30
    assert run.hub.counters.failed_in_a_row == 90


def test_the_last_peer_that_is_given_up_ends_the_hub(rig: Any) -> None:
    class Broken(Script):
        def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Any) -> dict[str, np.ndarray]:
            raise RuntimeError("no renderer")

    run = rig(Broken(ROWS))
    with pytest.raises(RollbusError, match=r"5 failures in a row.*no renderer.*rows \[0, 1\], reset"):
        run.turn(20_000)


def test_an_observation_of_another_shape_is_one_line_that_names_the_method(rig: Any) -> None:
    class Wrong(Exploding):
        def reset(self, *, seed: int, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            return np.zeros(5, np.float32), {}

    run = rig(Rows([Wrong(9), Wrong(9)]))
    with pytest.raises(RollbusError, match=r"'obs' has shape \[5\], its space says \[2\]") as raised:
        run.turn(20_000)
    place = f"from reset() of {__file__}:{Wrong.reset.__code__.co_firstlineno} (rows [0, 1], reset)"
    assert place in str(raised.value) and "\n" not in str(raised.value)
    assert "Traceback" in run.failures()[0]["traceback"]  # the log has it all


def test_a_batch_with_a_good_row_is_no_failure_of_the_whole(rig: Any) -> None:
    class Half(Script):
        def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
            result = super().step(rows, actions, observe)
            result.reward[rows == 1] = np.nan
            return result

    run = rig(Half(ROWS, length=lambda seed: 5))
    while run.hub.counters.non_finite < 60:
        run.turn()
    assert run.hub.counters.episodes >= 11 and len(run.hub._peers.sessions) == 1
    assert "reward is nan (row 1, env step 1 of the episode)" in run.hub._peers.failure


class Exploding:
    """Of one row: raises at every ``period``-th step of all its life."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, period: int) -> None:
        self.period, self.steps, self.life = period, 0, 0

    def reset(self, *, seed: int, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps, self.life = self.steps + 1, self.life + 1
        if self.period and self.life % self.period == 0:
            raise RuntimeError("joint 3 exploded")
        return np.zeros(2, np.float32), 1.0, self.steps >= 5, False, {}


def test_a_row_that_raises_interrupts_no_other(rig: Any) -> None:
    run = rig(Rows([Exploding(0), Exploding(3)]))
    while run.hub.counters.interrupted < 60:
        run.turn()
    # Row 0 loses nothing: an episode per 5 steps, where row 1 fails every third step and is reset.
    assert run.hub.counters.episodes >= 60 * 3 // 5 - 1 and run.hub.counters.failed_in_a_row <= 2
    assert run.hub.counters.non_finite == 0 and len(run.hub._peers.sessions) == 1
    told = run.hub._peers.failure
    assert "row 1 failed in step: RuntimeError: joint 3 exploded, in step() of" in told
    assert "(row 1, env step 3 of the episode)" in told
    assert "rollbus_wire" not in told.partition("Traceback")[2] and "test_hub_failures.py" in told
    assert "rollbus_wire/env.py" in run.failures()[0]["traceback"], "the log has all of it"


def test_the_bound_follows_the_rows() -> None:
    assert [max_failed_episodes(n) for n in (1, 10, 11, 64)] == [50, 50, 55, 320]


def test_where_names_rows_and_steps() -> None:
    assert where("step", np.array([7]), np.array([9])) == "row 7, env step 10 of the episode"
    assert (
        where("observe", np.array([1, 2]), np.array([4, 6])) == "rows [1, 2], env step 4 to 6 of the episode"
    )
    assert where("reset", np.arange(6), np.zeros(6)) == "rows [0, 1, 2, 3] and 2 more, reset"


def test_the_same_failure_is_logged_again_with_its_count() -> None:
    now, log = [0.0], Log()
    failures = FailureLog(log, lambda: now[0])
    assert failures.add("row 1 is nan", text="a")
    assert not any(failures.add(f"row {row} is nan", text="b") for row in range(4))
    assert failures.add("another", text="c")
    now[0] = 29.9
    assert not failures.add("row 5 is nan", text="d")
    now[0] = 30.0
    assert failures.add("row 6 is nan", text="e")
    assert log.lines == [
        ("environment failed", {"text": "a"}),
        ("environment failed", {"text": "c"}),
        ("environment failed", {"text": "e", "times": 6}),
    ]


def test_only_so_many_kinds_of_failures_are_remembered() -> None:
    failures = FailureLog(Log(), lambda: 0.0)
    for index in range(3 * MAX_KINDS):
        assert failures.add("x" * index)
    assert len(failures._kinds) == MAX_KINDS
