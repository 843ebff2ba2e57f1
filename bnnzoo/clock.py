"""When the command began whose run accounts for its seconds: no library is imported before the first look."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_MOST_SECONDS = 600.0
"""A process that is older did something else before: it counts from its first line."""
_began: list[float] = []


def begin() -> None:
    """Count from the start of this process, at the first line of its command; from now where the system hides it."""
    started = now = time.perf_counter()
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        # The 22nd word, in ticks since the machine started; the second, in brackets, may hold spaces.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        started = now - age if 0 <= age < _MOST_SECONDS else now
    _began[:] = [started]


def began() -> float:
    """The `time.perf_counter` at which the command began, for its first run; now, for a later one and in Python."""
    return _began.pop() if _began else time.perf_counter()
