"""Notes about the data, reported before a run starts."""

from __future__ import annotations

import warnings

from bnnzoo.assembly import Problem, units
from bnnzoo.errors import BnnzooWarning
from bnnzoo.progress import Observer, Progress

_FEW_ROWS = 10
"""Number of training rows below which a note states that the prior dominates."""


def report_notes(problem: Problem, observer: Observer | None, tell: Observer) -> None:
    """Report how the rows were read, the units of the likelihood's fields, and whether there are few training rows.

    Args:
        problem: the problem of the run.
        observer: the observer that shows progress to the user. If it is None, a warning reports the omitted rows.
        tell: the observer that is called with the notes.
    """
    rows = problem.train
    if rows is None:
        return
    if rows.left_out and observer is None:
        warnings.warn(f"{rows.name}: {rows.left_out}", BnnzooWarning, stacklevel=5)
    notes = [*filter(None, [rows.left_out]), *rows.notes]
    parts, _, scaler = problem.require_description()
    notes += units.sentences(parts.likelihood, scaler, problem.recipe, rows.target_names)
    if rows.num_data < _FEW_ROWS:
        notes.append(f"only {rows.num_data} training rows, so the predictions depend mostly on the prior")
    for note in notes:
        tell(Progress("note", 0, 0, note=note))
