"""Costs from samples, and samples from the real services."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from rollbus_core.config.load import load
from rollbus_launch.planning.echo import way
from rollbus_launch.planning.fit import actor_costs, ending_share, fit, hub_costs
from rollbus_launch.planning.rehearsal import Rehearsal, Sample, Tally


def tally(ticks: int, num_rows: int, *, per_turn: int, ends: int = 0) -> Tally:
    """Ticks with ``ends`` each, ``per_turn`` to a turn, as of a hub with 100 us per tick, 5 per row, 50 per
    tick with ends, 20 per end, and an actor with 80 per turn, 30 per tick, 2 per row, 10 and 15 for ends."""
    turns, rows, ending = ticks // per_turn, ticks * num_rows, ticks * bool(ends)
    return Tally(
        hub_s=1e-6 * (100 * ticks + 5 * rows + 50 * ending + 20 * ticks * ends),
        actor_s=1e-6 * (80 * turns + 30 * ticks + 2 * rows + 10 * ending + 15 * ticks * ends),
        turns=turns, ticks=ticks, rows=rows, episodes=ticks * ends, ending=ending,
    )  # fmt: skip


def sample(ticks: int, num_rows: int, per_turn: int, ends: int) -> Sample:
    plain, ended = (
        tally(ticks, num_rows, per_turn=per_turn),
        tally(ticks, num_rows, per_turn=per_turn, ends=ends),
    )
    return Sample(plain, ended, ticks=2 * ticks, rows=plain.rows + ended.rows, episodes=ended.episodes)


def samples() -> list[Sample]:
    draw = random.Random(1)
    return [
        sample(2 * draw.randrange(100, 200), num_rows, per_turn, draw.choice([1, 2, 8]))
        for num_rows, per_turn in ((8, 1), (8, 2), (32, 1))
        for _ in range(6)
    ]


def test_costs_that_made_the_samples_are_found() -> None:
    hub, actor = hub_costs(samples()), actor_costs(samples())
    found = [hub.tick_s, hub.row_s, hub.ending_s, hub.episode_s]
    assert found == pytest.approx([100e-6, 5e-6, 50e-6, 20e-6], rel=1e-3)
    found = [actor.turn_s, actor.tick_s, actor.row_s, actor.ending_s, actor.episode_s]
    assert found == pytest.approx([80e-6, 30e-6, 2e-6, 10e-6, 15e-6], rel=1e-3)


def test_known_costs_of_ends_are_taken_off() -> None:
    """Plain turns and those with ends need not be told apart then."""
    known = hub_costs(samples())
    again = hub_costs(samples(), known)
    assert (again.tick_s, again.row_s) == pytest.approx((100e-6, 5e-6), rel=1e-3)
    assert (again.ending_s, again.episode_s) == (known.ending_s, known.episode_s)


def test_where_every_turn_has_ends_they_are_part_of_the_rest() -> None:
    always = [Sample(ended=tally(200, rows, per_turn=1, ends=1), ticks=200) for rows in (8, 8, 32)]
    hub = hub_costs(always)
    assert hub.tick_s == pytest.approx(170e-6, rel=1e-3) and hub.row_s == pytest.approx(5e-6, rel=1e-3)
    assert hub.ending_s == hub.episode_s == 0.0


def test_no_cost_is_negative() -> None:
    """The best fit of the first column alone is 1.5; with the second it would be 2 and -1."""
    assert fit([[1, 0], [1, 1]], [2.0, 1.0])[1] == 0.0
    assert np.all(fit([[1, 2], [2, 4], [3, 6]], [1.0, 2.0, 3.0]) >= 0)


def test_rows_that_end_together_end_in_few_ticks() -> None:
    together = Sample(ended=Tally(ticks=10), ticks=100, rows=800, episodes=80)
    independent = 1 - 0.9**8
    assert ending_share([together]) == pytest.approx(0.1 / independent)
    assert ending_share([Sample(ticks=100, rows=800)]) == 1.0


def test_a_message_takes_less_than_a_tenth_of_a_second() -> None:
    message_s, wake_s = way(50)
    assert 0.0 < message_s < 0.1 and 0.0 <= wake_s < 0.1


@pytest.mark.parametrize("fused", [True, False])
def test_a_rehearsal_counts_what_the_services_do(
    fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "m"))
    (tmp_path / "m").mkdir()
    path = tmp_path / "toy.yaml"
    path.write_text("env: {name: toy, num_envs: 8, length: 10}\nalgorithm: {name: ppo, num_steps: 8}\n")
    with Rehearsal(load(path), num_rows=4, num_slices=2, fused=fused) as rehearsal:
        found = rehearsal.samples(0.3)
        assert rehearsal.step_bytes > 4 and rehearsal.weights_bytes > 1000
    ticks, rows = sum(s.ticks for s in found), sum(s.rows for s in found)
    assert ticks > 10 and rows == pytest.approx(4 * ticks, rel=0.1)
    # Episodes of at most 10 steps.
    assert sum(s.episodes for s in found) >= 0.7 * rows / 10
    assert sum(s.ended.episodes for s in found) == sum(s.episodes for s in found)
    assert ticks == sum(s.plain.ticks + s.ended.ticks for s in found)
    for each in found:
        assert 0 < each.record_s < each.seconds["actor"]
    assert list((tmp_path / "m").iterdir()) == []
