"""What the user of `run_env` is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from wire_examples import Walk

from rollbus_wire import telling
from rollbus_wire.client import Client
from rollbus_wire.errors import WireError
from rollbus_wire.peer import run_env

SAYS = """
import sys
sys.path.insert(0, %r)
from rollbus_wire import telling
from rollbus_wire.peer import run_env
from wire_examples import Walk
telling.WAITS_S = 0.2
run_env(Walk, sys.argv[1], num_rows=2)
"""


def test_a_script_says_that_it_waits_is_connected_and_has_lost_its_hub(endpoint):
    script = [sys.executable, "-c", SAYS % str(Path(__file__).parent), endpoint]
    peer = subprocess.Popen(script, stderr=subprocess.PIPE, text=True)
    try:
        assert peer.stderr.readline().startswith("rollbus: no hub answers at %s; waiting" % endpoint)
        with Client(endpoint) as client:
            client.wait_peer()
            said = "rollbus: connected to the hub at %s: it has 2 rows of Walk" % endpoint
            assert peer.stderr.readline().strip() == said
            client.close("enough")
        said = "rollbus: the hub at %s is gone: it says goodbye: enough" % endpoint
        assert peer.stderr.read().strip() == said and peer.wait(10) == 0
    finally:
        peer.kill()
        peer.wait()


def test_what_is_said_goes_to_the_log_where_there_is_one(endpoint, caplog, capsys):
    caplog.set_level("INFO", "rollbus.peer")
    stopped = iter([False, True])
    run_env(Walk, endpoint, stop=lambda: next(stopped))
    telling.say("hello %d", 3)
    assert "hello 3" in caplog.messages and capsys.readouterr().err == ""


def test_a_forgotten_port_is_said():
    with pytest.raises(WireError, match="'tcp://127.0.0.1' has no port; give tcp://HOST:PORT, such as"):
        run_env(Walk, "tcp://127.0.0.1")
