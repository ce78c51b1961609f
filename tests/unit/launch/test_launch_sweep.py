"""A sweep: spaces, what it suggests, and how it goes on; the trainer is a formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbus_core.config.load import load
from rollbus_launch.sweep import Sweep, space
from rollbus_wire.errors import ConfigError

pytest.importorskip("optuna")
RECIPE = "env: {name: toy, kind: continuous}\nalgorithm: {name: ppo}\n"
SPACES = ["algorithm.learning_rate=1e-5..1e-1:log", "algorithm.epochs=2..9", "policy.activation=[tanh, relu]"]


def test_spaces() -> None:
    rate, epochs, activation = map(space, SPACES)
    assert (rate.low, rate.high, rate.log, rate.integer) == (1e-5, 1e-1, True, False)
    assert (epochs.low, epochs.high, epochs.integer) == (2, 9, True)
    assert activation.choices == ("tanh", "relu") and activation.known("relu") == 1
    for text, message in {
        "a.b=3": "give key=low..high", "a.b=2..1": "2 is not below 1", "a.b=0..1:log": "begins above 0",
        "a.b=[1]": "give key=low..high", "a.b": "give key=low..high",
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            space(text)


def made(folder: Path, spaces: list[str] = SPACES, seed: int = 1) -> tuple[Sweep, list[str]]:
    recipe, runs = folder / "r.yaml", []
    recipe.write_text(RECIPE)

    def train(path: Path, overrides: list[str], out: Path) -> dict[str, float]:
        """Best at a learning rate of 1e-3 with relu."""
        import math

        runs.append(out.name)
        chosen = load(path, overrides).recipe
        off = abs(math.log10(chosen.algorithm.learning_rate) + 3)
        return {"mean_return": -off - (chosen.policy.activation == "tanh"), "wall_s": 1.0}

    return Sweep(recipe, [], [space(s) for s in spaces], folder / "out", seed=seed, train=train), runs


def test_it_searches_and_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    sweep, runs = made(tmp_path)
    first = sweep.run(4, lambda row: None)
    assert runs == [f"trial-{n}" for n in range(4)]
    again, runs = made(tmp_path)
    rows = again.run(25, lambda row: None)
    assert runs == [f"trial-{n}" for n in range(4, 25)] and {r["trial"] for r in first} <= {0, 1, 2, 3}
    assert rows == sorted(rows, key=lambda row: -row["mean_return"]) and len(rows) == 25
    assert rows[0]["mean_return"] > -0.5 and rows[0]["policy.activation"] == "relu"
    # In one go or in two, the trials are the same.
    whole, _ = made(tmp_path / "other") if (tmp_path / "other").mkdir() is None else (None, None)
    assert [r["mean_return"] for r in whole.run(8, lambda row: None)] == sorted(
        (r["mean_return"] for r in rows if r["trial"] < 8), reverse=True
    )


@pytest.mark.parametrize(
    ("spaces", "overrides", "message"),
    [
        (SPACES[:1], [], r"--over algorithm.epochs \[2, 9\], here it is unset; use another --dir"),
        (
            ["algorithm.learning_rate=1e-4..1e-1:log", *SPACES[1:]], [],
            r"--over algorithm.learning_rate \[1e-05, 0.1\], here it is \[0.0001, 0.1\]",
        ),
        ([*SPACES[:2], "policy.activation=[relu, tanh]"], [], r"\['tanh', 'relu'\], here it is \['relu'"),
        (SPACES, ["algorithm.gamma=0.9"], "setting algorithm.gamma 0.99, here it is 0.9; use another --dir"),
    ],
)  # fmt: skip
def test_trials_of_another_sweep_do_not_count(
    spaces: list[str], overrides: list[str], message: str, tmp_path: Path
) -> None:
    first, _ = made(tmp_path)
    first.run(2, lambda row: None)
    other, runs = made(tmp_path, spaces)
    other.overrides = overrides
    with pytest.raises(ConfigError, match=message):
        other.run(3, lambda row: None)
    assert not runs


def test_a_wrong_setting_shows_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'algorithm.lerning_rate'"):
        made(tmp_path, ["algorithm.lerning_rate=1e-4..1e-2"])
    with pytest.raises(ConfigError, match="algorithm.gamma is 2"):  # the end of a range, too
        made(tmp_path, ["algorithm.gamma=0.9..2.0"])
    with pytest.raises(ConfigError, match="policy.activation is 'sine'"):
        made(tmp_path, ["policy.activation=[tanh, sine]"])


def test_a_run_that_fails_is_listed_and_the_search_goes_on(tmp_path: Path) -> None:
    sweep, _ = made(tmp_path, SPACES[:1])
    good = sweep._train

    def fails(path: Path, overrides: list[str], out: Path) -> dict[str, float | None]:
        if out.name == "trial-1":
            raise ConfigError("the loss is not finite")
        found: dict[str, float | None] = dict(good(path, overrides, out))
        return found | {"mean_return": None} if out.name == "trial-2" else found

    sweep._train = fails  # type: ignore[assignment]
    rows = sweep.run(4, lambda row: None)
    assert {row["trial"] for row in rows[:2]} == {0, 3} and all("failed" not in row for row in rows[:2])
    assert rows[0]["mean_return"] >= rows[1]["mean_return"]
    assert [row["mean_return"] for row in rows[2:]] == [None, None]
    assert {row["trial"]: row["failed"] for row in rows[2:]} == {
        1: "the loss is not finite", 2: "no episode ended"
    }  # fmt: skip
    again, runs = made(tmp_path, SPACES[:1])
    assert len(again.run(8, lambda row: None)) == 8 and runs == [f"trial-{n}" for n in range(4, 8)]
