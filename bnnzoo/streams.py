"""The standard streams of a command, whatever it was started with: what nobody can read stops no work."""

from __future__ import annotations

import io
import os
import select
import sys
from functools import cache
from typing import Any


@cache
def secure() -> None:
    """Let nothing that is written to stderr fail, from here to the end of the process; once.

    A stream that was closed by who started us leaves its number free: the next file to be opened, such as a run's,
    would get it, and with it all that is said.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    _stdout.append(os.dup(1))
    known: Any = sys.stderr
    encoding = "utf-8" if known is None else known.encoding
    raw = io.BufferedWriter(_Lossy(2, "wb", closefd=False))
    sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)


def has_no_reader() -> bool:
    """Whether whoever read our stdout has left."""
    poll = select.poll()
    poll.register(_stdout[-1], 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


_stdout = [1]
"""Last what the command began with: who meets a broken pipe may put another file in its place."""


class _Lossy(io.FileIO):
    """A file that takes all it is given and drops what cannot be written: its disk is full, its reader has left."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes
