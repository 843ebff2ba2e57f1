"""Arguments in the conventions of scikit-learn: weights, random states and tables."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length, check_random_state

from bnnzoo.data.checks.check import is_coarse
from bnnzoo.data.formats.frames import is_frame
from bnnzoo.errors import UsageError


def refuse_weights(others: Mapping[str, Any]) -> None:
    """Check that `fit` got no arguments besides X and y, except `sample_weight` with all weights equal to 1.

    Raises:
        UsageError: if a sample weight is not 1.
        TypeError: if there is any other argument.
    """
    for name, value in others.items():
        if name != "sample_weight":
            raise TypeError(f"fit: unknown argument {name!r}; give only X, y and sample_weight")
        if value is not None and not np.all(np.asarray(value) == 1):
            raise UsageError(
                "sample_weight: is not supported, because each row counts once in the likelihood; repeat "
                "each row as often as its weight requires, or fit without sample_weight"
            )


def integer_seed(random_state: Any) -> int:
    """Return an integer seed from scikit-learn's `random_state`: an integer, a RandomState, or None."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def calibration_pair(calibration: Any) -> tuple[Any, Any]:
    """Return X and y of calibration rows.

    Raises:
        UsageError: if `calibration` is not a pair.
        ValueError: if X and y do not have the same number of rows.
    """
    if not isinstance(calibration, tuple | list) or len(calibration) != 2:
        raise UsageError(
            f"calibration: must be a pair (X, y) of rows that were not used to fit (got {type(calibration).__name__})"
        )
    X, y = calibration
    check_consistent_length(X, y)
    return X, y


def is_table(X: Any) -> bool:
    """Whether X is a data frame that bnnzoo must encode itself.

    The result is true for a data frame with columns that are not numeric, with missing cells, or with numbers that
    float32 represents too coarsely (see `is_coarse`).
    """
    if not is_frame(X):
        return False
    from bnnzoo.data.formats.frames import FrameTable

    table = FrameTable(X, "X")
    return any(
        column.dtype.kind not in "iuf" or column.isna().any() or is_coarse(column.to_numpy(np.float64))
        for _, column in table.frame(table.names).items()
    )
