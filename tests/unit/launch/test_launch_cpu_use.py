"""CPU time of processes and of the machine, against work that is known."""

from __future__ import annotations

import os
import threading
import time

import pytest

from rollbus_launch.processes import cpu_use
from rollbus_launch.processes.cpu_use import Used

pytestmark = pytest.mark.skipif(
    not cpu_use.told(), reason="this system does not tell the CPU time of threads"
)
WORK_S = 0.2


def work() -> None:
    until = time.thread_time() + WORK_S
    while time.thread_time() < until:
        pass


def test_work_is_booked_on_the_thread_that_does_it() -> None:
    stay = threading.Event()
    other = threading.Thread(target=lambda: (work(), stay.wait()))
    before, machine_s, own_s = cpu_use.used(os.getpid()), cpu_use.machine_s(), time.process_time()
    other.start()
    work()
    while time.process_time() - own_s < 2 * WORK_S:
        time.sleep(0.01)
    now = cpu_use.used(os.getpid()).since(before)
    machine_s = cpu_use.machine_s() - machine_s
    stay.set()
    other.join()
    assert now.main_s == pytest.approx(WORK_S, abs=0.1) and now.others_s == pytest.approx(WORK_S, abs=0.1)
    # The machine counts in ticks, and does all that others do besides.
    assert machine_s > 1.2 * WORK_S


def test_what_was_used_before_does_not_count() -> None:
    assert Used(5.0, 7.0).since(Used(2.0, 3.0)) == Used(3.0, 4.0)
