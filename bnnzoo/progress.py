"""Progress reports of a run to an observer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """One report of a run, sent after each chunk and at the start and the end of each phase.

    `phase` is "start", "compile", "warm-up", "sampling", "judging", "writing", "evaluating", or "note" for a sentence
    in `note`. `done` of `total` are steps or draws per chain. `acceptance` is the mean so far, NaN if there is none.
    """

    phase: str
    done: int
    total: int
    acceptance: float = math.nan
    note: str = ""


Observer = Callable[[Progress], None]
