"""Protection of the standard streams: the command continues if its output cannot be written."""

from __future__ import annotations

import io
import os
import select
import sys
from functools import cache
from typing import Any


@cache
def protect_standard_streams() -> None:
    """Replace stderr by a stream whose writes never fail. Repeated calls have no effect.

    Streams that the parent process has closed are opened as the null device. Otherwise the next file that is opened,
    such as the file of a run, would get the file descriptor of the stream and receive its output.
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
    """Whether the program that reads stdout has ended, or has closed its end of the pipe."""
    poll = select.poll()
    poll.register(_stdout[-1], 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


_stdout = [1]
"""File descriptors of stdout. The last one is a copy, because descriptor 1 can be replaced after a broken pipe."""


class _Lossy(io.FileIO):
    """A file that discards data that cannot be written, for example because the disk is full."""

    def write(self, data: Any, /) -> int:
        """Write the data and return the number of bytes. If the data cannot be written, discard them."""
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes
