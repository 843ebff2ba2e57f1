"""Progress reports of a run to an observer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """One report of a run, sent after each chunk of draws and at the start and the end of each phase.

    Attributes:
        phase: "start", "compile", "warm-up", "sampling", "judging" (the convergence test), "writing", "evaluating", or
            "note" for a message.
        done: the number of finished steps or draws per chain.
        total: the number of all steps or draws per chain; 0 if unknown.
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
