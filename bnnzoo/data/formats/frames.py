"""Data frames of pandas and polars, and tables of pyarrow, as tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnnzoo.data.checks.check import plain_name
from bnnzoo.data.columns.table import AbstractTable
from bnnzoo.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

EXPOSURE = "exposure"
"""Name of the column for an exposure that the user gives as an array."""


def is_frame(data: Any) -> bool:
    """Whether `data` is a data frame."""
    return hasattr(type(data), "columns") and hasattr(data, "__getitem__")


class FrameTable(AbstractTable):
    """A data frame as a table. Column names that are not text are converted to text."""

    def __init__(self, frame: Any, where: str = "data"):
        if type(frame).__module__.startswith("pyarrow"):
            frame = frame.to_pandas()
        if not hasattr(frame, "__len__"):
            raise UsageError(f"{where}: {type(frame).__name__}: its rows are not loaded yet; give frame.collect()")
        libraries = {base.__module__.partition(".")[0] for base in type(frame).__mro__}
        if not libraries & {"pandas", "polars"}:
            kind = f"{type(frame).__module__}.{type(frame).__name__}"
            raise UsageError(f"{where}: must be a data frame of pandas, polars or pyarrow (got {kind}); convert it")
        self.where = where
        self._frame = frame
        self.names = tuple(map(plain_name, frame.columns))
        if not len(frame):
            raise UsageError(f"{where}: no data rows; give at least one row")

    def frame(self, names: Sequence[str], _text_columns: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names` as a pandas frame."""
        import pandas as pd

        place = {name: i for i, name in enumerate(self.names)}
        places = [place[name] for name in names]
        if isinstance(self._frame, pd.DataFrame):
            return self._frame.iloc[:, places].set_axis(list(names), axis=1).reset_index(drop=True)
        columns = [self._frame[self._frame.columns[place]] for place in places]
        return pd.DataFrame({name: _polars_values(column) for name, column in zip(names, columns, strict=True)})


def with_index_of(x: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a data frame with one row per row of `x`, with the index of `x` if `x` is a data frame of pandas."""
    import pandas as pd

    return frame.set_axis(x.index) if isinstance(x, pd.DataFrame) else frame


def with_exposure(x: Any, values: ArrayLike) -> Any:
    """Return a data frame with the inputs, and with the exposure as the last column.

    Args:
        x: the inputs, an array or a data frame. The columns of an array are named x0, x1, ...
        values: the exposures [N].

    Raises:
        UsageError: if `x` is an array that is neither [N] nor [N, D], if `values` does not have one number per row, or
            if `x` already has a column named exposure.
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
        frame = x.copy() if isinstance(x, pd.DataFrame) else (table := FrameTable(x, "x")).frame(table.names)
    else:
        table = rows.reshape(len(rows), -1)
        frame = pd.DataFrame(table, columns=pd.Index([f"x{i}" for i in range(table.shape[1])]))
    if EXPOSURE in frame:
        raise UsageError(f"exposure: x already has a column {EXPOSURE}; use exposure='{EXPOSURE}' to use this column")
    frame[EXPOSURE] = numbers
    return frame


def _polars_values(column: Any) -> Any:
    """Convert a polars column to values for pandas."""
    import pandas as pd

    # Conversion to NumPy would lose digits of 128-bit integers.
    if column.dtype.is_integer() and "128" in str(column.dtype):
        return pd.Series(column.to_list(), dtype=object)
    if column.dtype.is_integer() and column.null_count():
        return pd.arrays.IntegerArray(column.fill_null(0).to_numpy(writable=True), column.is_null().to_numpy())
    if column.dtype.is_numeric() and not column.dtype.is_decimal():
        return column.to_numpy()
    if str(column.dtype).startswith("Enum"):
        return pd.Categorical(column.to_list(), list(column.dtype.categories))
    if str(column.dtype).startswith("Categorical"):
        return pd.Categorical(column.to_list())
    return pd.Series(column.to_list())
