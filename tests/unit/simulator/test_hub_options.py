"""What episodes begin with: draws by seed, levels by outcome, groups alike, records, restarts; a real hub."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_kit import Script, attached, make_hub, play

from rollbus_simulator.episodes import Ended, GroupEpisodes, TrainingEpisodes
from rollbus_simulator.options.base import OptionSource, Result, Start, fixed_by_seed, make
from rollbus_simulator.starts import Starts
from rollbus_wire.errors import ConfigError

RANDOM = {
    "name": "random",
    "values": {
        "distance": {"uniform": [0.2, 0.6]}, "gain": {"log_uniform": [0.5, 2.0]},
        "count": {"integer": [1, 3]}, "side": {"choice": ["left", "right"]}, "colour": "red",
    },
}  # fmt: skip
LEVELS: dict[str, Any] = {
    "name": "curriculum", "levels": [{"distance": 0.1}, {"distance": 0.3}, {"distance": 0.8}],
    "values": {"gain": 0.05}, "raise_at": 0.75, "lower_at": 0.25, "window": 4, "rehearse": 0.5,
}  # fmt: skip


def source(settings: dict[str, Any]) -> OptionSource:
    found = make(settings)
    assert found is not None
    return found


def feed(levels: OptionSource, level: int, *successes: bool) -> None:
    for success in successes:
        levels.ended(Start({}, level), Result(float(success), 3, success))


def test_without_settings_there_are_no_options() -> None:
    assert make({}) is None


def test_draws_are_functions_of_the_seed() -> None:
    one, other = source(RANDOM), source(RANDOM)
    backwards = [other.draw(seed).options for seed in reversed(range(400))]
    drawn = [one.draw(seed).options for seed in range(400)]
    assert drawn == backwards[::-1]
    # Another key more changes nothing for those that were there.
    more = source({"name": "random", "values": RANDOM["values"] | {"a": {"uniform": [0, 1]}}})  # type: ignore[operator]
    assert [{k: v for k, v in more.draw(s).options.items() if k != "a"} for s in range(9)] == drawn[:9]
    distance, gain = (np.array([o[key] for o in drawn]) for key in ("distance", "gain"))
    assert 0.2 <= distance.min() < 0.21 and 0.59 < distance.max() < 0.6
    assert abs(distance.mean() - 0.4) < 0.02 and abs(np.log(gain).mean()) < 0.07  # four deviations
    assert abs(np.corrcoef(distance, gain)[0, 1]) < 0.2
    counts = [sum(o["count"] == n for o in drawn) for n in (1, 2, 3)]
    assert sum(counts) == 400 and min(counts) > 95
    assert 150 < sum(o["side"] == "left" for o in drawn) < 250
    assert all(o["colour"] == "red" for o in drawn)


def test_fixed_is_what_was_given() -> None:
    chosen = source({"name": "fixed", "values": {"distance": 0.4, "map": {"a": [1, 2]}}})
    assert chosen.draw(1) == chosen.draw(2) == Start({"distance": 0.4, "map": {"a": [1, 2]}}, -1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"values": {}}, "env.options: has no name; sources are curriculum, fixed, progress, random"),
        ({"name": "rnadom"}, "'rnadom' is not one of.*did you mean 'random'"),
        ({"name": "fixed", "vales": {}}, "env.options.vales is .*: there is no such key"),
        ({"name": "fixed", "values": {"a": {"uniform": [0, 1]}}}, "values.a is drawn.*set name: random"),
        ({"name": "random", "values": {"a": {"uniform": [1, 0]}}}, r"a: uniform is \[low, high\].*\[1, 0\]"),
        ({"name": "random", "values": {"a": {"log_uniform": [0, 1]}}}, "begins above 0, not at 0"),
        ({"name": "random", "values": {"a": {"integer": [0, 1.5]}}}, "between whole numbers"),
        ({"name": "random", "values": {"a": {"choice": "ab"}}}, "choice is a list of values, came 'ab'"),
        ({"name": "curriculum", "levels": [{}]}, "env.options.levels is .*: List should have at least 2"),
        (LEVELS | {"lower_at": 0.8}, "lower_at 0.8 is not below raise_at 0.75"),
        (LEVELS | {"name": "progress"}, "env.options.raise_at is 0.75: there is no such key"),
        ({"name": "nowhere.to.be_found"}, "there is no module 'nowhere'"),
        ({"name": "json:nothing"}, "has no function 'nothing'"),
        ({"name": "json:dumps", "level": 3}, "env.options: "),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(Exception, match=text):
        make(settings)


def test_exact_lists_take_no_source_that_adapts() -> None:
    assert fixed_by_seed(RANDOM, "eval.options") is not None
    with pytest.raises(ConfigError, match="eval.options: curriculum answers to outcomes"):
        fixed_by_seed(LEVELS, "eval.options")


def test_a_curriculum_by_hand() -> None:
    levels = source(LEVELS)
    assert all(levels.draw(seed) == Start({"gain": 0.05, "distance": 0.1}, 0) for seed in range(20))
    feed(levels, 0, True, True, False)
    assert levels.draw(1).level == 0  # the window is not full
    feed(levels, 0, True)  # 3 of 4
    drawn = [levels.draw(seed).level for seed in range(400)]
    assert set(drawn) == {0, 1} and 160 < drawn.count(0) < 240  # half rehearses what is below
    feed(levels, 0, *[False] * 9)  # rehearsals do not count
    feed(levels, 1, True, False, False)
    assert levels.numbers()["option_level"] == 1
    feed(levels, 1, False)  # 1 of 4 is not below 0.25
    assert levels.numbers()["option_level"] == 1
    feed(levels, 1, False)  # 0 of the last 4
    assert levels.numbers()["option_level"] == 0
    feed(levels, 0, *[True] * 4)
    feed(levels, 1, *[True] * 4)
    assert levels.draw(1).options["gain"] == 0.05 and levels.numbers()["option_level"] == 2
    feed(levels, 2, *[True] * 9)  # there is no level above
    assert levels.numbers() == {
        "option_level": 2.0,
        "option_level_0_episodes": 17.0, "option_level_1_episodes": 9.0, "option_level_2_episodes": 9.0,
        "option_level_0_success": 7 / 17, "option_level_1_success": 5 / 9, "option_level_2_success": 1.0,
    }  # fmt: skip
    drawn = [levels.draw(seed).level for seed in range(800)]
    assert 160 < drawn.count(0) < 240 and 160 < drawn.count(1) < 240


def test_levels_measured_by_return_or_without_a_signal() -> None:
    levels = source(LEVELS | {"measure": "return", "raise_at": 10, "lower_at": None})
    for ret in (9.0, 9.0, 11.0, 11.0):
        levels.ended(Start({}, 0), Result(ret, 3, None))
    assert levels.numbers()["option_level"] == 1 and levels.numbers()["option_level_0_return"] == 10.0
    with pytest.raises(ConfigError, match="no success signal; set env.options.measure=return"):
        source(LEVELS).ended(Start({}, 0), Result(1.0, 3, None))


def test_progress_by_hand() -> None:
    settings = {"name": "progress", "levels": LEVELS["levels"], "fast": 0.5, "slow": 0.25, "explore": 0.3}
    levels = source(settings)
    assert [levels.numbers()[f"option_level_{k}_chance"] for k in range(3)] == [pytest.approx(1 / 3)] * 3
    feed(levels, 0, False, True)  # means 0.5 and 0.25: progress 0.25
    feed(levels, 1, False, True, True)  # 0.75 and 0.4375: 0.3125
    feed(levels, 2, True, True)  # mastered: 0
    chances = [levels.numbers()[f"option_level_{k}_chance"] for k in range(3)]
    total = 0.25 + 0.3125
    assert chances == pytest.approx([0.1 + 0.7 * 0.25 / total, 0.1 + 0.7 * 0.3125 / total, 0.1])
    counts = np.bincount([levels.draw(seed).level for seed in range(2000)]) / 2000
    assert np.abs(counts - chances).max() < 0.045  # four deviations
    feed(levels, 2, *[False] * 4)  # forgetting counts: means 0.5^4 and 0.75^4
    moved = 0.75**4 - 0.5**4
    assert levels.numbers()["option_level_2_chance"] == pytest.approx(0.1 + 0.7 * moved / (total + moved))


@pytest.mark.parametrize("name", ["curriculum", "progress"])
def test_a_state_goes_on_where_it_was(name: str) -> None:
    settings = {key: LEVELS[key] for key in ("levels", "values")} | {"name": name}
    settings |= {"window": 4} if name == "curriculum" else {}
    one, other = source(settings), source(settings)
    feed(one, 0, True, True, True, True)
    feed(one, 1, False, True)
    other.load(json.loads(json.dumps(one.state())))
    assert other.numbers() == one.numbers()
    feed(one, 1, True, True)
    feed(other, 1, True, True)
    assert other.numbers() == one.numbers()
    assert [one.draw(seed) for seed in range(50)] == [other.draw(seed) for seed in range(50)]


class Told(Script):
    """Keeps the options of every reset by seed; an episode with the option "win" succeeds."""

    def __init__(self, num_rows: int, **fields: Any) -> None:
        super().__init__(num_rows, success=lambda seed, step: self.wins(seed), **fields)
        self.given: list[tuple[int, int, dict[str, Any]]] = []

    def wins(self, seed: int) -> bool:
        return any(s == seed and o.get("distance", 1) < 0.5 for _, s, o in self.given)

    def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Any) -> dict[str, np.ndarray]:
        assert len(options) == len(rows)
        self.given += zip(rows.tolist(), seeds.tolist(), options)
        return super().reset(rows, seeds, options)


def hub_with(settings: dict[str, Any], episodes: Any, num_rows: int, **starts: Any) -> Any:
    """A hub with these options, an actor that is attached, and the environment."""
    envs: list[Told] = []

    def made(num: int) -> Told:
        envs.append(Told(num))
        return envs[-1]

    kept = Starts(source(settings), settings, **starts)
    hub, (actor,) = make_hub(made, num_rows=num_rows, episodes=episodes, starts=kept)
    attached(hub, actor)
    return hub, actor, envs[0]


def test_a_hub_gives_what_the_seed_says_and_records_it(tmp_path: Path) -> None:
    record = tmp_path / "episodes" / "hub-0.jsonl"
    hub, actor, env = hub_with(RANDOM, TrainingEpisodes(1, incarnation=1), 3, record=record)
    play(hub, actor, 10)
    hub.stop()
    assert len(env.given) == 12  # three episodes of three rows, and those that run
    assert all(options == source(RANDOM).draw(seed).options for _, seed, options in env.given)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(lines) == 9
    by_seed = {seed: options for _, seed, options in env.given}
    for line in lines:
        assert line["options"] == by_seed[line["seed"]] and "level" not in line
        assert line["return"] == 1 + 2 + 3 and line["length"] == 3
        assert line["success"] == (line["options"]["distance"] < 0.5)
    # Other rows in another number, the same seeds: the same options.
    again, actor, other = hub_with(RANDOM, TrainingEpisodes(1, incarnation=1), 1)
    play(again, actor, 10)
    assert {seed: options for _, seed, options in other.given}.items() <= by_seed.items()


def test_levels_rise_in_a_hub_and_survive_its_restart(tmp_path: Path) -> None:
    kept = tmp_path / "hub-0.json"
    hub, actor, env = hub_with(LEVELS, TrainingEpisodes(1, incarnation=1), 2, kept=kept)
    assert [o["distance"] for _, _, o in env.given] == [0.1, 0.1]
    play(hub, actor, 13)  # four episodes of each row: all of level 0 succeed
    assert hub.stats()["option_level"] >= 1
    play(hub, actor, 100)
    stats = hub.stats()
    assert stats["option_level"] in (1, 2)  # those at 0.8 fail, so it falls again and again
    assert stats["option_level_1_success"] == 1.0 and stats["option_level_2_episodes"] >= 4
    assert stats["option_level_2_success"] == 0.0 and stats["option_level_0_success"] == 1.0
    hub.stop()
    again, _, env = hub_with(LEVELS, TrainingEpisodes(1, incarnation=2), 2, kept=kept)
    assert {k: v for k, v in again.stats().items() if k.startswith("option_")} == {
        k: v for k, v in stats.items() if k.startswith("option_")
    }
    other, _, _ = hub_with(LEVELS | {"window": 5}, TrainingEpisodes(1, incarnation=2), 2, kept=kept)
    assert other.stats()["option_level"] == 0  # the state of other settings is not taken
    kept.write_text('{"settings":')
    damaged, _, _ = hub_with(LEVELS, TrainingEpisodes(1, incarnation=2), 2, kept=kept)
    assert damaged.stats()["option_level"] == 0


def test_members_of_a_group_begin_alike_also_after_a_loss() -> None:
    """The level rises while a group runs; a member that is run again gets what the others had."""
    starts = Starts(source(LEVELS | {"window": 1, "rehearse": 0.0}), LEVELS)
    episodes = GroupEpisodes(1, 2, incarnation=1)
    begun = [episodes.next(row) for row in (0, 1)]
    assert begun[0] is not None and begun[1] is not None and begun[0][1] == begun[1][1]
    seed = begun[0][1]
    assert starts.begin(0, seed) == starts.begin(1, seed) == {"gain": 0.05, "distance": 0.1}
    episodes.interrupted(1, *begun[1])
    starts.ended(0, Ended(begun[0][0], seed, 1.0, 3, True, True), "once")
    assert starts.numbers()["option_level"] == 1
    again = episodes.next(1)
    assert again is not None and again[1] == seed
    assert starts.begin(1, seed) == {"gain": 0.05, "distance": 0.1}
    assert starts.begin(0, 77)["distance"] == 0.3
    starts.ended(1, Ended(again[0], seed, 1.0, 3, True, True), "once")
    assert starts.begin(1, 78)["distance"] == 0.3
    assert len(starts._of_seed) == 2  # seeds that no row has are forgotten


def test_group_members_in_a_hub_begin_alike() -> None:
    hub, actor, env = hub_with(RANDOM, GroupEpisodes(3, 2, incarnation=1), 4)
    play(hub, actor, 10)
    given: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: [], 3: []}
    for row, _, options in env.given:
        given[row].append(options)
    assert len(given[0]) == 4 and given[0] == given[1] and given[2] == given[3] and given[0] != given[2]


def test_a_source_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_options.py").write_text(
        "from rollbus_simulator.options.base import OptionConfig, OptionSource, Start\n"
        "class Own(OptionSource):\n"
        "    def __init__(self, most): self.most = most\n"
        "    def draw(self, seed): return Start({'n': seed % self.most})\n"
        "class Config(OptionConfig):\n    most: int\n"
        "def make(config): return Own(config.most)\n"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text("from my_options import *\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert source({"name": "my_options:Own", "most": 3}).draw(5).options == {"n": 2}
    assert source({"name": "mine.own", "most": 4}).draw(5).options == {"n": 1}
    sys.modules.pop("my_options", None)
