"""Check of targets that must be counts."""

from __future__ import annotations

import numpy as np

from bnnzoo.errors import UsageError


def check_counts(targets: np.ndarray, likelihood: str) -> None:
    """Check that the targets are counts.

    Args:
        targets: the targets, [row, target].
        likelihood: name of the likelihood, for the message.

    Raises:
        UsageError: if a target is negative or not an integer; the message names the first such row and target.
    """
    invalid = np.argwhere((targets < 0) | (targets != np.round(targets)))
    if len(invalid):
        row, column = invalid[0]
        raise UsageError(
            f"likelihood {likelihood}: row {row + 1}, target {column + 1}: not a count (got "
            f"{targets[row, column]:g}); use [[likelihood=gaussian]] for real numbers"
        )
