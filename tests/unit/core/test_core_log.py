"""What goes to the logs of a service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SERVICE = """
import logging, sys
from pathlib import Path
from rollbus_core.log import get_logger, take_in_standard
from rollbus_core.paths import RunPaths
from rollbus_wire.errors import WireError
from rollbus_wire.rejects import Rejects

paths = RunPaths(Path(sys.argv[1]))
paths.create()
take_in_standard(get_logger(paths, "broker-0"))
Rejects().add(WireError("it is no map"), b"peer", "tcp://0.0.0.0:1")
logging.getLogger("their.package").info("not for us")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("their.package").exception("%d failed", 2)
"""


def test_warnings_of_libraries_are_in_the_log_of_the_service(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    refused, failed = map(json.loads, (tmp_path / "logs" / "broker-0.jsonl").read_text().splitlines())
    assert refused["event"].startswith("tcp://0.0.0.0:1: a message was refused")
    assert (refused["level"], refused["logger"]) == ("warning", "rollbus.wire") and refused["timestamp"]
    assert (failed["event"], failed["level"]) == ("2 failed", "error")
    assert "ZeroDivisionError" in failed["exception"]
    first, second, *_ = done.stderr.splitlines()
    assert "broker-0 WARNING tcp://0.0.0.0:1: a message was refused" in first and "2 failed" in second
