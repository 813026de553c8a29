"""Do tests of time allow what the machine took, and nothing on one that took nothing?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.machine_noise import Waits, allowed_s, allowing

if not Path("/proc/self/schedstat").exists():
    pytest.skip("this system does not count how long threads wait", allow_module_level=True)


def busy_s(seconds: float) -> float:
    """Compute for so long a time of this thread's CPU; return how much longer that took."""
    began, computed = time.perf_counter(), time.thread_time()
    while time.thread_time() - computed < seconds:
        pass
    return time.perf_counter() - began - (time.thread_time() - computed)


def test_what_other_programs_took_of_a_measurement_is_allowed_in_its_check():
    """Beside as many busy loops as there are cores, and only within the check."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        waits = Waits()
        late_s = busy_s(0.2)
        with allowing(waits):
            allowed = allowed_s()
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert late_s > 0.01
    assert allowed >= late_s
    assert allowed_s() == 0.0


def test_a_sleep_is_no_wait_for_a_cpu():
    """A measurement that waits for its own reasons is allowed next to nothing for them."""
    waits = Waits()
    time.sleep(0.2)
    assert waits.seconds() < 0.1
