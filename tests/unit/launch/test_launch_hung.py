"""How long the launcher waits for what says nothing."""

from __future__ import annotations

from rollbus_launch.processes.hung import MAX_TURN_S, Patience


def wait(patience: Patience, begin: float, seconds: float) -> float:
    """Turns of a tenth of a second; the time after them."""
    now = begin
    while now < begin + seconds:
        now += 0.1
        patience.turn(now)
    return now


def test_a_lost_member_hangs_after_the_limit_and_is_named_once() -> None:
    patience = Patience(5.0, 3.0, 0.0)
    patience.heard(["actor-0"])
    now = wait(patience, 0.0, 4.8)
    patience.heard(["actor-0", "hub-0"])
    assert patience.hanging == []
    wait(patience, now, 0.5)
    assert patience.hanging == ["actor-0"] and patience.hanging == []


def test_one_that_came_back_is_not_held_against_it() -> None:
    patience = Patience(5.0, 3.0, 0.0)
    patience.heard(["actor-0"])
    now = wait(patience, 0.0, 4.0)
    patience.heard([])
    patience.heard(["actor-0"])
    wait(patience, now, 4.0)
    assert patience.hanging == []


def test_the_broker_hangs_unless_it_answers_or_is_another_one() -> None:
    patience = Patience(5.0, 3.0, 0.0)
    now = wait(patience, 0.0, 4.0)
    patience.heard([])
    now = wait(patience, now, 4.0)
    assert not patience.broker_hangs
    patience.broker_again()
    now = wait(patience, now, 7.8)
    assert not patience.broker_hangs, "it has time to start"
    wait(patience, now, 0.4)
    assert patience.broker_hangs


def test_a_pause_of_the_whole_machine_is_nobodys_silence() -> None:
    patience = Patience(5.0, 3.0, 0.0)
    patience.heard(["actor-0"])
    patience.turn(3600.0)
    assert patience.broker_s == MAX_TURN_S and not patience.broker_hangs and patience.hanging == []


def test_without_a_limit_nothing_hangs() -> None:
    patience = Patience(0.0, 3.0, 0.0)
    patience.heard(["actor-0"])
    wait(patience, 0.0, 100.0)
    assert patience.hanging == [] and not patience.broker_hangs
