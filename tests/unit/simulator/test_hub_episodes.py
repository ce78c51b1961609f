"""Exact lists of episodes for evaluation, endless ones for training."""

from __future__ import annotations

import numpy as np
import pytest
from hub_kit import Script, attached, make_hub

from rollbus_core.rng import episode_id, episode_seed
from rollbus_simulator.episodes import (
    MAX_RESTARTS,
    Ended,
    EpisodeList,
    GroupEpisodes,
    TrainingEpisodes,
)
from rollbus_wire.env import StepResult
from rollbus_wire.messages import Tick

#: T16: these succeed in five steps, the others run into the limit of 100.
SUCCEED = {episode_seed(7, i, evaluation=True): i for i in (0, 4, 8)}


def run(listed: EpisodeList, num_rows: int, make_env: object, **settings: object) -> None:
    """Run ``listed`` to its end with an actor that always chooses 0."""
    hub, (actor,) = make_hub(  # type: ignore[arg-type]
        make_env, num_rows=num_rows, episodes=listed, **settings
    )
    attached(hub, actor)
    ticks = [m for m in actor.got if isinstance(m, Tick)]
    for _ in range(10_000):
        if listed.done:
            return
        for tick in ticks:
            actor.act(tick)
        hub.poll()
        ticks = actor.ticks()
    raise AssertionError("the list is not done after 10,000 turns")


def make_t16(num_rows: int) -> Script:
    return Script(
        num_rows,
        length=lambda seed: 5 if seed in SUCCEED else 1000,
        success=lambda seed, step: seed in SUCCEED and step == 5,
    )


@pytest.mark.parametrize("num_rows", [1, 3, 4])
def test_each_episode_exactly_once(num_rows: int) -> None:
    listed = EpisodeList(7, 10)
    run(listed, num_rows, make_t16, time_limit=100)
    results = listed.results
    assert [r["id"] for r in results] == list(range(10))
    assert [r["seed"] for r in results] == [episode_seed(7, i, evaluation=True) for i in range(10)]
    assert [r["length"] for r in results] == [5 if i in (0, 4, 8) else 100 for i in range(10)]
    # Success on the last step counts; time-outs do not.
    for key in ("success_once", "success_at_end"):
        assert sum(r[key] for r in results) / 10 == 0.3
    assert results[0]["return"] == 1 + 2 + 3 + 4 + 5
    assert results[1]["return"] == sum(range(1, 101))


def test_termination_in_failure_is_no_success() -> None:
    listed = EpisodeList(7, 4)
    run(listed, 2, lambda n: Script(n, success=lambda seed, step: False))
    assert [r["success_once"] for r in listed.results] == [False] * 4


def test_success_once_and_at_end_differ() -> None:
    listed = EpisodeList(7, 2)
    run(listed, 1, lambda n: Script(n, success=lambda seed, step: step == 2))
    assert [(r["success_once"], r["success_at_end"]) for r in listed.results] == [(True, False)] * 2


def test_without_a_success_signal_there_is_no_success() -> None:
    listed = EpisodeList(7, 1)
    run(listed, 1, Script)
    assert listed.results[0]["success_once"] is None


class Losing(Script):
    """Raises at the second step of episode 1, the first ``times`` times."""

    times = 1

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        bad = episode_seed(7, 1, evaluation=True)
        lost = self.seeds[rows] == bad
        if Losing.times > 0 and (lost & (self.steps[rows] == 1)).any():
            Losing.times -= 1
            raise RuntimeError("lost")
        return super().step(rows, actions, observe)


@pytest.mark.parametrize(("times", "lost"), [(MAX_RESTARTS, False), (MAX_RESTARTS + 1, True)])
def test_a_lost_episode_restarts_whole(times: int, lost: bool) -> None:
    Losing.times = times
    listed = EpisodeList(7, 3)
    run(listed, 1, lambda n: Losing(n, success=lambda seed, step: step == 3))
    assert [r["id"] for r in listed.results] == [0, 1, 2]
    assert [r["lost"] for r in listed.results] == [False, lost, False]
    assert [r["success_once"] for r in listed.results] == [True, not lost, True]
    assert [r["length"] for r in listed.results] == [3, 0 if lost else 3, 3]


def test_idle_rows_take_a_lost_episode() -> None:
    """The only episode left is lost in row 0; it may run in any row."""
    Losing.times = 1
    listed = EpisodeList(7, 2)
    run(listed, 2, lambda n: Losing(n, success=lambda seed, step: True))
    assert [r["length"] for r in listed.results] == [3, 3] and listed.done


def test_training_episodes_are_functions_of_row_and_number() -> None:
    one, two = TrainingEpisodes(5, row_offset=8), TrainingEpisodes(5, row_offset=8)
    assert one.next(0) is None and not one.waiting
    one.open(2)
    two.open(2)
    first = [one.next(row) for row in (0, 1, 0)]
    assert first[0] == (episode_id(2, 8, 0), episode_seed(5, episode_id(2, 8, 0), evaluation=False))
    assert first[2] is not None and first[2][0] == episode_id(2, 8, 1)
    assert [two.next(row) for row in (1, 0, 0)] == [first[1], first[0], first[2]]
    one.open(9)  # a rejoin is no new start
    following = one.next(0)
    assert following is not None and following[0] == episode_id(2, 8, 2)


def test_training_and_evaluation_share_no_seed() -> None:
    training = TrainingEpisodes(1, incarnation=0)
    mine = {training.next(row)[1] for row in range(50) for _ in range(40)}  # type: ignore[index]
    listed = EpisodeList(1, 2000)
    theirs = {listed.next(0)[1] for _ in range(2000)}  # type: ignore[index]
    assert len(theirs) == 2000 and not mine & theirs
    # 31 bits: of 2000 seeds, two may be equal by chance about once in a thousand runs.
    assert len(mine) >= 1999


def test_results_are_in_order_of_ids() -> None:
    listed = EpisodeList(3, 2)
    for _ in range(2):
        listed.next(0)
    listed.ended(0, Ended(1, 11, 2.0, 5, None, None))
    assert not listed.done
    listed.ended(0, Ended(0, 10, 1.0, 4, None, None))
    assert listed.done and [r["return"] for r in listed.results] == [1.0, 2.0]


def rounds(hub: object, actor: object, num_ticks: int) -> list[Tick]:
    """Play, answering whatever is asked; all ticks that came."""
    ticks = [m for m in actor.got if isinstance(m, Tick)]  # type: ignore[attr-defined]
    new = ticks[:]
    while len(ticks) < num_ticks:
        for tick in new:
            actor.act(tick)  # type: ignore[attr-defined]
        hub.poll()  # type: ignore[attr-defined]
        new = actor.ticks()  # type: ignore[attr-defined]
        ticks += new
    return ticks


def test_members_of_a_group_begin_alike_and_wait_for_the_last() -> None:
    """Rows 0, 1 are one group and end after 2 steps, rows 2, 3 another and end after 4."""
    first = episode_seed(1, episode_id(0, 0, 0), evaluation=False)
    hub, (actor,) = make_hub(
        lambda n: Script(n, length=lambda seed: 2 if seed == first else 4),
        num_rows=4, episodes=GroupEpisodes(1, 2),
    )  # fmt: skip
    attached(hub, actor)
    ticks = rounds(hub, actor, 6)
    assert [t.rows.tolist() for t in ticks[:6]] == [
        [0, 1, 2, 3], [0, 1, 2, 3], [2, 3], [2, 3], [0, 1, 2, 3], [0, 1, 2, 3],
    ]  # fmt: skip
    start, after = ticks[0], ticks[4]
    assert start.seed[0] == start.seed[1] == first != start.seed[2] == start.seed[3]
    assert not set(start.seed.tolist()) & set(after.seed.tolist()) and not after.step.any()
    # The outcome of the rows that ended early comes with the new round.
    assert after.final.tolist() == [0, 1, 2, 3] and after.final_length.tolist() == [2, 2, 4, 4]
    assert after.final_return.tolist() == [3, 3, 10, 10] and after.terminated.all()
    assert len(set(start.episode.tolist()) | set(after.episode.tolist())) == 8


def test_a_lost_member_is_run_again_from_its_groups_seed() -> None:
    episodes = GroupEpisodes(1, 2, incarnation=3)
    (lost, seed), (_, same) = episodes.next(0), episodes.next(1)  # type: ignore[misc]
    assert seed == same
    episodes.ended(1, Ended(0, 0, 0.0, 1, None, None))
    for _ in range(MAX_RESTARTS):
        episodes.interrupted(0, lost, seed)
        again, restarted = episodes.next(0)  # type: ignore[misc]
        assert restarted == seed and again != lost
    episodes.interrupted(0, again, seed)
    assert episodes.next(0)[1] != seed  # type: ignore[index]
    episodes.ended(0, Ended(0, 0, 0.0, 1, None, None))
    assert episodes.next(0)[1] == episodes.next(1)[1] != seed  # type: ignore[index]


def test_groups_go_on_with_the_seeds_they_would_have_had() -> None:
    straight = GroupEpisodes(1, 2, row_offset=4, incarnation=3)
    given = [[straight.next(row) for row in range(4)] for _ in range(3)]
    running = {pair[0]: np.zeros(0) for pair in given[1] if pair is not None}
    resumed = GroupEpisodes(1, 2, row_offset=4, running=running)
    assert [[resumed.next(row) for row in range(4)] for _ in range(2)] == given[1:]


def test_a_round_survives_the_loss_of_a_member() -> None:
    """The environment fails once in row 1: its episode is told as interrupted and runs again."""
    made = Failing(2)
    hub, (actor,) = make_hub(lambda n: made, num_rows=2, episodes=GroupEpisodes(1, 2))
    attached(hub, actor)
    ticks = rounds(hub, actor, 6)
    cut = [t for t in ticks if t.interrupted.any()]
    assert len(cut) == 1 and cut[0].seed[cut[0].interrupted][0] == ticks[0].seed[0]
    after = next(t for t in ticks if t.final.size)
    assert after.final.size == 2 and not after.step.any()


class Failing(Script):
    """A step of row 1 fails, once."""

    failed = False

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        result = super().step(rows, actions, observe)
        if not self.failed and (rows == 1).any() and self.steps[1] == 2:
            self.failed = True
            result.reward[rows == 1] = np.nan
        return result
