"""Numbers of an evaluation, by hand."""

import pytest

from rollbus_launch.evaluate import ci95, summarise


def test_interval_is_students_t() -> None:
    # n = 4, sd = sqrt(5/3), t(3) = 3.182: 3.182 * 1.29099 / 2
    assert ci95([1.0, 2.0, 3.0, 4.0]) == pytest.approx(2.05397, abs=1e-4)
    assert ci95([5.0]) == 0.0
    assert ci95([2.0] * 50) == 0.0


def episode(number: int, total: float, once: int | None, end: int | None) -> dict[str, object]:
    return {
        "id": number, "seed": 2**31 + number, "return": total, "length": 5,
        "success_once": once, "success_at_end": end,
    }  # fmt: skip


def summed(results: list[dict[str, object]], success: str = "once"):
    return summarise(
        results, success=success, checkpoint="c", version="0.1", env_steps=9, mode="deterministic", seed=1
    )


def test_success_follows_the_spec_and_both_are_given() -> None:
    results = [episode(1, 1.0, 1, 0), episode(0, 3.0, 1, 1), episode(2, 2.0, 0, 0)]
    once, at_end = summed(results), summed(results, "at_end")
    assert once.success_rate == once.success_once == pytest.approx(2 / 3)
    assert at_end.success_rate == at_end.success_at_end == pytest.approx(1 / 3)
    assert once.mean_return == 2.0
    assert [e["id"] for e in once.episodes] == [0, 1, 2]
    assert [e["success"] for e in at_end.episodes] == [1, 0, 0]


def test_no_success_signal_is_not_zero_success() -> None:
    assert summed([episode(0, 1.0, None, None)]).success_rate is None
