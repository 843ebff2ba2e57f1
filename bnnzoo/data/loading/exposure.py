"""Exposures given as an array beside the data, which become the last column of the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnnzoo.data.formats.frames import is_frame
from bnnzoo.errors import UsageError

NAME = "exposure"
"""The name of the column."""


def with_exposure(x: Any, values: ArrayLike) -> Any:
    """Return inputs, an array or a data frame, as a frame with the exposure as its last column.

    The columns of an array are named x0, x1, ...

    Raises:
        UsageError: if there is not one number per row, or if a column has the name already.
    """
    import pandas as pd

    numbers = np.asarray(values)
    rows = x if is_frame(x) else np.asarray(x)
    if not is_frame(x) and rows.ndim not in (1, 2):
        raise UsageError(f"exposure: requires x with columns of numbers (got shape {list(rows.shape)})")
    if numbers.shape != (len(rows),):
        raise UsageError(
            f"exposure: must be one number per row of x, {len(rows)} in all (got shape {list(numbers.shape)})"
        )
    if is_frame(x):
        frame = pd.DataFrame(x).copy()
    else:
        table = rows.reshape(len(rows), -1)
        frame = pd.DataFrame(table, columns=pd.Index([f"x{i}" for i in range(table.shape[1])]))
    if NAME in frame:
        raise UsageError(f"exposure: x has a column of that name already; use exposure='{NAME}' to use this column")
    frame[NAME] = numbers
    return frame
