"""Exposures given as an array beside the data, which become the last column of the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnnzoo.data.frames import is_frame
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
        raise UsageError(f"exposure: for columns of numbers, and x has shape {list(rows.shape)}")
    if numbers.shape != (len(rows),):
        raise UsageError(f"exposure: shape {list(numbers.shape)} for the {len(rows)} rows of x; give one number a row")
    if is_frame(x):
        frame = pd.DataFrame(x).copy()
    else:
        table = rows.reshape(len(rows), -1)
        frame = pd.DataFrame(table, columns=pd.Index([f"x{i}" for i in range(table.shape[1])]))
    if NAME in frame:
        raise UsageError(f"exposure: x has a column of that name already; use exposure='{NAME}' to take it")
    frame[NAME] = numbers
    return frame
