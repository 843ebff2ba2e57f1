"""SIGINT and SIGTERM in a run: the first asks it to stop where it can be resumed, the second ends the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals

from bnnzoo import signals
from bnnzoo.errors import InterruptedRunError


class Stop:
    """Called, it returns the number of the signal that came, or 0."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> int:
        return self.number

    def receive(self, number: int) -> None:
        """The receiver of signals."""
        if self.number:
            signals.leave(number, "stopped at once; what the last checkpoint holds is kept")
        self.number = number
        signals.say("stopping after this chunk; again to stop at once")

    def refuse_more(self, run: Path) -> None:
        """End the command, where a signal came too late to stop its run.

        Raises:
            InterruptedRunError: saying that the run is whole.
        """
        if self.number:
            raise InterruptedRunError(f"{Signals(self.number).name}: {run} is complete", self.number)


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Handle both signals inside the block."""
    stop = Stop()
    with signals.received_by(stop.receive):
        yield stop
