"""Slices that move between actors: the learner's log-probs stay those of the actors."""

from __future__ import annotations

import pytest
from system_kit import PATIENCE_S, audit, end, wait_for_steps
from system_runner import RECIPES, Runner, wait_for

pytestmark = pytest.mark.timeout(400)
MEMORY = str(RECIPES / "toy_memory_ppo.yaml")


@pytest.mark.long
def test_recurrent_state_follows_its_slice(rollbus: Runner) -> None:
    """One actor, three, one again: the carry travels, so the gap stays at rounding."""
    run = rollbus.folder / "run"
    process = rollbus.start(
        "train", MEMORY, "run.total_steps=100000000", "env.num_slices=4", "eval.every_steps=0",
        "stop_when.eval_return=null",
        "algorithm.max_lag=0", "run.audit=true", "--run-dir", str(run),
    )  # fmt: skip
    wait_for_steps(rollbus, run, 8000, process)

    def holders() -> dict[str, list[str]]:
        return {m["name"]: m["slices"] for m in rollbus.members(run) if m["name"].startswith("actor")}

    assert [len(held) for held in holders().values()] == [4]
    moved = []
    for count, spread in ((3, [1, 1, 2]), (1, [4])):
        done = rollbus("scale", f"actor={count}", "--run-dir", str(run), "--timeout", "60")
        assert done.returncode == 0, done.stderr
        wait_for(
            lambda spread=spread: sorted(len(held) for held in holders().values()) == spread,
            PATIENCE_S, f"slices spread as {spread}",
        )  # fmt: skip
        moved.append(rollbus.lines(run / "metrics.jsonl")[-1]["update"])
        wait_for_steps(rollbus, run, 8000, process)
    end(process)
    rows = rollbus.lines(run / "metrics.jsonl")
    gaps = {row["update"]: row["log_prob_gap"] for row in rows if row.get("log_prob_gap") is not None}
    assert max(gaps.values()) <= 1e-5
    assert len(gaps) == len(rows), "without lag every row has the gap"
    assert rows[-1]["update"] > moved[-1] > moved[0] > 10
    total, problems = audit(run)
    assert total > 20_000 and not problems, problems[:5]
