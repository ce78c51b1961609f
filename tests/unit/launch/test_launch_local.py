"""The local launcher with real processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from rollbus_core.paths import RunPaths
from rollbus_launch.launchers.base import ProcessSpec
from rollbus_launch.launchers.local import LocalLauncher, ProcessFailed
from rollbus_launch.processes import children
from rollbus_launch.processes.last_words import about


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A launcher whose processes run ``body`` instead of a service."""
    monkeypatch.setenv("ROLLBUS_RUNTIME_DIR", str(tmp_path / "shm"))
    paths = RunPaths(tmp_path / "run")
    paths.create()
    script = tmp_path / "body.py"
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\nexec {sys.executable} {script} $*\n")
    fake.chmod(0o755)
    monkeypatch.setattr(children.sys, "executable", str(fake))
    ended: list[tuple[str, str]] = []
    made = LocalLauncher(paths, max_restarts=2, on_exit=lambda spec, pid, why: ended.append((spec.name, why)))
    made.script, made.ended = script, ended
    yield made
    made.down(1.0)


def poll_until(launcher: LocalLauncher, condition, timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        launcher.poll()
        time.sleep(0.02)


def test_a_killed_process_comes_back(launcher: LocalLauncher) -> None:
    launcher.script.write_text("import time; time.sleep(60)")
    launcher.up(ProcessSpec(("actor",), 0))
    pid = launcher.ps()[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    poll_until(
        launcher, lambda: launcher.ps()[0]["restarts"] == 1 and launcher.ps()[0]["pid"] not in (None, pid)
    )
    again = "actor-0 starts again in 0.2 s (1 of 2 restarts)"
    assert launcher.ended == [("actor-0", f"actor-0 ended by signal SIGKILL\n{again}")]


def test_who_ends_in_order_without_being_asked_comes_back(launcher: LocalLauncher) -> None:
    launcher.script.write_text("")
    launcher.up(ProcessSpec(("hub", "actor"), 0))
    launcher.up(ProcessSpec(("learner",), 0))
    poll_until(launcher, lambda: launcher.ps()[0]["restarts"] == 1)
    assert launcher.ps()[1] == {"name": "learner-0", "pid": None, "restarts": 0, "state": "ended"}
    (_, why) = next(each for each in launcher.ended if each[0] == "hub+actor-0")
    assert why.startswith("hub+actor-0 ended in order, but the run did not ask it to (SIGTERM from somebody")
    assert "hub+actor-0 starts again in 0.2 s (1 of 2 restarts)" in why


def test_who_is_scaled_away_was_asked_to_end(launcher: LocalLauncher) -> None:
    ready = launcher.script.with_name("ready")
    launcher.script.write_text(
        "import pathlib, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        f"pathlib.Path({str(ready)!r}).touch()\ntime.sleep(60)"
    )
    launcher.up(ProcessSpec(("actor",), 0))
    poll_until(launcher, ready.exists)
    launcher.scale("actor", 0)
    poll_until(launcher, lambda: bool(launcher.ended))
    assert launcher.ended == [("actor-0", "actor-0 ended by exit code 0")]
    assert launcher.ps()[0]["state"] == "ended" and launcher.ps()[0]["restarts"] == 0


def test_who_ends_with_all_others_is_no_failure(launcher: LocalLauncher) -> None:
    """`rollbus stop` reaches the services before the launcher."""
    launcher.script.write_text("")
    launcher.up(ProcessSpec(("hub",), 0))
    poll_until(launcher, lambda: launcher.ps()[0]["pid"] is None)
    launcher.down(1.0)
    assert launcher.ended == [] and launcher.ps()[0]["restarts"] == 0


def test_the_budget_ends_and_the_reason_is_told(launcher: LocalLauncher) -> None:
    launcher.script.write_text("import sys; print('broken pipe to the arm', file=sys.stderr); sys.exit(3)")
    launcher.up(ProcessSpec(("hub",), 1))
    with pytest.raises(ProcessFailed, match="broken pipe to the arm"):
        poll_until(launcher, lambda: False)
    assert len(launcher.ended) == 3


def test_an_end_without_a_report_is_told_with_the_words_of_this_start_alone(launcher: LocalLauncher) -> None:
    launcher.script.write_text(
        "import os, sys\nlog = sys.stderr.write\n"
        "log('08:49:10 hub-0 started pid=1\\n08:49:11 hub-0 WARNING joint 3 slow\\n')\n"
        "log('start ' + str(os.getpid()) + '\\n'); sys.stderr.flush(); os.abort()"
    )
    launcher._about = lambda process: f", last heard of in stage 'run' ({process.name})"
    launcher.up(ProcessSpec(("hub",), 0))
    with pytest.raises(ProcessFailed) as raised:
        poll_until(launcher, lambda: False)
    told = "hub-0 ended by signal SIGABRT, last heard of in stage 'run' (hub-0); its last words:\n"
    assert str(raised.value).startswith(told + "08:49:11 hub-0 WARNING joint 3 slow\nstart ")
    assert str(raised.value).count("start ") == 1 and len({why for _, why in launcher.ended}) == 3


def test_who_ends_without_a_word_has_its_log_named(launcher: LocalLauncher) -> None:
    launcher.script.write_text(
        "import os, sys; print('08:49:10 hub-0 started', file=sys.stderr); os._exit(3)"
    )
    launcher.up(ProcessSpec(("hub",), 0))
    with pytest.raises(ProcessFailed) as raised:
        poll_until(launcher, lambda: False)
    log = launcher.paths.logs / "hub-0.stderr"
    assert str(raised.value) == f"hub-0 ended by exit code 3; it said nothing; its log: {log}"


def test_what_is_known_of_a_process_that_ended() -> None:
    stages = {"hub-0": "first steps", "actor-0": "run", "hub-1": "run", "learner-0": "sample"}
    members = [{"name": name, "state": "run", "stage": stage} for name, stage in stages.items()]
    members[2]["state"] = "failed"  # an earlier start
    told = about(ProcessSpec(("hub", "actor"), 0), members, "inline")
    assert told.startswith(", last heard of in stage 'first steps' (hub-0) and 'run' (actor-0); its env")
    assert "env.placement=workers" in told
    assert about(ProcessSpec(("hub",), 1), members, "workers") == ""
    learner = about(ProcessSpec(("learner",), 0), members, "inline")
    assert learner == ", last heard of in stage 'sample' (learner-0)"


def test_one_of_several_is_quarantined_and_scaling_replaces_it(launcher: LocalLauncher) -> None:
    launcher.script.write_text("import sys, time\nif sys.argv[6] == '1': sys.exit(3)\ntime.sleep(60)")
    for index in range(2):
        launcher.up(ProcessSpec(("actor",), index))
    poll_until(launcher, lambda: launcher.ps()[1]["state"] == "quarantined")
    assert launcher.ps()[0]["state"] == "up" and launcher.goes_on(ProcessSpec(("actor",), 1))
    assert "is not started again; the others go on" in launcher.ended[-1][1]
    launcher.script.write_text("import time; time.sleep(60)")
    launcher.scale("actor", 2)
    poll_until(launcher, lambda: [p["state"] for p in launcher.ps()] == ["up", "up"])


def test_a_full_disk_is_no_reason_to_give_up(launcher: LocalLauncher) -> None:
    mark = launcher.paths.root / "room"
    launcher.script.write_text(
        f"import os, sys, time\nif not os.path.exists({str(mark)!r}): sys.exit(75)\ntime.sleep(60)"
    )
    launcher.up(ProcessSpec(("learner",), 0))
    poll_until(launcher, lambda: len(launcher.ended) > launcher.max_restarts + 1)
    mark.touch()
    poll_until(launcher, lambda: launcher.ps()[0]["state"] == "up" and launcher.ps()[0]["restarts"] == 0)


def test_an_error_of_the_user_is_not_retried(launcher: LocalLauncher) -> None:
    path = launcher.paths.failure("hub-0")
    launcher.script.write_text(
        "import json, sys\n"
        "failure = dict(service='hub-0', stage='build', error='no such port', fatal=True, traceback='')\n"
        f"open({str(path)!r}, 'w').write(json.dumps(failure))\nsys.exit(2)"
    )
    launcher.up(ProcessSpec(("hub",), 0))
    with pytest.raises(ProcessFailed, match="hub-0 failed in stage build: no such port"):
        poll_until(launcher, lambda: False)
    assert len(launcher.ended) == 1


def test_scale_up_and_down(launcher: LocalLauncher) -> None:
    launcher.script.write_text("import time; time.sleep(60)")
    launcher.up(ProcessSpec(("actor",), 0))
    launcher.scale("actor", 3)
    assert [p["name"] for p in launcher.ps()] == ["actor-0", "actor-1", "actor-2"]
    launcher.scale("actor", 1)
    poll_until(launcher, lambda: [p["state"] for p in launcher.ps()] == ["up", "ended", "ended"])


def test_scaling_leaves_other_services_as_they_are(launcher: LocalLauncher) -> None:
    launcher.script.write_text("import time; time.sleep(60)")
    launcher.up(ProcessSpec(("hub", "actor"), 0))
    launcher.scale("actor", 3)
    assert [p["name"] for p in launcher.ps()] == ["hub+actor-0", "actor-1", "actor-2"]
    launcher.scale("actor", 2)
    poll_until(launcher, lambda: [p["state"] for p in launcher.ps()] == ["up", "up", "ended"])
    launcher.scale("actor", 1)
    poll_until(launcher, lambda: [p["state"] for p in launcher.ps()] == ["up", "ended", "ended"])
    launcher.scale("actor", 2)
    assert [p["state"] for p in launcher.ps()] == ["up", "up", "ended"]


def test_scaling_again_while_some_leave_counts_those_that_stay(launcher: LocalLauncher) -> None:
    launcher.script.write_text(
        "import signal, time\nsignal.signal(15, lambda *_: (time.sleep(1), exit()))\nprint(1, flush=True)\n"
        "time.sleep(60)"
    )
    launcher.scale("actor", 4)
    logs = [launcher.paths.logs / f"actor-{index}.stderr" for index in range(4)]
    poll_until(launcher, lambda: all(log.exists() and log.stat().st_size for log in logs))
    launcher.scale("actor", 1)
    launcher.scale("actor", 2)
    poll_until(
        launcher, lambda: [p["state"] for p in launcher.ps()] == ["up", "ended", "ended", "ended", "up"]
    )


def test_what_waits_for_its_next_start_can_be_scaled_away(launcher: LocalLauncher) -> None:
    launcher.script.write_text("import sys, time\nif sys.argv[6] == '1': sys.exit(3)\ntime.sleep(60)")
    launcher.scale("actor", 2)
    poll_until(launcher, lambda: launcher.ended)
    launcher.scale("actor", 1)
    assert [p["state"] for p in launcher.ps()] == ["up", "ended"]
    time.sleep(0.3)
    launcher.poll()
    assert len(launcher.ended) == 1


def test_many_that_ignore_sigterm_take_no_longer_than_one(launcher: LocalLauncher) -> None:
    launcher.script.write_text(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )
    launcher.scale("actor", 12)
    logs = [launcher.paths.logs / f"actor-{index}.stderr" for index in range(12)]
    poll_until(launcher, lambda: all(log.exists() and log.stat().st_size for log in logs))
    started = time.monotonic()
    launcher.down(0.5)
    assert time.monotonic() - started < 1.0
    assert {p["state"] for p in launcher.ps()} == {"ended"}


def test_a_process_that_ignores_sigterm_is_killed_in_time(launcher: LocalLauncher) -> None:
    launcher.script.write_text(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )
    launcher.up(ProcessSpec(("actor",), 0))
    log = launcher.paths.logs / "actor-0.stderr"
    poll_until(launcher, lambda: log.exists() and log.stat().st_size > 0)
    started = time.monotonic()
    launcher.down(0.5)
    assert time.monotonic() - started < 2
    assert launcher.ps()[0]["pid"] is not None and launcher.ps()[0]["state"] == "ended"
