"""Processor sharing by hand-computed times."""

from __future__ import annotations

import pytest

from rollbus_core.plan.cores import Cores, Timeline


def ends(num_cores: int, works: list[float], slowdown: float = 1.0) -> list[float]:
    """When each job that began at 0 is done."""
    timeline, done = Timeline(), [0.0] * len(works)
    cores = timeline.add(Cores(num_cores, slowdown))
    for number, work_s in enumerate(works):
        cores.run(work_s, lambda number=number: done.__setitem__(number, timeline.now_s))
    while timeline.step():
        pass
    return done


@pytest.mark.parametrize(
    ("num_cores", "works", "slowdown", "expected"),
    [
        (1, [1, 3], 1.0, [2, 4]),  # half speed for 2 s, then the longer one alone
        (2, [1, 3], 1.0, [1, 3]),
        (2, [1, 1, 1], 1.0, [1.5] * 3),  # three on two cores: two thirds each
        (2, [1, 3], 1.5, [1.5, 3.5]),  # side by side 1.5 times as long, then alone
        (2, [2], 1.5, [2]),
        (1, [1, 1], 1.5, [2, 2]),  # never side by side
        (3, [1, 1], 1.4, [1.2, 1.2]),  # half of the neighbours that there could be
    ],
)
def test_jobs_share_cores(num_cores: int, works: list[float], slowdown: float, expected: list[float]) -> None:
    assert ends(num_cores, works, slowdown) == pytest.approx(expected)


def test_no_work_is_lost_or_made() -> None:
    works = [0.3, 1.7, 0.2, 2.4, 0.9]
    timeline = Timeline()
    cores = timeline.add(Cores(2))
    for number, work_s in enumerate(works):
        timeline.after(0.1 * number, lambda work_s=work_s: cores.run(work_s, lambda: None))
    while timeline.step():
        pass
    assert cores.used_s == pytest.approx(sum(works))


def test_events_come_in_order_and_take_no_core() -> None:
    timeline, seen = Timeline(), []
    cores = timeline.add(Cores(1))
    timeline.after(2.0, lambda: seen.append(("b", timeline.now_s)))
    timeline.after(1.0, lambda: seen.append(("a", timeline.now_s)))
    timeline.after(2.0, lambda: seen.append(("c", timeline.now_s)))
    cores.run(3.0, lambda: seen.append(("work", timeline.now_s)))
    while timeline.step():
        pass
    assert seen == [("a", 1.0), ("b", 2.0), ("c", 2.0), ("work", 3.0)]


def test_use_is_told_by_user() -> None:
    """Three jobs on two cores: all together use both cores, each two thirds of one, while they last."""
    timeline = Timeline()
    cores = timeline.add(Cores(2))
    for user in ("a", "a", "b"):
        cores.run(1.0, lambda: None, user)
    while timeline.step():
        pass
    assert cores.used_by == pytest.approx({"a": 2.0, "b": 1.0})
    assert cores.used_s == pytest.approx(3.0)
