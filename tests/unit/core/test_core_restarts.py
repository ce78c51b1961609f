"""When a process may start again."""

from rollbus_core.restarts import LAST_BACKOFF_S, STEADY_S, WINDOW_S, RestartBudget


def test_short_lives_wait_longer_each_time_and_then_no_more() -> None:
    budget, now, waits = RestartBudget(3), 0.0, []
    for _ in range(4):
        budget.started(now)
        now += 1.0
        waits.append(budget.ended(now))
    assert waits == [0.2, 0.4, 0.8, None] and budget.num_restarts == 3


def test_a_long_life_starts_at_once_again() -> None:
    budget = RestartBudget(100)
    now = 0.0
    for _ in range(10):
        budget.started(now)
        now += 0.5
        wait = budget.ended(now)
    assert wait == LAST_BACKOFF_S
    budget.started(now)
    assert budget.ended(now + STEADY_S) == 0.1


def test_the_window_moves_on() -> None:
    budget = RestartBudget(1)
    budget.started(0.0)
    assert budget.ended(1.0) is not None and budget.ended(2.0) is None
    assert budget.ended(1.0 + WINDOW_S + 1.0) is not None


def test_what_finds_no_room_is_not_to_blame() -> None:
    budget = RestartBudget(0)
    budget.started(0.0)
    assert budget.ended(1.0, blameless=True) == 0.2 and budget.num_restarts == 0
