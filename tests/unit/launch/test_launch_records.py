"""The summary of a run is of the whole lines of metrics.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

from rollbus_core.config.models import RunConfig
from rollbus_core.paths import RunPaths
from rollbus_launch.records import write_summary


def test_damaged_lines_change_no_figure(tmp_path: Path) -> None:
    paths, run = RunPaths(tmp_path), RunConfig(total_steps=100)
    rows = [{"update": n, "env_steps": 10 * n, "time": 2.0 * n, "version": f"0.{n}"} for n in (1, 2, 3)]
    paths.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    good = write_summary(paths, wall_s=1.0, stopped_by="x", run=run)
    assert good["env_steps_per_s"] == 5.0
    with open(paths.metrics, "ab") as file:
        file.write(b"\xff{{{\n" * 50 + b'{}\n[]\n{"update": 4, "env_steps": "x"}\n')
    assert write_summary(paths, wall_s=1.0, stopped_by="x", run=run) == good
