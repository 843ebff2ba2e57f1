"""SIGINT and SIGTERM: the first asks the run to stop where it can be resumed, the second ends the process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Called, it returns the number of the signal that came, or 0."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> int:
        return self.number

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del frame
        if self.number:
            sys.stderr.write("\nbnnzoo: stopped at once; what the last checkpoint holds is kept\n")
            sys.stderr.flush()
            # Compiled code may not return to Python for a long time: no unwinding.
            os._exit(128 + number)
        self.number = number
        sys.stderr.write("\nbnnzoo: stopping after this chunk; again to stop at once\n")
        sys.stderr.flush()


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Handle both signals inside the block, and give them back after it."""
    stop = Stop()
    before: dict[signal.Signals, Any] = {number: signal.signal(number, stop.receive) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
