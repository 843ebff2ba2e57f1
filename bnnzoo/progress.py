"""What a run tells whoever watches it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """One report from a run, sent once a chunk and at the start and end of each phase.

    `phase` is "start", "compile", "warm-up", "sampling", "judging", "writing" or "evaluating"; or "note", a sentence
    to be read (`note`); `done` of `total` are steps or draws per chain; `acceptance` is the mean so far, NaN where
    there is none.
    """

    phase: str
    done: int
    total: int
    acceptance: float = math.nan
    note: str = ""


Observer = Callable[[Progress], None]
