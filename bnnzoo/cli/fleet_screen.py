"""Progress of all runs of `bnnzoo zoo run`: live lines on a terminal, otherwise one line every few seconds.

A run is called a job here, and all jobs of a command are a fleet.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bnnzoo.cli.output import printable
from bnnzoo.fleet import Outcome
from bnnzoo.fleet.executor import JOB_MESSAGE
from bnnzoo.progress import Progress
from bnnzoo.progress_bar import SECONDS_BETWEEN_LINES, Pace, describe_progress

MAX_SHOWN = 8
"""Largest number of jobs that are shown at the same time."""


class FleetScreen:
    """The progress of all jobs of a fleet.

    Args:
        total: the number of jobs.
        ended: the number of jobs that were complete already.
        write: a function that prints a permanent line.
        show: a function that replaces the current lines. It is None with --quiet; only warnings and errors of jobs are
            then printed.
        clock: a function that returns the time in seconds.
    """

    def __init__(
        self,
        total: int,
        ended: int,
        write: Callable[[str], None],
        show: Callable[[list[str]], None] | None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total, self.ended = total, ended
        self._write, self._show, self._clock = write, show, clock
        self._doing: dict[str, str] = {}
        self._paces: dict[str, Pace] = {}
        self._lock = threading.Lock()  # each job has its own thread

    def tell(self, name: str, progress: Progress) -> None:
        """Show a progress report of a job."""
        with self._lock:
            if progress.phase == JOB_MESSAGE:
                self._write(f"bnnzoo: {name}: {progress.note}")
            elif self._show is None:
                return
            elif progress.phase == "note":
                self._write(f"bnnzoo: {name}: note: {progress.note}")
            else:
                pace = self._paces.setdefault(name, Pace(self._clock))
                self._doing[name] = describe_progress(progress, pace.update(progress))
                self._show(self._lines())

    def end(self, outcome: Outcome) -> None:
        """Record the end of a job."""
        with self._lock:
            self.ended += 1
            self._doing.pop(outcome.name, None)
            if self._show is not None and outcome.code == 0:
                self._write(f"bnnzoo: {outcome.name}: done in {outcome.seconds:.0f} s ({self.ended} of {self.total})")

    def _lines(self) -> list[str]:
        """Return a line with the number of ended jobs, and a line for each of the first running jobs."""
        num_others = len(self._doing) - MAX_SHOWN
        job_lines = [f"{name}: {words}" for name, words in list(self._doing.items())[:MAX_SHOWN]]
        return [
            f"{self.ended} of {self.total} done",
            *job_lines,
            *([f"and {num_others} more"] if num_others > 0 else []),
        ]


class PlainLine:
    """A function that joins all lines of the screen into one line. It prints at most one line every few seconds."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._write, self._clock, self._last = write, clock, clock()

    def __call__(self, lines: list[str]) -> None:
        if self._clock() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = self._clock()
            self._write("bnnzoo: " + "; ".join(lines))


@contextmanager
def fleet_screen(total: int, ended: int, *, quiet: bool) -> Iterator[FleetScreen]:
    """Yield the `FleetScreen` of a command. It prints on stderr: live lines on a terminal, otherwise plain lines."""
    if quiet or not sys.stderr.isatty():
        yield FleetScreen(total, ended, _print, None if quiet else PlainLine(_print))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:

        def write(line: str) -> None:
            live.console.print(printable(line), markup=False, highlight=False)

        def show(lines: list[str]) -> None:
            live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

        yield FleetScreen(total, ended, write, show)


def _print(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
