"""Numbers of an evaluation, by hand."""

import json
from pathlib import Path

import pytest

from rollbus_launch.evaluation.result import MEAN, ci95, summarise
from rollbus_launch.stages import eval as eval_stage
from rollbus_wire.errors import PeerLost
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec, TaskSpec


def test_interval_is_students_t() -> None:
    # n = 4, sd = sqrt(5/3), t(3) = 3.182: 3.182 * 1.29099 / 2
    assert ci95([1.0, 2.0, 3.0, 4.0]) == pytest.approx(2.05397, abs=1e-4)
    assert ci95([5.0]) == 0.0
    assert ci95([2.0] * 50) == 0.0


def episode(
    number: int, total: float, once: int | None, end: int | None, task: int = 0, lost: bool = False
) -> dict[str, object]:
    return {
        "id": number, "task": task, "seed": 2**31 + number, "return": total, "length": 5,
        "success_once": once, "success_at_end": end, "lost": lost,
    }  # fmt: skip


def spec(success: str = "once", tasks: tuple[TaskSpec, ...] = ()) -> EnvSpec:
    observation = {"x": ArraySpec("float32", ())}
    if tasks:
        observation["task"] = ArraySpec("int64", (), 0, len(tasks) - 1, layout="onehot")
    action = ActionSpec("discrete", num=[2])
    return EnvSpec("e", observation, action, has_success=True, success=success, tasks=list(tasks))


def summed(results: list[dict[str, object]], of: EnvSpec | str = "once"):
    return summarise(
        results,
        spec=spec(of) if isinstance(of, str) else of,
        checkpoint="c",
        version="0.1",
        env_steps=9,
        mode="deterministic",
        seed=1,
    )


def test_success_follows_the_spec_and_both_are_given() -> None:
    results = [episode(1, 1.0, 1, 0), episode(0, 3.0, 1, 1), episode(2, 2.0, 0, 0)]
    once, at_end = summed(results), summed(results, "at_end")
    assert once.success_rate == once.success_once == pytest.approx(2 / 3)
    assert at_end.success_rate == at_end.success_at_end == pytest.approx(1 / 3)
    assert once.mean_return == 2.0
    assert [e["id"] for e in once.episodes] == [0, 1, 2]
    assert [e["success"] for e in at_end.episodes] == [1, 0, 0]


def test_a_lost_episode_is_no_success_and_in_no_mean() -> None:
    """Where all rewards are negative, a return of 0 would be the best one."""
    results = [episode(0, -1.0, 1, 1), episode(1, 0.0, False, False, lost=True), episode(2, -3.0, 1, 1)]
    found = summed(results)
    assert (found.mean_return, found.mean_length, found.lost) == (-2.0, 5.0, 1)
    assert found.success_rate == pytest.approx(2 / 3)
    assert [(e["return"], e["length"], e["lost"]) for e in found.episodes] == [
        (-1.0, 5, False), (None, None, True), (-3.0, 5, False)
    ]  # fmt: skip
    assert "lost" not in summed(results[::2]).episodes[0] and summed(results[::2]).lost == 0
    with pytest.raises(PeerLost, match="failed in every episode of an evaluation"):
        summed(results[1:2])


def test_no_success_signal_is_not_zero_success() -> None:
    assert summed([episode(0, 1.0, None, None)]).success_rate is None


def test_each_task_counts_alike_in_the_mean_and_only_those_with_a_signal_in_its_success() -> None:
    """An episode of task b that was lost says success False, but b has no signal."""
    tasks = (TaskSpec("a", action=[0], num=[2], has_success=True), TaskSpec("b", action=[0], num=[2]))
    results = [episode(0, 1.0, 1, 1), episode(1, 10.0, False, False, 1), episode(2, 3.0, 0, 0)]
    found = summed(results, spec(tasks=tasks))
    a, b, mean = (found.tasks[name] for name in ("a", "b", MEAN))
    assert (a["episodes"], a["mean_return"], a["success_rate"]) == (2, 2.0, 0.5)
    assert (b["episodes"], b["mean_return"], b["success_rate"], b["success_ci95"]) == (1, 10.0, None, None)
    assert (mean["mean_return"], mean["success_rate"]) == (6.0, 0.5)
    # t(1) = 12.706, sd = sqrt 2: 12.706 for task a, 0 for the one episode of b; half of it for the mean.
    assert a["ci95"] == pytest.approx(12.706) and mean["ci95"] == pytest.approx(6.353)
    assert [e["task"] for e in found.episodes] == ["a", "b", "a"] and found.success_rate == 0.5
    assert summed([episode(0, 1.0, 1, 1)]).tasks == {}


def test_a_gain_is_over_the_episodes_that_both_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lost episodes are in no mean, interval or gain; without a common one there is none."""
    stage = eval_stage.Config(kind="eval", runs=["a", "b"], episodes=3)

    def wrote(name: str, returns: list[float | None]) -> None:
        episodes = [
            {"return": r, "success": None if r is None else r > 1} | ({"lost": True} if r is None else {})
            for r in returns
        ]
        result = {"mean_return": 1.0, "ci95": 0.5, "success_rate": 0.5, "episodes": episodes}
        (tmp_path / f"{name}.json").write_text(json.dumps(result))

    wrote("a", [1.0, None, 2.0])
    wrote("b", [3.0, 4.0, None])
    facts = stage.facts(tmp_path)
    assert facts["gain"] == {"return": (2.0, 2.0, 2.0), "success": (1.0, 1.0, 1.0)}
    assert facts["a"]["success_ci95"] == "9.5% to 90.5%"  # Wilson, 1 of 2: 0.5 -+ 0.4055

    wrote("b", [None, 4.0, None])
    assert "gain" not in stage.facts(tmp_path)
    stage.show(tmp_path)
    assert "b over a: no episode was finished by both" in capsys.readouterr().out
