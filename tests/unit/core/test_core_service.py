"""The host's loop: order of life, waiting, draining within bounds."""

import time

import pytest

from rollbus_core.service import Service, run
from rollbus_core.version import Version


class Recorder(Service):
    def __init__(self, name, log, turns=3, drains=True, fails_at=-1):
        super().__init__(name)
        self.log, self.turns, self.drains, self.fails_at = log, turns, drains, fails_at

    def start(self, poller):
        super().start(poller)
        self.log.append(f"{self.name} start")
        self.state = "run"

    def poll(self):
        self.turns -= 1
        if self.turns == self.fails_at:
            raise RuntimeError("broken")
        if self.turns == 0:
            self.state = "stopped"
        return False

    def wake_in_s(self):
        return 0.001

    def drain(self):
        self.log.append(f"{self.name} drain")
        if self.drains:
            super().drain()

    def stop(self):
        self.log.append(f"{self.name} stop")


def test_services_stop_in_the_reverse_order_of_their_start():
    log = []
    run([Recorder("a", log), Recorder("b", log, turns=5)], on_ready=lambda: log.append("ready"))
    assert log == ["a start", "b start", "ready", "b stop", "a stop"]


def test_a_stop_drains_and_is_bounded():
    log, started = [], time.monotonic()
    run([Recorder("a", log, turns=10**9, drains=False)], should_stop=lambda: True, drain_s=0.1)
    assert 0.1 <= time.monotonic() - started < 1
    assert log == ["a start", "a drain", "a stop"]


def test_a_failure_still_stops_every_service():
    log = []
    with pytest.raises(RuntimeError, match="broken"):
        run([Recorder("a", log, turns=9), Recorder("b", log, fails_at=1)])
    assert log[-2:] == ["b stop", "a stop"]


def test_versions_order_by_lineage_then_number():
    old, resumed = Version(0, 900), Version(1, 500)
    assert old < resumed and old.pack() < resumed.pack()
    assert Version.unpack(resumed.pack()) == resumed and str(resumed) == "1.500"
    assert resumed.next() == Version(1, 501)
