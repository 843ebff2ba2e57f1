"""Progress reports of a run, an evaluation or a check to an observer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Progress(NamedTuple):
    """One report on progress. A run sends one after each chunk of steps, and at the start of each other phase.

    Attributes:
        phase: the phase of a run: "start", "compile", "warm-up", "sampling", "judging" (the convergence test) or
            "writing". An evaluation has the phase "evaluating", and a check has the phase "calibration" or the name of
            its target. "note" is a note to the user, and "message" is a message from a job of `bnnzoo zoo run`.
        done: the number of finished units: steps or draws per chain, or rows of an evaluation.
        total: the number of all units; 0 if unknown.
        acceptance: the mean acceptance rate (of the latest chunk, in a run); NaN if it is not known.
        note: the text of a message, or a description of the current work.
    """

    phase: str
    done: int
    total: int
    acceptance: float = math.nan
    note: str = ""


Observer = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Ignore every report."""
    del progress


_SHOWN: ContextVar[Observer] = ContextVar("_SHOWN", default=ignore)


def shown_observer() -> Observer:
    """Return the observer that shows reports to the user, for functions that have no observer as an argument."""
    return _SHOWN.get()


@contextmanager
def shown_by(observer: Observer | None) -> Iterator[None]:
    """Make `shown_observer` return this observer inside the context."""
    token = _SHOWN.set(observer or ignore)
    try:
        yield
    finally:
        _SHOWN.reset(token)
