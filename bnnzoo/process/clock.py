"""The start time of a command, for the timings of its run. It is read before any slow import."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_MOST_SECONDS = 600.0
"""Largest age of the process at which its start is the start of the command.

An older process has done other work before, so its time starts at the first line of the command.
"""
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
    """Return the start time of the run, as a value of `time.perf_counter`.

    For the first run of a command it is the start of the command. For later runs and in Python it is the current time.
    """
    return _run_start.pop() if _run_start else time.perf_counter()
