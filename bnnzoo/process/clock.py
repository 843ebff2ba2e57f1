"""The start time of a command, for the timings of its run. A command sets the time before it imports slow packages."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_MAX_SECONDS = 600.0
"""Largest time in seconds between the start of the process and the first line of the command.

If the process is older, it did other work before the command. The command then starts at its first line.
"""
_run_start: list[float] = []


def set_run_start() -> None:
    """Set the start time of the command to the start of this process. It must be called in the first line of a command.

    The start time is the current time if the system does not report the start of the process, or if the process started
    more than `_MAX_SECONDS` ago.
    """
    start_time = current_time = time.perf_counter()
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        # Field 22 is the start time in clock ticks since boot. The text is split after field 2, which ends with a
        # bracket, because this field can contain spaces.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        start_time = current_time - age if 0 <= age < _MAX_SECONDS else current_time
    _run_start[:] = [start_time]


def run_start() -> float:
    """Return the start time of the run, as a value of `time.perf_counter`.

    The first run of a command starts with the command. Later runs, and runs from Python, start at the current time.
    """
    return _run_start.pop() if _run_start else time.perf_counter()
