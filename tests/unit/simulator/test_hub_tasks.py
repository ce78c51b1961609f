"""Rows that run tasks: which episodes they get, what is counted of each, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from rollbus_simulator.counters import Counters
from rollbus_simulator.episodes import Ended, EpisodeList, GroupEpisodes
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec, TaskSpec

SPEC = EnvSpec(
    "two", {"task": ArraySpec("int64", (), 0, 1, layout="onehot")}, ActionSpec("discrete", num=[2]),
    has_success=True,
    tasks=[TaskSpec("a", action=[0], num=[2], has_success=True), TaskSpec("b", action=[0], num=[2])],
)  # fmt: skip


@pytest.mark.parametrize("tasks", [[0, 1], [0, 0, 0, 1], [1, 0, 1]])
def test_episode_i_is_one_of_task_i_modulo_k_on_any_rows(tasks: list[int]) -> None:
    listed, ran = EpisodeList(7, 7), []
    listed.seated(0, np.array(tasks), 2)
    while listed.waiting:
        for row, task in enumerate(tasks):
            given = listed.next(row)
            if given is not None:
                ran.append((given[0], task))
                listed.ended(row, Ended(*given, 1.0, 3, None, None, task))
    assert sorted(ran) == [(i, i % 2) for i in range(7)] and listed.done
    assert [r["task"] for r in listed.results] == [0, 1, 0, 1, 0, 1, 0]


def test_a_lost_episode_goes_back_to_its_task() -> None:
    listed = EpisodeList(7, 4)
    listed.seated(0, np.array([0, 1]), 2)
    given = listed.next(1)
    assert given is not None and given[0] == 1
    listed.interrupted(1, *given)
    assert listed.next(0)[0] == 0 and listed.next(1) == given  # type: ignore[index]


def test_more_tasks_than_episodes_and_groups_across_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 episodes for 2 tasks"):
        EpisodeList(7, 1).seated(0, np.array([0, 1]), 2)
    GroupEpisodes(1, 2).seated(0, np.array([0, 0, 1, -1]), 2)
    with pytest.raises(ConfigError, match=r"rows 10 to 11 are one group.*run tasks \[0, 1\]"):
        GroupEpisodes(1, 2).seated(8, np.array([0, 0, 0, 1]), 2)


def test_heartbeats_tell_each_task_and_success_where_it_is_reported() -> None:
    counters = Counters()
    for ret, once, task in ((1.0, True, 0), (3.0, False, 0), (10.0, None, 1)):
        counters.ended(Ended(0, 0, ret, 5, once, once, task), SPEC)
    found = counters.numbers()
    assert (found["return_mean/a"], found["success_rate/a"], found["return_mean/b"]) == (2.0, 0.5, 10.0)
    assert "success_rate/b" not in found and found["episodes"] == 3
