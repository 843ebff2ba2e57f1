"""Tables: named columns of cells, whatever their source."""

from __future__ import annotations

import abc
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

from bnnzoo.data.columns.reading_options import PLAIN, Reading

if TYPE_CHECKING:
    import pandas as pd


class AbstractTable(abc.ABC):
    """Named columns. The constructor checks the form; `column_types.interpret` checks the cells.

    The default attributes and methods are for typed cells, where no notation of text must be detected.

    Attributes:
        where: the name of the table in messages.
        names: the names of the columns.
        decimal: the decimal mark of numbers in text; "" means a point that no option can change.
        reading: the reading of the table, including detected options.
        note: the detected options that differ from the plain form; "" if there are none.
    """

    where: str
    names: tuple[str, ...]
    decimal: Literal["", ".", ","] = ""
    reading: Reading = PLAIN
    note: str = ""

    @abc.abstractmethod
    def frame(self, names: Sequence[str], text_columns: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names` in that order with the types of the reader: numbers, booleans, text, dates.

        Args:
            names: the columns.
            text_columns: the columns to return as text, as the format writes it.
        """

    def cell_text(self, row: int, name: str) -> str:
        """Return the raw text of a cell for messages; `row` counts from 0.

        A missing cell is empty, except for nan in a float column.
        """
        series = self.frame([name])[name]
        return "" if series.isna().iloc[row] and series.dtype.kind != "f" else str(series.iloc[row])

    def has_number(self, row: int) -> bool:
        """Whether a row, counted from 0, has a number. Rows of text without one may be units or remarks."""
        del row
        return True

    def zero_padded_cells(self, names: Sequence[str]) -> dict[str, str]:
        """Return a cell with a leading zero for each column of text that has one."""
        del names
        return {}

    def skip_option(self, *rows: int) -> str:
        """Return the option that skips the lines of rows, counted from 0 (-1 is the header); "" if there is none."""
        del rows
        return ""
