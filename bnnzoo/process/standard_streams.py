"""Protection of the standard streams: output that cannot be written does not stop the work."""

from __future__ import annotations

import io
import os
import select
import sys
from functools import cache
from typing import Any


@cache
def protect_standard_streams() -> None:
    """Make writing to stderr never fail, until the process ends. Repeated calls have no effect.

    If the parent process closed a stream, its file descriptor is free. The next opened file, such as a run's, would get
    the descriptor and receive all output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    _stdout.append(os.dup(1))
    stderr: Any = sys.stderr
    encoding = "utf-8" if stderr is None else stderr.encoding
    raw = io.BufferedWriter(_Lossy(2, "wb", closefd=False))
    sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)


def has_no_reader() -> bool:
    """Whether the reader of stdout has closed it."""
    poll = select.poll()
    poll.register(_stdout[-1], 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


_stdout = [1]
"""File descriptors of stdout; the last one is the original, because a broken pipe may be replaced by another file."""


class _Lossy(io.FileIO):
    """A file that accepts all data and drops data that cannot be written, as on a full disk."""

    def write(self, data: Any, /) -> int:
        """Write the data or drop them; return the number of bytes."""
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes
