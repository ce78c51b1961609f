"""The file of a pipeline, its keys and records; stages are real collections."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rollbus_launch.evaluation.intervals import paired_gain, wilson
from rollbus_launch.pipeline import file
from rollbus_launch.pipeline.run import Runner, StageFailed
from rollbus_wire.errors import ConfigError

RECIPE = "env: {name: toy, kind: continuous}\nalgorithm: {name: ppo}\n"
TWO = """
stages:
  demos: {kind: collect, recipe: r.yaml, episodes: 3}
  chance: {kind: collect, recipe: r.yaml, policy: random, episodes: 3}
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(RECIPE)


def refused(text: str) -> str:
    Path("p.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        file.read(Path("p.yaml"))
    return str(caught.value)


def run(text: str, **options: str) -> tuple[dict, list[str]]:
    Path("p.yaml").write_text(text)
    lines: list[str] = []
    return Runner(file.read(Path("p.yaml")), Path("out"), lines.append).run(**options), lines


STAGE = "stages:\n  a: {kind: collect, recipe: r.yaml}\n  b: "
A = "stages:\n  a: {kind: collect, recipe: r.yaml"
CASES = {
    "stages:\n  a: {kind: colect}":
        "p.yaml:2: stages.a.kind is 'colect', not one of: .*did you mean 'collect'",
    "stages:\n  a: {recipe: r.yaml}": "stages.a has no kind; one of: collect",
    A + ", episode: 3}": "unknown key 'episode'; .*did you mean 'episodes'",
    A + ", episodes: 0}": "stages.a.episodes is 0: must be greater than or equal to 1",
    "stages:\n  a: {kind: collect, recipe: none.yaml}": "none.yaml does not exist",
    A + ", set: [env.nun_envs=3]}": "unknown key 'env.nun_envs'",
    "stages: {}": "it has no stages",
    "stages: {a: {kind: collect, recipe: r.yaml}}\nstage: 3": "unknown key 'stage'; a pipeline has",
    STAGE + "{kind: reward, data: [a], by: progres}": "'progres' is not one of: progress, success",
    STAGE + "{kind: reward, data: [a], set: [membrs=2]}": "progress has no setting 'membrs'",
    STAGE + "{kind: rl, recipe: r.yaml, rewards: {a: 1.0}}": "needs a reward from 'a', which makes a dataset",
    STAGE + "{kind: eval, runs: [c]}": "p.yaml:3: stages.b needs stage 'c'; stages above: a",
    STAGE + "{kind: eval, runs: [a]}": "stages.b needs a run from 'a', which makes a dataset",
    "stages:\n  b: {kind: export, run: a}\n  a: {kind: rl, recipe: r.yaml}": "'a'; it stands below",
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), CASES.items(), ids=range(len(CASES)))
def test_a_file_that_is_not_right_is_refused(text: str, message: str) -> None:
    assert re.search(message, refused(text), re.DOTALL), refused(text)


def test_what_is_finished_stays_and_what_changed_is_made_anew() -> None:
    first, _ = run(TWO)
    assert first["demos"].content != first["chance"].content and first["demos"].facts["success_rate"] == 1.0
    record = Path("out/demos.json").read_text()
    again, lines = run(TWO)
    assert again == first and Path("out/demos.json").read_text() == record
    assert all("finished before" in line for line in lines)
    changed, lines = run(TWO.replace("episodes: 3}\n  chance", "episodes: 4}\n  chance"))
    assert changed["chance"] == first["chance"] and changed["demos"].content != first["demos"].content
    assert any("episodes 3 -> 4" in line for line in lines), lines
    assert Path(first["demos"].folder).is_dir() and Path("out/demos").resolve().name.startswith("demos-")
    redone, _ = run(TWO, redo="chance")
    assert redone["demos"] == first["demos"] and redone["chance"].content == first["chance"].content
    assert redone["chance"].wall_s != first["chance"].wall_s


def test_an_artefact_without_its_record_is_made_anew() -> None:
    """As it is after a kill between the last command of a stage and its record."""
    first, _ = run(TWO)
    for name in ("demos", "chance"):
        folder = Path(first[name].folder)
        folder.with_name(folder.name + ".json").unlink()
    (Path(first["chance"].folder) / "data/chunk-000/file-000.parquet").unlink()
    again, _ = run(TWO)
    assert {name: a.content for name, a in again.items()} == {n: a.content for n, a in first.items()}


def test_what_somebody_changed_is_refused() -> None:
    found, _ = run(TWO)
    manifest = Path(found["demos"].folder) / "rollbus/manifest.json"
    data = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(data | {"content": "0" * 64}))
    with pytest.raises(ConfigError, match="somebody changed it; rollbus run --redo demos"):
        run(TWO)


def test_a_stage_that_fails_says_its_command() -> None:
    with pytest.raises(StageFailed, match="stage 'a' failed with exit code 2: rollbus collect r.yaml"):
        run("stages:\n  a: {kind: collect, recipe: r.yaml, policy: 'none:none'}")
    assert not Path("out/a.json").exists()


def test_intervals() -> None:
    assert wilson(73, 100) == pytest.approx((0.635679, 0.807304), abs=1e-5)
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == pytest.approx(1.0) and wilson(0, 0) == (0.0, 1.0)
    assert paired_gain([[1.0, 2.0]], [[1.5, 2.5]]) == (0.5, 0.5, 0.5)
    gain, low, high = paired_gain([[0.0] * 100], [[1.0] * 50 + [0.0] * 50])
    assert gain == 0.5 and low == pytest.approx(0.40, abs=0.015) and high == pytest.approx(0.60, abs=0.015)
    # Two seeds that disagree: no number of episodes makes the interval small.
    _, low, high = paired_gain([[0.0] * 50] * 2, [[1.0] * 50, [0.0] * 50])
    assert (low, high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="episodes by seed"):
        paired_gain([], [])
