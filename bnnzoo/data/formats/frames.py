"""Data frames of pandas and polars as tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from bnnzoo.data.checks.check import plain_name
from bnnzoo.data.columns.reading_options import PLAIN, Reading
from bnnzoo.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


def is_frame(data: Any) -> bool:
    """Whether `data` is a data frame."""
    return hasattr(type(data), "columns") and hasattr(data, "__getitem__")


class TypedTable:
    """A table with typed cells, which needs no detection of a text notation."""

    @property
    def decimal(self) -> Literal["", ".", ","]:
        """Empty, because text cells use a point and no option can change that."""
        return ""

    @property
    def reading(self) -> Reading:
        """Plain reading: nothing was detected."""
        return PLAIN

    @property
    def note(self) -> str:
        """Empty note: nothing was detected."""
        return ""

    def has_number(self, row: int, /) -> bool:
        """Return True, because typed rows cannot hold units."""
        del row
        return True

    def zero_padded_cells(self, names: Sequence[str], /) -> dict[str, str]:
        """No cells: numbers are no text."""
        del names
        return {}

    def skip_option(self, *rows: int) -> str:
        """Return an empty option, because rows are not lines of a file."""
        del rows
        return ""


class FrameTable(TypedTable):
    """A data frame as a table. Names that are not text are converted to text."""

    def __init__(self, frame: Any, where: str = "data"):
        if type(frame).__module__.startswith("pyarrow"):
            frame = frame.to_pandas()
        if not hasattr(frame, "__len__"):
            raise UsageError(f"{where}: {type(frame).__name__}: its rows are not loaded yet; give frame.collect()")
        self.where = where
        self._frame = frame
        self.names = tuple(map(plain_name, frame.columns))
        if not len(frame):
            raise UsageError(f"{where}: no data rows; give at least one row")

    def frame(self, names: Sequence[str], _written: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names` as a pandas frame."""
        import pandas as pd

        place = {name: i for i, name in enumerate(self.names)}
        places = [place[name] for name in names]
        if isinstance(self._frame, pd.DataFrame):
            return self._frame.iloc[:, places].set_axis(list(names), axis=1).reset_index(drop=True)
        columns = [self._frame[self._frame.columns[place]] for place in places]
        return pd.DataFrame({name: _polars_values(column) for name, column in zip(names, columns, strict=True)})

    def cell_text(self, row: int, name: str) -> str:
        """Return the text of a cell; `row` counts from 0."""
        return shown_cell(self.frame([name])[name], row)


def shown_cell(series: Any, row: int) -> str:
    """Return the text of a cell of a pandas column; empty if it is missing, except for nan in float columns."""
    value = series.iloc[row]
    return "" if series.isna().iloc[row] and series.dtype.kind != "f" else str(value)


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
