"""What progress shows is computed from heartbeats."""

import io
import time

import pytest
from rich.console import Console

from rollbus_launch import progress
from rollbus_launch.motion import STILL_S, Motion
from rollbus_launch.progress import Display, advice, awaited, bottleneck, duration, snapshot

MEMBERS = [
    {"role": "hub", "stats": {"busy": 0.2, "steps_per_s": 900.0}},
    {"role": "actor", "stats": {"busy": 0.9, "steps_per_s": 500.0, "ticket_wait_fraction": 0.1}},
    {"role": "actor", "stats": {"busy": 0.7, "steps_per_s": 400.0, "ticket_wait_fraction": 0.3}},
    {
        "role": "learner",
        "stats": {"busy": 0.5, "env_steps": 4000, "steps_per_s": 1000.0, "return_mean": 21.0},
    },
]


def test_bottleneck_is_the_busiest_role() -> None:
    assert bottleneck(MEMBERS) == "actor (80% busy)"
    assert bottleneck([]) == "-"
    idle = [{"role": role, "stats": {"busy": 0.004}} for role in ("hub", "actor", "learner")]
    assert bottleneck(idle) == "-" and advice(idle) == ""


def test_advice_is_for_the_busiest_role_and_counts_on() -> None:
    num = sum(member["role"] == "actor" for member in MEMBERS)
    assert f"rollbus scale actor={num + 1}" in advice(MEMBERS)
    assert "learner.threads" in advice([{"role": "learner", "stats": {"busy": 0.9}}])
    assert "env.hubs=2" in advice([{"role": "hub", "stats": {"busy": 0.6}}])
    assert "wait for each other" in advice([{"role": "hub", "stats": {"busy": 0.4}}])
    assert advice([]) == ""


def test_rates_and_eta() -> None:
    shown = snapshot(MEMBERS, 10_000, time.monotonic())
    assert shown["actor_steps_per_s"] == 900.0
    assert shown["eta_s"] == 6.0
    assert shown["ticket_wait"] == 0.3


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3900, "1 h 05 min"),
        (86_399, "1 d 00 h"),
        (100 * 86_400, "100 d 00 h"),
        (100 * 86_400 + 1, "-"),
        (float("inf"), "-"),
    ],
)
def test_duration_for_people(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def hub(missing: int, refused: dict[str, int] | None = None) -> dict:
    stats = {
        "busy": 0.0, "rows_wanted": 4, "rows_missing": missing, "rows_dial": "tcp://127.0.0.1:5555",
        "refused": refused or {},
    }  # fmt: skip
    return {"role": "hub", "name": "hub-0", "stats": stats}


LEARNER = {"role": "learner", "name": "learner-0", "stats": {"busy": 0.0, "env_steps": 0}}


def test_a_run_without_environments_names_them_and_no_slices() -> None:
    assert bottleneck([hub(4), LEARNER]) == "environments (none is there)"
    assert "run_env" in advice([hub(4), LEARNER])
    assert bottleneck([hub(3), LEARNER]) == "-"
    (found,) = awaited([hub(4, {"peer/revoked/peer": 7, "peer/role/actor": 1, "data/role/peer": 3}), LEARNER])
    assert str(found) == (
        "hub-0 waits for 4 of 4 rows at tcp://127.0.0.1:5555; refused there since it started: "
        "a key of role actor, a revoked key (its log says who)"
    )
    assert awaited([hub(0), LEARNER, MEMBERS[0] | {"name": "hub-1"}]) == []


def test_the_console_says_once_what_is_lost() -> None:
    display, said = Display("x", 100), []
    display.note = said.append  # type: ignore[method-assign]
    revoked = {"peer/revoked/peer": 2}
    for missing, refused in ((4, {}), (2, {}), (0, {}), (4, {}), (4, {}), (4, revoked), (4, revoked)):
        display.update([hub(missing, refused), LEARNER], None)
    assert len(said) == 2 and "4 of 4 rows" in said[0] and "a revoked key" in said[1]


def test_a_lost_learner_learns_nothing() -> None:
    members = [m if m["role"] != "learner" else {**m, "state": "lost", "silent_s": 42.3} for m in MEMBERS]
    members = [{"name": f"{m['role']}-0", **m} for m in members]
    shown = snapshot(members, 10_000, time.monotonic())
    assert (shown["env_steps"], shown["steps_per_s"], shown["eta_s"]) == (4000, 0.0, None)
    assert shown["bottleneck"] == "learner-0 (lost, silent for 42 s)" and advice(members) == ""


def test_missing_rows_come_before_all_advice() -> None:
    hub = {"role": "hub", "stats": {"busy": 0.1, "rows_missing": 8, "rows_wanted": 16}}
    assert advice([hub, *MEMBERS]) == "let the environments that are missing dial in"


class Clock:
    """Time that passes when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def learner(steps: int, rate: float, **stats: float) -> list[dict]:
    return [
        {"role": "learner", "name": "learner-0", "stats": {"env_steps": steps, "steps_per_s": rate, **stats}}
    ]


def test_the_first_line_after_a_resume_has_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, display = Clock(monkeypatch), Display("x", 50_000)
    display.console = Console(file=io.StringIO(), width=200)
    for now, members in ((0, []), (1, learner(22_528, 0.0)), (2, learner(22_528, 0.0))):
        clock.now = 1000.0 + now
        display.update(members, None)
    assert display.console.file.getvalue() == ""
    clock.now += 1
    display.update(learner(24_576, 2048.0, return_mean=500.0), None)
    (line,) = display.console.file.getvalue().splitlines()
    assert "24,576 / 50,000 steps  2,048/s  return 500" in line and "12 s left" in line


def test_no_estimate_while_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, display = Clock(monkeypatch), Display("x", 10_000_000)
    for steps in (0, 1000, 2000):
        display._now(learner(steps, 1000.0))
        clock.now += 1
    assert display._now(learner(2000, 1000.0))["eta_s"] == (10_000_000 - 2000) / 1000.0
    assert display._now([*learner(2000, 1000.0), hub(4)])["eta_s"] is None  # no environment is there
    lost = {"role": "actor", "name": "actor-0", "state": "lost", "silent_s": 6.0}
    assert display._now([*learner(2000, 91.0), lost])["eta_s"] is None
    clock.now += STILL_S
    shown = display._now(learner(2000, 1.2))
    assert (shown["rate"], shown["eta_s"]) == (0.0, None)
    assert display._line(shown).endswith("nothing moves for 6 s") and "left" not in display._line(shown)
    assert display._now(learner(3000, 90.0))["rate"] == 90.0


def test_updates_of_an_earlier_start_are_not_of_this_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, display = Clock(monkeypatch), Display("x", 1000, "updates")
    display._now(learner(0, 0.0, updates=500))
    assert display._now(learner(0, 0.0, updates=500))["eta_s"] is None
    clock.now += 10
    shown = display._now(learner(0, 0.0, updates=600))
    assert (shown["rate"], shown["eta_s"]) == (10.0, 40.0)


def test_what_moves_seldom_does_not_stand_still() -> None:
    motion = Motion()
    for turn in range(4):
        motion.note(60.0 * turn, turn)
    assert motion.still_s(180.0 + 170.0) == 0.0 and motion.still_s(180.0 + 190.0) == 190.0
    motion.note(400.0, 1)  # back to a checkpoint
    assert not motion.begun and motion.rate(401.0) is None and motion.still_s(1000.0) == 0.0


@pytest.mark.parametrize("width", [50, 80, 200])
@pytest.mark.parametrize(
    ("unit", "told"),
    [("steps", "16,384 of 100,000 steps (16%)"), ("updates", "70,000 of 100,000 updates (70%)")],
)
def test_steps_total_and_percent_stand_beside_the_bar(width: int, unit: str, told: str) -> None:
    display = Display("cartpole_ppo -> /somewhere/runs/x", 100_000, unit)
    display.console = Console(
        file=io.StringIO(), width=width, height=24, force_terminal=True, color_system=None
    )
    display.console.print(display._panel(display._now([])))
    assert f"starting, to 100,000 {unit}" in display.console.file.getvalue()
    display.console.file.truncate(0)
    display.console.print(display._panel(display._now(learner(16_384, 900.0, updates=70_000))))
    (line,) = [text for text in display.console.file.getvalue().splitlines() if "\u2501" in text]
    assert line.rstrip().endswith(told) and len(line.rstrip()) <= width
    assert line.count("\u2501") + line.count("\u2578") + line.count("\u257a") <= progress.BAR_WIDTH


def test_the_last_figures_stay_while_an_evaluation_waits_for_its_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, display = Clock(monkeypatch), Display("x", 12_000)
    display.console = Console(file=io.StringIO(), width=200)
    working = {"role": "actor", "name": "actor-0", "stats": {"busy": 0.9}}
    for steps in (0, 10_752):
        display.update([*learner(steps, 1000.0, return_mean=20.0), hub(0), working], None)
        clock.now += 1
    display.finished(12_288, 24)
    waits = {"role": "evaluator", "name": "evaluator-0", "stats": hub(4)["stats"]}
    clock.now += 60
    display.update([hub(0), working, waits], None)
    *_, said, line = display.console.file.getvalue().splitlines()
    assert said == "evaluator-0 waits for 4 of 4 rows at tcp://127.0.0.1:5555"
    assert "12,288 / 12,000 steps  0/s  return 20  " in line
    assert line.endswith("bottleneck: evaluation (waits for 4 of 4 rows to dial in)")
    assert display._now(display._with_learner([hub(0), working]))["bottleneck"] == "evaluation"
    assert "dial in" in advice([waits]) and bottleneck([*MEMBERS, waits]) == "actor (80% busy)"
