"""Formats of data files by suffix. A new format is a class with one of the two protocols and an entry of `READERS`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from numpy.typing import NDArray

from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.data.formats.delimited import DelimitedTable
from bnnzoo.data.formats.idx import IdxFolder
from bnnzoo.data.formats.npz_archive import NpzFile
from bnnzoo.data.formats.parquet import ParquetTable
from bnnzoo.data.rows.dataset import Dataset, UncheckedRows

if TYPE_CHECKING:
    import pandas as pd


@runtime_checkable
class Table(Protocol):
    """Named columns. The constructor checks the form; `column_types.interpret` checks the cells."""

    where: str
    """The name of the table in messages."""
    names: tuple[str, ...]

    @property
    def decimal(self) -> Literal["", ".", ","]:
        """Decimal mark of numbers in text; "" if no option can change it from a point."""
        ...

    @property
    def reading(self) -> Reading:
        """Reading of the table, including detected options."""
        ...

    @property
    def note(self) -> str:
        """Detected options that differ from the plain form; "" if there are none."""
        ...

    def has_number(self, row: int, /) -> bool:
        """Whether a row of text, counted from 0, has a number."""
        ...

    def zero_padded_cells(self, names: Sequence[str], /) -> dict[str, str]:
        """Return a cell with a leading zero for each column of text that has one."""
        ...

    def skip_option(self, *rows: int) -> str:
        """Return the option that skips the lines of rows, counted from 0 (-1 is the header); "" if there is none."""
        ...

    def frame(self, names: Sequence[str], written: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names` in that order with the types of the reader: numbers, booleans, text, dates.

        Args:
            names: the columns.
            written: the columns to return as text, as the format writes it.
        """
        ...

    def cell_text(self, row: int, name: str) -> str:
        """Return the raw text of a cell for messages; `row` counts from 0."""
        ...


@runtime_checkable
class Arrays(Protocol):
    """Arrays of inputs and targets."""

    where: str

    def dataset(self, task: str | None) -> Dataset:
        """Return the checked training data, with their test set if there is one."""
        ...

    def inputs(self) -> tuple[NDArray[Any], str]:
        """Return the unchecked inputs for prediction, and their name in messages."""
        ...

    def labelled(self) -> UncheckedRows:
        """Return the unchecked inputs and targets for testing."""
        ...


READERS: dict[str, Callable[[Path], Table | Arrays]] = {
    ".csv": DelimitedTable,
    ".tsv": DelimitedTable,
    ".parquet": ParquetTable,
    ".pq": ParquetTable,
    ".npz": NpzFile,
}
FOLDER: Callable[[Path], Table | Arrays] = IdxFolder
"""The reader of folders."""
