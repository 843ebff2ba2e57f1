"""Display of progress: a live line on a terminal or below a notebook cell, plain lines in a batch log."""

from __future__ import annotations

import builtins
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from html import escape
from typing import Any

from bnnzoo.progress import Observer, Progress, shown_by

SECONDS_BETWEEN_LINES, SECONDS_BETWEEN_DRAWINGS = 5.0, 0.5


@contextmanager
def observer(*, quiet: bool) -> Iterator[Observer | None]:
    """Yield the observer that shows the progress of a command: None with --quiet, a bar on a terminal, or plain lines.

    Inside the context, everything that a model prints goes to stderr, because stdout is reserved for results.
    """
    with redirect_stdout(sys.stderr):
        if quiet:
            yield None
        elif sys.stderr.isatty():
            with _bar() as watch, shown_by(watch):
                yield watch
        else:
            lines = PlainLines(lambda line: print(line, file=sys.stderr, flush=True))
            with shown_by(lines):
                yield lines


@contextmanager
def observer_in_python(*, progress: bool) -> Iterator[Observer | None]:
    """Yield the observer that shows the progress in Python: a line in a notebook, a bar on a terminal, None elsewhere.

    If `progress` is false, yield None.
    """
    if progress and in_notebook():
        line = NotebookLine()
        with shown_by(line):
            yield line
    elif progress and sys.stderr is not None and sys.stderr.isatty():
        with _bar() as watch, shown_by(watch):
            yield watch
    else:
        yield None


def in_notebook() -> bool:
    """Whether this process is a notebook kernel, whose output a browser shows."""
    shell: Any = getattr(builtins, "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


class NotebookLine:
    """One progress line below a notebook cell, redrawn at most twice per second and at the end of each phase."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        from IPython.display import display  # pyright: ignore[reportMissingImports] (there in a kernel)

        self.display = display
        self.clock, self.pace = clock, Pace(clock)
        self.last = -math.inf
        self.line: Any = None

    def __call__(self, progress: Progress) -> None:
        if progress.phase == "note":
            print(f"bnnzoo: note: {progress.note}")
            return
        text, current_time = describe_progress(progress, self.pace.update(progress)), self.clock()
        is_phase_end = progress.total > 0 and progress.done >= progress.total
        if not is_phase_end and current_time - self.last < SECONDS_BETWEEN_DRAWINGS:
            return
        self.last = current_time
        attributes = f'value="{progress.done}" max="{progress.total}"' if progress.total else ""
        representations = {"text/plain": text, "text/html": f"<progress {attributes}></progress> {escape(text)}"}
        if self.line is None:
            self.line = self.display(representations, raw=True, display_id=True)
        else:
            self.line.update(representations, raw=True)


class PlainLines:
    """Plain progress lines: one every few seconds and one at the end of each phase."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self.write = write
        self.clock = clock
        self.last_line = clock()
        self.pace = Pace(clock)

    def __call__(self, progress: Progress) -> None:
        if progress.phase == "note":
            self.write(f"bnnzoo: note: {progress.note}")
            return
        rate = self.pace.update(progress)
        ended = progress.total > 0 and progress.done >= progress.total
        if ended or self.clock() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = self.clock()
            self.write(f"bnnzoo: {describe_progress(progress, rate)}")


class Pace:
    """Steps per second in the current phase."""

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.phase = ""
        self.first = (0.0, 0)

    def update(self, progress: Progress) -> float:
        """Return the steps per second since the phase began; NaN if no step has been finished yet."""
        current_time = self.clock()
        if progress.phase != self.phase:
            self.phase, self.first = progress.phase, (current_time, progress.done)
        elapsed, done = current_time - self.first[0], progress.done - self.first[1]
        return done / elapsed if elapsed > 0 and done > 0 else math.nan


@contextmanager
def _bar() -> Iterator[Observer]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    pace = Pace(time.monotonic)
    columns = (TextColumn("{task.fields[phase]:>10}"), BarColumn(), TextColumn("{task.fields[status]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, phase="start", status="")

        def watch(progress: Progress) -> None:
            if progress.phase == "note":
                print(f"bnnzoo: note: {progress.note}", file=sys.stderr)
                return
            rate = pace.update(progress)
            bar.update(
                task,
                completed=progress.done,
                total=progress.total or None,
                phase=progress.phase,
                status=describe_progress(progress, rate).removeprefix(progress.phase).strip(),
            )

        yield watch


def describe_progress(progress: Progress, rate: float) -> str:
    """Return a report as text, such as "sampling 400/1000, 87.3/s, acceptance 0.71, 7 s left"."""
    parts = [f"{progress.phase} {progress.done}/{progress.total}" if progress.total else progress.phase]
    if math.isfinite(rate):
        parts.append(f"{rate:.3g}/s")
    if math.isfinite(progress.acceptance):
        parts.append(f"acceptance {progress.acceptance:.2f}")
    if math.isfinite(rate) and progress.done < progress.total:
        parts.append(f"{_duration((progress.total - progress.done) / rate)} left")
    if progress.note:
        parts.append(progress.note)
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {seconds_left} s"
