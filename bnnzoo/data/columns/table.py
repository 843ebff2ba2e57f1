"""Tables: named columns of cells, with one interface for text files, Parquet files and data frames."""

from __future__ import annotations

import abc
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

from bnnzoo.data.columns.reading_options import PLAIN, Reading

if TYPE_CHECKING:
    import pandas as pd


class AbstractTable(abc.ABC):
    """Named columns. The constructor checks the form of the table, and `column_types.interpret` checks the cells.

    The default attributes and methods are for sources that store the type of each cell. Subclasses for text files
    replace the defaults, because the notation of the cells must be detected in text.

    Attributes:
        where: the name of the table in messages.
        names: the names of the columns.
        decimal: the decimal mark of numbers in text; "" (which means a point) if the source has no option for it.
        reading: the options with which the table is read, including detected options.
        note: a text with the detected options that differ from the defaults; "" if there are none.
        num_stored_rows: the number of rows, if `frame` can read single columns from the disk; otherwise 0.
    """

    where: str
    names: tuple[str, ...]
    decimal: Literal["", ".", ","] = ""
    reading: Reading = PLAIN
    note: str = ""
    num_stored_rows: int = 0

    @abc.abstractmethod
    def frame(self, names: Sequence[str], text_columns: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names`, in this order, with the types of the source: numbers, booleans, text, dates.

        Args:
            names: the columns.
            text_columns: the columns to return as text, in the spelling of the file. Only text files use this argument;
                the other sources store the type of each cell.
        """

    def cell_text(self, row: int, name: str) -> str:
        """Return the text of a cell for messages; `row` counts from 0.

        The text of a missing cell is empty, except in a column of floating-point numbers, where it is nan.
        """
        series = self.frame([name])[name]
        return "" if series.isna().iloc[row] and series.dtype.kind != "f" else str(series.iloc[row])

    def has_number(self, row: int) -> bool:
        """Whether a row, counted from 0, contains a number. A row without a number may contain units or a comment."""
        del row
        return True

    def zero_padded_cells(self, names: Sequence[str]) -> dict[str, str]:
        """Return a cell with a leading zero, such as 0123, by column name. Columns without such a cell are left out."""
        del names
        return {}

    def skip_option(self, *rows: int) -> str:
        """Return the option that skips the lines of some rows, or "" if the source has no such option.

        Args:
            rows: the rows, counted from 0; -1 stands for the header.
        """
        del rows
        return ""
