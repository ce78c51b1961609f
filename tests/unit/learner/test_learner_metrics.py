"""Metrics, logs and audits as people and programs read them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from learner_kit import SlabWriter, fill_counting, make_layout

from rollbus_core.log import get_logger
from rollbus_core.metrics import MetricsWriter, summary
from rollbus_core.paths import RunPaths
from rollbus_core.slabs import SlabFolder
from rollbus_core.version import Version
from rollbus_learner.audit import Audit
from rollbus_learner.slab_views import Slabs
from rollbus_wire.messages import Batch

ROOT = Path(__file__).parents[3]


def row(time, steps, update, version="0.1", **more):
    return {"time": time, "env_steps": steps, "update": update, "version": version, **more}


def test_the_rate_leaves_out_start_up_and_the_time_between_starts():
    rows = [
        row(100.0, 500, 1, "0.1", lag_mean=0.0, lag_max=0, episodes=0),
        row(101.0, 1000, 2, "0.2", lag_mean=1.0, lag_max=1, episodes=1, return_mean=8.0),
        row(103.0, 2000, 3, "0.3", lag_mean=0.5, lag_max=2, episodes=3, return_mean=4.0),
        row(500.0, 1500, 3, "1.3", lag_mean=0.5, lag_max=1, episodes=0),
        row(502.0, 2500, 4, "1.4", lag_mean=0.5, lag_max=1, episodes=0),
    ]
    found = summary(rows)
    assert found["env_steps_per_s"] == (1500 + 1000) / (3 + 2)
    assert found == {
        "env_steps": 2500, "env_steps_per_s": 500.0, "updates": 4, "training_s": 5.0, "mean_return": 5.0,
        "lag": 0.5, "lag_max": 2,
    }  # fmt: skip


def test_a_summary_of_little():
    assert summary([])["env_steps"] == 0 and summary([])["mean_return"] is None
    one = summary([row(1.0, 10, 1)])
    assert one["env_steps_per_s"] == 0.0 and one["env_steps"] == 10 and one["lag_max"] is None


def test_lines_and_event_files(tmp_path):
    paths = RunPaths(tmp_path)
    writer = MetricsWriter(paths)
    writer.write(row(1.5, 10, 1, loss=0.5, bad=float("nan")))
    writer.write({"env_steps": 20, "update": 2, "version": "0.2", "loss": 0.25})
    writer.close()
    first, second = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    assert first["bad"] is None and first["time"] == 1.5 and second["time"] > 1e9
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    (file,) = paths.tensorboard.iterdir()
    events = [event for event in loader.LegacyEventFileLoader(str(file)).Load() if event.summary.value]
    assert [event.step for event in events] == [10, 20]
    values = [{v.tag: v.simple_value for v in event.summary.value} for event in events]
    assert values == [{"update": 1.0, "loss": 0.5}, {"update": 2.0, "loss": 0.25}]
    assert events[0].wall_time == 1.5


def test_no_tensorboard_is_told_once(tmp_path, monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "tensorboard":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    told = []
    writer = MetricsWriter(RunPaths(tmp_path), on_missing=told.append)
    for update in range(3):
        writer.write(row(1.0, 10, update))
    writer.close()
    assert len(told) == 1 and "rollbus[records]" in told[0]
    assert len(RunPaths(tmp_path).metrics.read_text().splitlines()) == 3


def test_every_metric_of_a_row_is_documented():
    learner = (ROOT / "services/learner/rollbus_learner/learner.py").read_text()
    described = (ROOT / "docs/metrics.md").read_text()
    source = learner[learner.index("def _record") : learner.index("# --- weights")]
    source += (ROOT / "services/learner/rollbus_learner/batch_metrics.py").read_text()
    names = set(re.findall(r'"([a-z_]+)":', source)) - {"once", "at_end"}
    assert {"env_steps", "gather_s", "return_mean", "samples"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in described] == []


def test_logs_are_json_lines_and_short_on_the_console(tmp_path, capsys):
    paths = RunPaths(tmp_path)
    log = get_logger(paths, "learner-0")
    log.debug("detail")
    log.info("saved", checkpoint="c", text="x" * 500)
    get_logger(paths, "learner-0").warning("odd", why="because")
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed")
    lines = [json.loads(line) for line in (paths.logs / "learner-0.jsonl").read_text().splitlines()]
    assert [(line["level"], line["event"]) for line in lines] == [
        ("debug", "detail"), ("info", "saved"), ("warning", "odd"), ("error", "failed"),
    ]  # fmt: skip
    assert lines[1]["text"] == "x" * 500 and lines[1]["service"] == "learner-0"
    assert "ValueError: boom" in lines[3]["exception"] and lines[0]["timestamp"].endswith("Z")
    shown = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d learner-0 saved checkpoint=c", shown[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d learner-0 WARNING odd why=because", shown[1])


def test_the_audit_tells_rows_ends_and_versions(tmp_path):
    slab = SlabWriter(tmp_path, make_layout(4, 2), 1)
    cell = slab.cell(0)
    fill_counting(cell, 7.0)
    cell["episode"][:, 0], cell["step"][:, 0] = [7, 7, 9, 9], [5, 6, 0, 1]
    cell["terminated"][1, 0] = cell["truncated"][3, 1] = cell["interrupted"][1, 1] = True
    cell["version"][...] = Version(1, 3).pack()
    cell["version"][0, 0] = Version(0, 9).pack()
    audit = Audit(tmp_path / "audit")
    item = slab.chunk(0, [4, 3], slice="hub-0/1", sequence=12)
    slabs = Slabs(SlabFolder(tmp_path))
    audit.began(Version(1, 3), 4)
    audit.applied(slabs, Batch("train", 5, [item]), Version(1, 4), {})
    audit.applied(slabs, Batch("train", 6, [item]), Version(1, 5), {0: "corrupt"})
    slab.generation(0, 99)
    audit.applied(slabs, Batch("train", 7, [item]), Version(1, 6), {})
    audit.close()
    assert json.loads((tmp_path / "audit" / "lineages.jsonl").read_text()) == {
        "version": [1, 3], "applied": 4,
    }  # fmt: skip
    unread = [json.loads(line) for line in (tmp_path / "audit" / "unread.jsonl").read_text().splitlines()]
    assert [(line["batch"], line["reason"]) for line in unread] == [(6, "corrupt"), (7, "stale")]
    (line,) = (tmp_path / "audit" / "applied.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "batch": 5, "version": [1, 4], "sequence": 12, "slice": "hub-0/1",
        "rows": [[[7, 5, 2], [9, 0, 2]], [[8, 5, 3]]],
        "terminated": [[1, 0]], "truncated": [], "interrupted": [[1, 1]], "versions": ["0.9", "1.3"],
    }  # fmt: skip
    assert np.array(json.loads(line)["rows"][1][0])[2] == 3
