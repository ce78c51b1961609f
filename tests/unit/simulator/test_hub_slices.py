"""Episodes, decisions and fences of a slice, through a real hub, peer and environment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hub_kit import Actor, Script, attached, make_hub, play

from rollbus_core.rng import episode_id, episode_seed
from rollbus_simulator.hub import Hub, split
from rollbus_wire.messages import Attached, Detached, Fault, Tick
from rollbus_wire.spec import ActionSpec


def hub_and_tick(make_env: Callable = Script, **settings: object) -> tuple[Hub, Actor, Tick]:
    hub, (actor,) = make_hub(make_env, **settings)  # type: ignore[arg-type]
    attached(hub, actor)
    return hub, actor, next(m for m in actor.got if isinstance(m, Tick))


def test_two_episodes_are_six_transitions() -> None:
    """T2: rewards 0, 0, 1 twice; none joins two episodes; final is not the reset observation."""

    def make(n: int) -> Script:
        return Script(n, reward=lambda step: float(step == 3))

    hub, actor, first = hub_and_tick(make)
    ticks = play(hub, actor, 7)
    assert first.num_steps.tolist() == [0]
    outcomes = ticks[1:]
    assert [float(t.reward[0, 0]) for t in outcomes] == [0, 0, 1, 0, 0, 1]
    assert [bool(t.terminated[0]) for t in outcomes] == [False, False, True] * 2
    assert [t.step.tolist() for t in ticks] == [[0], [1], [2], [0], [1], [2], [0]]
    ids = [episode_id(0, 0, number) for number in range(3)]
    assert [int(t.episode[0]) for t in ticks] == [ids[0]] * 3 + [ids[1]] * 3 + [ids[2]]
    assert ticks[3].seed is not None
    assert int(ticks[3].seed[0]) == episode_seed(1, ids[1], evaluation=False)
    end = ticks[3]
    assert end.final.tolist() == [0] and end.final_obs["obs"].tolist() == [[1, 3]]
    assert end.obs["obs"].tolist() == [[2, 0]]
    assert end.final_return.tolist() == [1] and end.final_length.tolist() == [3]
    assert end.final_success_once.tolist() == [-1]
    assert hub.counters.steps == 6 and hub.counters.episodes == 2


def test_time_limit_is_truncation_and_termination_wins() -> None:
    hub, actor, _ = hub_and_tick(lambda n: Script(n, length=lambda s: 5), time_limit=2)
    end = play(hub, actor, 3)[-1]
    assert (bool(end.terminated[0]), bool(end.truncated[0])) == (False, True)
    assert end.final_obs["obs"].tolist() == [[1, 2]] and end.final_length.tolist() == [2]

    hub, actor, _ = hub_and_tick(lambda n: Script(n, length=lambda s: 2), time_limit=2)
    end = play(hub, actor, 3)[-1]
    assert (bool(end.terminated[0]), bool(end.truncated[0])) == (True, False)


def test_environment_limit_holds_below_the_recipes() -> None:
    hub, actor, _ = hub_and_tick(lambda n: Script(n, length=lambda s: 9, time_limit=3), time_limit=4)
    assert play(hub, actor, 4)[-1].final_length.tolist() == [3]


def test_own_truncation_of_the_environment() -> None:
    def make(n: int) -> Script:
        return Script(n, terminates=lambda s: False, internal_truncation=True)

    hub, actor, _ = hub_and_tick(make)
    end = play(hub, actor, 4)[-1]
    assert (bool(end.terminated[0]), bool(end.truncated[0])) == (False, True)


@pytest.mark.parametrize("late", ["exact", "none"])
def test_action_repeat_ends_inside_a_decision(late: str) -> None:
    envs: list[Script] = []

    def make(n: int) -> Script:
        envs.append(Script(n, length=lambda s: 5, late_observe=late))
        return envs[0]

    hub, actor, _ = hub_and_tick(make, action_repeat=3)
    ticks = play(hub, actor, 3)
    assert ticks[1].num_steps.tolist() == [3] and ticks[1].reward.tolist() == [[1, 2, 3]]
    assert ticks[2].num_steps.tolist() == [2] and ticks[2].reward.tolist() == [[4, 5, 0]]
    assert ticks[2].terminated.tolist() == [True] and ticks[2].final_obs["obs"].tolist() == [[1, 5]]
    assert ticks[2].final_return.tolist() == [15] and ticks[2].step.tolist() == [0]
    observed = [request[2] for request in envs[0].asked if request[0] == "step"]
    late_observations = [r for r in envs[0].asked if r[0] == "observe"]
    if late == "exact":
        assert observed == [False, False, True, False, False]
        assert len(late_observations) == 3  # two resets of the script, and the end it did not see
    else:
        assert observed == [True] * 5


def test_time_limit_inside_a_decision_is_observed_in_time() -> None:
    envs: list[Script] = []

    def make(n: int) -> Script:
        envs.append(Script(n, length=lambda s: 9))
        return envs[0]

    hub, actor, _ = hub_and_tick(make, action_repeat=4, time_limit=2)
    end = play(hub, actor, 2)[-1]
    assert end.num_steps.tolist() == [2] and end.truncated.tolist() == [True]
    assert [r[2] for r in envs[0].asked if r[0] == "step"] == [False, True]


def test_action_chunks_are_queues_discarded_at_an_end() -> None:
    envs: list[Script] = []

    def make(n: int) -> Script:
        envs.append(Script(n, length=lambda s: 3))
        return envs[0]

    hub, actor, tick = hub_and_tick(make, num_rows=2)
    actor.act(tick, [[1, 2], [3, 4]], chunked=True)
    hub.poll()
    (tick,) = actor.ticks()
    assert tick.num_steps.tolist() == [2, 2]
    actor.act(tick, [[5, 6], [7, 8]], chunked=True)
    hub.poll()
    (tick,) = actor.ticks()
    assert envs[0].actions == [[1, 2, 5], [3, 4, 7]]
    assert tick.num_steps.tolist() == [1, 1] and tick.reward.tolist() == [[3, 0], [3, 0]]


def test_rows_end_apart() -> None:
    """Row 0 ends after 2 steps, row 1 after 3: finals name places in the tick."""
    lengths = {0: 2, 1: 3}

    class Apart(Script):
        def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool):  # type: ignore[no-untyped-def]
            result = super().step(rows, actions, observe)
            over = np.array([self.steps[r] >= lengths[int(r)] for r in rows])
            return result._replace(terminated=over)

    hub, actor, _ = hub_and_tick(lambda n: Apart(n, length=lambda s: 99), num_rows=2)
    ticks = play(hub, actor, 4)
    assert ticks[2].final.tolist() == [0] and ticks[2].step.tolist() == [0, 2]
    assert ticks[2].obs["obs"].tolist() == [[2, 0], [1, 2]]
    assert ticks[3].final.tolist() == [1] and ticks[3].step.tolist() == [1, 0]
    assert ticks[3].final_obs["obs"].tolist() == [[1, 3]]
    # What a tick gave away is not touched afterwards.
    assert ticks[1].obs["obs"].tolist() == [[1, 1], [1, 1]]


def test_stale_and_duplicate_acts_are_ignored() -> None:
    hub, actor, tick = hub_and_tick()
    actor.act(tick, fence=tick.fence - 1)
    hub.poll()
    assert hub.counters.stale_acts == 1 and not actor.ticks()
    actor.act(tick)
    actor.act(tick)
    hub.poll()
    assert hub.counters.duplicate_acts == 1 and hub.counters.steps == 1
    (second,) = actor.ticks()
    actor.act(tick)
    hub.poll()
    assert hub.counters.duplicate_acts == 2 and not actor.ticks()
    assert second.step.tolist() == [1]


def test_rows_of_one_tick_may_be_answered_apart() -> None:
    hub, actor, tick = hub_and_tick(num_rows=3)
    actor.act(tick, [0], rows=np.array([1], np.int32))
    hub.poll()
    assert not actor.ticks()
    actor.act(tick, [0, 0], rows=np.array([1, 0], np.int32))
    hub.poll()
    assert hub.counters.duplicate_acts == 1 and not actor.ticks()
    actor.act(tick, [0], rows=np.array([2], np.int32))
    hub.poll()
    (second,) = actor.ticks()
    assert second.rows.tolist() == [0, 1, 2] and second.step.tolist() == [1, 1, 1]


def test_new_holder_gets_the_same_tick_without_outcome() -> None:
    hub, (one, two) = make_hub(actors=2)
    attached(hub, one)
    last = play(hub, one, 2)[-1]
    answer = attached(hub, two)
    assert answer.fence == 2
    again = two.got[-1]
    assert isinstance(again, Tick) and again.fence == 2 and again.tick > last.tick
    assert again.episode.tolist() == last.episode.tolist() and again.step.tolist() == [1]
    np.testing.assert_array_equal(again.obs["obs"], last.obs["obs"])
    assert again.num_steps.tolist() == [0] and again.reward.tolist() == [[0]]
    (lost,) = [m for m in one.read() if isinstance(m, Detached)]
    assert lost.fence == 1
    one.act(last)
    hub.poll()
    assert hub.counters.stale_acts == 1 and not two.ticks()
    two.act(again)
    hub.poll()
    assert two.ticks()[0].step.tolist() == [2]
    assert hub.counters.straddled == 0


def test_stale_assignment_is_refused() -> None:
    hub, (one, two) = make_hub(actors=2)
    assert attached(hub, one, assignment=(3, 7)).fence == 1
    for assignment in ((3, 7), (2, 9)):
        two.attach("hub-0/0", assignment)
        hub.poll()
        (fault,) = two.read()
        assert isinstance(fault, Fault) and fault.code == "stale-assignment"
        assert "3.7" in fault.text
    assert attached(hub, two, assignment=(4, 1)).fence == 2


def test_attach_to_an_unknown_slice() -> None:
    hub, (actor,) = make_hub()
    actor.attach("nowhere")
    hub.poll()
    (fault,) = actor.read()
    assert isinstance(fault, Fault) and fault.code == "unknown-slice" and "nowhere" in fault.text


def test_detached_slice_waits_for_the_next_holder() -> None:
    from rollbus_wire.messages import Detach

    hub, (one, two) = make_hub(actors=2)
    attached(hub, one)
    play(hub, one, 2)
    one.link.send(Detach("hub-0/0", 1))
    hub.poll()
    assert attached(hub, two).fence == 2
    assert isinstance(two.got[-1], Tick) and two.got[-1].step.tolist() == [1]


def test_carry_follows_the_rows() -> None:
    hub, (one, two) = make_hub(num_rows=2, actors=2)
    assert attached(hub, one).carry is None
    play(hub, one, 2, carry=np.array([[1, 2], [3, 4]], np.uint8))
    answer = attached(hub, two)
    assert answer.carry is not None and answer.carry.tolist() == [[1, 2], [3, 4]]
    # Zero where an episode begins: after three steps both rows do.
    play(hub, two, 3, carry=np.array([[5, 6], [7, 8]], np.uint8))
    answer = attached(hub, one)
    assert answer.carry is not None and answer.carry.tolist() == [[0, 0], [0, 0]]


def test_history_for_frame_stacks() -> None:
    hub, (one, two) = make_hub(lambda n: Script(n, length=lambda s: 4), actors=2, frame_stack=3, num_rows=2)
    first = attached(hub, one)
    assert first.history is not None  # K - 1 copies of the first frame
    assert first.history["obs"].tolist() == [[[1, 0]] * 2, [[1, 0]] * 2]
    play(hub, one, 4)
    answer = attached(hub, two)
    assert answer.history is not None
    assert answer.history["obs"].tolist() == [[[1, 1]] * 2, [[1, 2]] * 2]
    assert two.got[-1].obs["obs"].tolist() == [[1, 3]] * 2  # type: ignore[attr-defined]
    play(hub, two, 2)
    answer = attached(hub, one)
    assert answer.history is not None
    assert answer.history["obs"].tolist() == [[[2, 0]] * 2, [[2, 0]] * 2]


@pytest.mark.parametrize(
    ("value", "words"),
    [([0.5, 1.5], ["row 1", "1.5"]), ([float("nan"), 0], ["row 0", "nan"]), ([0.0], ["shape"])],
)
def test_a_bad_action_is_refused_whole(value: list[float], words: list[str]) -> None:
    def make(n: int) -> Script:
        return Script(n, action=ActionSpec("continuous", low=[-1.0], high=[1.0]))

    hub, actor, tick = hub_and_tick(make, num_rows=2)
    actor.act(tick, np.array(value, np.float32))
    hub.poll()
    (fault,) = actor.read()
    assert isinstance(fault, Fault) and fault.code == "spec"
    for word in words:
        assert word in fault.text
    assert hub.counters.bad_acts == 1 and hub.counters.steps == 0
    actor.act(tick, np.array([1.0, -1.0], np.float32))
    hub.poll()
    assert actor.ticks()[0].step.tolist() == [1, 1]


@pytest.mark.parametrize("rows", [[0, 0], [0, 2], [-1, 0]])
def test_bad_rows_are_refused(rows: list[int]) -> None:
    hub, actor, tick = hub_and_tick(num_rows=2)
    actor.act(tick, rows=np.array(rows, np.int32))
    hub.poll()
    (fault,) = actor.read()
    assert isinstance(fault, Fault) and "distinct places" in fault.text
    assert hub.counters.steps == 0


def test_non_finite_numbers_are_never_fed_on() -> None:
    def make(n: int) -> Script:
        return Script(n, length=lambda s: 9, reward=lambda step: np.nan if step == 2 else 1.0)

    hub, actor, _ = hub_and_tick(make)
    ticks = play(hub, actor, 3)
    cut = ticks[-1]
    assert cut.interrupted.tolist() == [True] and cut.reward.tolist() == [[0]]
    assert not cut.terminated[0] and not cut.truncated[0] and len(cut.final) == 0
    assert cut.num_steps.tolist() == [0] and cut.step.tolist() == [0]
    assert cut.episode[0] != ticks[1].episode[0]
    assert (hub.counters.non_finite, hub.counters.interrupted, hub.counters.episodes) == (1, 1, 0)


def test_an_exception_interrupts_and_goes_on() -> None:
    class Fragile(Script):
        broken = False

        def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool):  # type: ignore[no-untyped-def]
            if self.steps[rows].max() == 1 and not self.broken:
                self.broken = True
                raise RuntimeError("joint 3 exploded")
            return super().step(rows, actions, observe)

    hub, actor, _ = hub_and_tick(Fragile)
    ticks = play(hub, actor, 4)
    assert [bool(t.interrupted[0]) for t in ticks] == [False, False, True, False]
    assert hub.counters.interrupted == 1
    hub.poll()
    assert any("joint 3 exploded" in str(fields) for _, fields in hub._log.lines)


def test_an_environment_that_always_fails_ends_the_hub() -> None:
    from rollbus_wire.errors import RollbusError

    class Broken(Script):
        def reset(self, rows: np.ndarray, seeds: np.ndarray, options: object):  # type: ignore[no-untyped-def]
            raise RuntimeError("no renderer")

    with pytest.raises(RollbusError, match="no renderer"):
        make_hub(Broken)


def test_slices_share_rows_evenly() -> None:
    assert split(10, 3) == [4, 3, 3]
    hub, (actor,) = make_hub(num_rows=5, num_slices=2)
    for name, rows in (("hub-0/0", 3), ("hub-0/1", 2)):
        answer = attached(hub, actor, name)
        assert isinstance(answer, Attached) and answer.num_rows == rows
    ticks = [m for m in actor.got if isinstance(m, Tick)]
    ids = [int(e) for t in ticks for e in t.episode]
    assert ids == [episode_id(0, row, 0) for row in range(5)]


def test_drain_takes_slices_and_stop_closes() -> None:
    envs: list[Script] = []

    def make(n: int) -> Script:
        envs.append(Script(n))
        return envs[-1]

    hub, actor, _ = hub_and_tick(make)
    hub.drain()
    assert any(isinstance(m, Detached) for m in actor.read()) and hub.finished
    hub.stop()
    assert envs[0].asked[-1] == ("close",)
