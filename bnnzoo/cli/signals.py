"""SIGINT and SIGTERM during a run. The first signal stops the run with a checkpoint; the second ends the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals

from bnnzoo.errors import InterruptedRunError
from bnnzoo.process import signals


class Stop:
    """A flag for a stop request. Calling it returns the number of the received signal, or 0."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> int:
        return self.number

    def receive(self, number: int) -> None:
        """Record the first signal; end the process at the second."""
        if self.number:
            signals.end_process(number, "stopped at once; the last checkpoint is kept")
        self.number = number
        signals.write_to_stderr("stopping after the current chunk of steps; a second signal stops at once")

    def refuse_more(self, run: Path) -> None:
        """End the command with an error if a signal came too late to stop the run.

        Raises:
            InterruptedRunError: if a signal was received; the message says that the run is complete.
        """
        if self.number:
            name = Signals(self.number).name
            raise InterruptedRunError(f"{name} came too late to stop the run; {run} is complete", self.number)


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Handle SIGINT and SIGTERM within the context."""
    stop = Stop()
    with signals.receive_signals(stop.receive):
        yield stop
