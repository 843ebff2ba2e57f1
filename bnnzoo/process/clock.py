"""The start time of the command, for the timings of its run. Nothing heavy is imported before the first reading."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_MOST_SECONDS = 600.0
"""Limit for the age of the process. An older process did other work before, so its time counts from the first line."""
_run_start: list[float] = []


def set_run_start() -> None:
    """Set the start time to the start of this process, or to now if the system does not report it.

    The first line of the command calls this function.
    """
    start_time = current_time = time.perf_counter()
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        # Field 22 is the start time in clock ticks since boot. Field 2, in brackets, may contain spaces.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        start_time = current_time - age if 0 <= age < _MOST_SECONDS else current_time
    _run_start[:] = [start_time]


def run_start() -> float:
    """Return the `time.perf_counter` at which the run began.

    It is the start of the command for its first run, and now for later runs and in Python.
    """
    return _run_start.pop() if _run_start else time.perf_counter()
