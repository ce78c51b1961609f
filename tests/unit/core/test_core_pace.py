"""How many rows a pass should hold: hand-computed costs."""

from __future__ import annotations

import pytest

from rollbus_core.pace import MIN_PASSES, Pace


def passes(pace: Pace, num_rows: int, seconds: float, times: int = MIN_PASSES) -> None:
    for _ in range(times):
        pace.took(num_rows, seconds)


def test_before_anything_is_known_passes_may_be_as_large_as_allowed() -> None:
    pace = Pace(1024)
    assert pace.limit == 1024
    passes(pace, 1000, 5.0, MIN_PASSES - 1)
    assert pace.limit == 1024


def test_while_rows_get_cheaper_passes_may_grow() -> None:
    pace = Pace(1024)
    passes(pace, 1, 1.0)
    passes(pace, 64, 8.0)
    assert pace.limit == 1024


def test_passes_stay_below_the_size_at_which_rows_get_dearer() -> None:
    pace = Pace(1024)
    passes(pace, 1, 1.0)
    passes(pace, 64, 6.4)
    passes(pace, 1000, 400.0)
    # A row costs 1, 0.1 and 0.4 s: sizes 64 to 127 are the best.
    assert pace.limit == 127


def test_of_sizes_as_good_as_each_other_the_smallest_answers_first() -> None:
    pace = Pace(1024)
    passes(pace, 16, 1.7)
    passes(pace, 64, 6.4)
    passes(pace, 256, 26.0)
    assert pace.limit == 31  # 0.106 s per row against 0.1


def test_a_slow_pass_now_and_then_does_not_count() -> None:
    pace = Pace(1024)
    passes(pace, 8, 8.0)
    passes(pace, 512, 51.2)
    pace.took(512, 5000.0)
    assert pace.limit == 1024


@pytest.mark.parametrize("max_rows", [1, 100])
def test_the_limit_is_never_above_what_is_allowed(max_rows: int) -> None:
    pace = Pace(max_rows)
    passes(pace, 64, 6.4)
    passes(pace, 1000, 400.0)
    assert pace.limit == max_rows
