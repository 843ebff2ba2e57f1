"""The check of targets that must be counts."""

from __future__ import annotations

import numpy as np

from bnnzoo.errors import UsageError


def check_counts(targets: np.ndarray, likelihood: str) -> None:
    """Refuse targets that are no counts, naming the first.

    Raises:
        UsageError: for a negative number, or one that is not whole.
    """
    bad = np.argwhere((targets < 0) | (targets != np.round(targets)))
    if len(bad):
        row, column = bad[0]
        raise UsageError(
            f"likelihood {likelihood}: row {row + 1}, target {column + 1}: not a count ({targets[row, column]:g}); "
            "use --likelihood gaussian for real numbers"
        )
