"""The claims of `make curves`: each arm is a run that resolves; verdicts as worked out by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from rollbus_core.config.load import load

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from learning import claims, measures, report, runs, shams, verdicts  # noqa: E402

CLAIMS = claims.read()
ARMS = [(claim, arm) for claim in CLAIMS for arm in CLAIMS[claim].arms]


def a_claim(**changes):
    """Two arms of three seeds on one task."""
    data = {"title": "t", "of": "success", "seeds": [1, 2, 3], "arms": {"a": {"recipe": "toy_reach_sft"}}}
    data["arms"]["b"] = {"recipe": "toy_reach_sft", "once": True}
    return claims.Claim(**(data | changes))


def records(**values):
    """{arm: {seed: record}} of {arm: values by seed}."""
    return {
        arm: {
            str(seed): {"values": each, "figures": {"lag_mean": 3.0}} for seed, each in enumerate(by_seed, 1)
        }
        for arm, by_seed in values.items()
    }


@pytest.mark.parametrize("claim, arm", ARMS, ids=[f"{claim}-{arm}" for claim, arm in ARMS])
def test_each_arm_resolves(claim, arm, tmp_path):
    trainer = runs.Trainer(claim, CLAIMS[claim], runs.Ledger(tmp_path / "x"), tmp_path, False)
    settings = [trainer._filled(text, 1) for text in CLAIMS[claim].arms[arm].set]
    assert not any("{data}" in text for text in settings)
    load(ROOT / f"recipes/{CLAIMS[claim].arms[arm].recipe}.yaml", settings, check_packages=False)


def test_by_itself_the_worst_seed_counts():
    must, known = claims.Must(arm="a", least=0.5), records(a=[[1, 1], [1, 0], [0, 0]])
    assert verdicts.judge(a_claim(), must, known).holds is False
    assert "0 on the worst of 3" in verdicts.judge(a_claim(), must, known).text
    assert verdicts.judge(a_claim(), claims.Must(arm="a", least=0.0, most=1.0), known).holds is True
    assert verdicts.judge(a_claim(), claims.Must(arm="a", most=0.9), known).holds is False


def test_over_a_shared_base_the_difference_is_paired_by_episode():
    # a is better than b by 1 in each second episode: 0.5 in every seed, whatever is drawn of equal halves.
    known = records(a=[[1, 1, 1, 1]] * 3, b=[[0, 1, 0, 1]])
    must = claims.Must(arm="a", over="b", least=0.5, low=0.1)
    verdict = verdicts.judge(a_claim(), must, known)
    assert verdict.holds is True and "+0.5 (95 %" in verdict.text
    assert verdicts.judge(a_claim(), claims.Must(arm="a", over="b", least=0.51), known).holds is False
    assert verdicts.judge(a_claim(), claims.Must(arm="a", over="b", low=0.5), known).holds is False


def test_a_share_of_another_arm():
    # 0.8 x 100 = 80: 81 loses less than a fifth, 79 more; nothing varies, so neither does a draw.
    claim = a_claim(of="return")
    must = claims.Must(arm="a", over="b", times=0.8, low=0.0)
    assert verdicts.judge(claim, must, records(a=[[81.0]] * 3, b=[[100.0]])).holds is True
    assert verdicts.judge(claim, must, records(a=[[79.0]] * 3, b=[[100.0]])).holds is False


def test_figures_of_runs_and_missing_seeds():
    known = records(a=[[1], [1], [1]])
    assert verdicts.judge(a_claim(), claims.Must(arm="a", of="lag_mean", least=3), known).holds is True
    assert verdicts.judge(a_claim(), claims.Must(arm="a", of="lag_mean", least=3.1), known).holds is False
    unknown = claims.Must(arm="a", of="tokens_learned", least=3)
    assert verdicts.judge(a_claim(), unknown, known).holds is None
    del known["a"]["2"]
    verdict = verdicts.judge(a_claim(), claims.Must(arm="a", least=0), known)
    assert verdict.holds is None and "seeds are missing" in verdict.text


def test_unknown_arms_and_fields_are_refused(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text("x: {title: t, of: return, seeds: [1], arms: {a: {recipe: r, start: c}}}")
    with pytest.raises(ValueError, match="x names 'c'; its arms are a"):
        claims.read(path)
    path.write_text("x: {title: t, of: return, seeds: [1], arms: {a: {recipe: r, sets: []}}}")
    with pytest.raises(ValidationError, match="sets"):
        claims.read(path)


def test_what_is_known_is_kept_until_recipe_settings_or_base_change(tmp_path):
    def key(arm, **changes):
        return runs.Trainer("x", a_claim(**changes), runs.Ledger(tmp_path / "x"), tmp_path, False).key(arm)

    based = {"a": {"recipe": "toy_reach_sft", "start": "b"}, "b": {"recipe": "toy_reach_sft"}}
    other = {"a": {"recipe": "toy_reach_sft", "start": "b"}, "b": {"recipe": "toy_reach_sft", "set": ["x=1"]}}
    assert key("a") == key("a") != key("a", episodes=99)
    assert key("a", arms=based) != key("a", arms=other)
    ledger = runs.Ledger(tmp_path / "curves.json")
    ledger.keep("x", "a", 1, {"key": key("a"), "commit": "c", "values": [1.0]})
    read = runs.Ledger.read(tmp_path / "curves.json")
    assert read.find("x", "a", 1) == {"key": key("a"), "commit": "c", "values": [1.0]}
    # Known: nothing is run, although there is no such folder to run in.
    runs.Trainer("x", a_claim(), read, tmp_path / "nowhere", False).measure("a", 1)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_smoke_run_has_each_recipe_once_and_what_it_begins_with(claim, tmp_path):
    smoked = claims.smoked(CLAIMS[claim])
    recipes = [arm.recipe for arm in smoked.arms.values()]
    assert sorted(recipes) == sorted({arm.recipe for arm in CLAIMS[claim].arms.values()})
    trainer = runs.Trainer(claim, smoked, runs.Ledger(tmp_path / "x"), tmp_path, True)
    assert all(set(trainer._uses(arm)) <= set(smoked.arms) for arm in smoked.arms.values())
    filled = [trainer._filled(text, 1) for arm in smoked.arms.values() for text in arm.set]
    assert not any(f"{{{name}}}" in text for text in filled for name in CLAIMS[claim].arms)
    assert smoked.seeds == CLAIMS[claim].seeds[:1] and smoked.episodes == 10


def test_shams_keep_what_they_say():
    flags = {"terminated": np.array([[0, 1, 1, 1]], bool), "truncated": np.zeros((1, 4), bool)}
    columns = {"reward": np.array([[[9.0, 1.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0]]], np.float32), **flags}
    total = columns["reward"].sum(-1)
    assert (total + shams.nothing(columns) == 0).all()
    seen = {tuple((total + shams.shuffled(columns))[0]) for _ in range(200)}
    assert len(seen) == 6 and all(each[0] == 10 and sorted(each[1:]) == [1, 2, 4] for each in seen)
    assert len({tuple((total + shams.mixed(columns))[0]) for _ in range(500)}) == 24


def test_measures_by_hand():
    assert measures.tokens_learned([{"tokens": 3.0}, {"tokens": None}, {}, {"tokens": 4.0}], []) == 7
    shown = [{"seed": seed, "success": True} for seed in range(200)]
    assert measures.classes_covered([], shown) == 10
    assert measures.classes_covered([], [*shown[:1], *({**each, "success": False} for each in shown)]) == 1
    assert measures.classes_covered([], []) == 0


def test_measures_have_names():
    assert {name for claim in CLAIMS.values() for name in claim.measures} == set(measures.MEASURES)


def test_report_names_what_was_missed(tmp_path):
    claim = a_claim(must=[claims.Must(arm="a", least=0.9)])
    record = {
        "values": [1.0, 0.0], "figures": {"env_steps": 1000, "wall_s": 2.0},
        "curve": [], "evaluations": [[500, 0.2]], "date": "2026-12-02", "commit": "abc", "machine": "m",
    }  # fmt: skip
    known = json.loads(json.dumps({"x": {"a": {str(seed): record for seed in (1, 2, 3)}}}))
    summary = report.write({"x": claim}, known, tmp_path)
    assert summary == "x: a, at least 0.9: 0.5 on the worst of 3: **missed**"
    text = (tmp_path / "curves.md").read_text()
    assert "| `a` | 50 %, 50 %, 50 % | 50 % | 1,000 | 2 | 2026-12-02, abc |" in text
    assert (tmp_path / "x.png").stat().st_size > 1000
