"""The formats of data files, by suffix. A new one is a class of one of the two protocols, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from numpy.typing import NDArray

from bnnzoo.data.dataset import Dataset, Labelled
from bnnzoo.data.delimited import DelimitedTable
from bnnzoo.data.idx import IdxFolder
from bnnzoo.data.npz import NpzFile
from bnnzoo.data.parquet import ParquetTable
from bnnzoo.data.reading import Reading

if TYPE_CHECKING:
    import pandas as pd


@runtime_checkable
class Table(Protocol):
    """Named columns. Its form is checked when it is made, its cells when they are understood (`columns`)."""

    where: str
    """What messages call it."""
    names: tuple[str, ...]

    @property
    def decimal(self) -> Literal["", ".", ","]:
        """The decimal mark of numbers that are text; "" where no option names another than the point."""
        ...

    @property
    def reading(self) -> Reading:
        """How it was read, with what was detected."""
        ...

    @property
    def note(self) -> str:
        """What was detected, where it is not the plain form; "" otherwise."""
        ...

    def has_number(self, row: int, /) -> bool:
        """Whether a row (from 0) of text has a number."""
        ...

    def padded(self, names: Sequence[str], /) -> dict[str, str]:
        """A cell with a leading zero of each column of text that has one."""
        ...

    def skip_option(self, row: int, /) -> str:
        """The option that leaves a row (from 0) out by its line; "" where there is none."""
        ...

    def frame(self, names: Sequence[str], written: Collection[str] = (), /) -> pd.DataFrame:
        """The columns `names` in that order, each as its reader found it: numbers, booleans, text, dates.

        written: those that are text, as the format writes it, whatever else they could be.
        """
        ...

    def shown(self, row: int, name: str) -> str:
        """The raw text of a cell for messages; `row` counts from 0."""
        ...


@runtime_checkable
class Arrays(Protocol):
    """Arrays of inputs and targets."""

    where: str

    def dataset(self, task: str | None) -> Dataset:
        """The checked data to train on, with their test set where they have one."""
        ...

    def inputs(self) -> tuple[NDArray[Any], str]:
        """Inputs to predict for, unchecked, and what messages call them."""
        ...

    def labelled(self) -> Labelled:
        """Inputs and targets to test on, unchecked."""
        ...


READERS: dict[str, Callable[[Path], Table | Arrays]] = {
    ".csv": DelimitedTable,
    ".tsv": DelimitedTable,
    ".parquet": ParquetTable,
    ".pq": ParquetTable,
    ".npz": NpzFile,
}
FOLDER: Callable[[Path], Table | Arrays] = IdxFolder
"""What a folder holds."""
