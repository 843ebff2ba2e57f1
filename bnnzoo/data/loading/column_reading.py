"""Reading of the columns of a table as cells, and their encoding as inputs.

The columns of a large table are read and checked one after the other. The numbers of these columns, and the encoded
inputs, are kept in temporary files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bnnzoo.data.columns.cells import Cells
from bnnzoo.data.columns.codes import notes_of_unused_codes
from bnnzoo.data.columns.column_types import interpret
from bnnzoo.data.columns.faults import Faults
from bnnzoo.data.columns.forms import Style
from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.data.columns.table import AbstractTable
from bnnzoo.data.encoding.input_encoding import Encoding
from bnnzoo.files import mapped
from bnnzoo.progress import Progress, shown_observer


class _ColumnsInTurn:
    """The columns of a large table. As in a data frame, `columns` has their names, and `[name]` reads one column."""

    def __init__(self, table: AbstractTable, names: Sequence[str], text_columns: Collection[str]):
        self.columns = tuple(names)
        self._table, self._text_columns = table, text_columns

    def __getitem__(self, name: str) -> Any:
        return self._table.frame([name], [name] if name in self._text_columns else [])[name]


def columns_of(table: AbstractTable, names: Sequence[str], text_columns: Collection[str] = ()) -> Any:
    """Return the columns `names` as a data frame, or, for a large table, as an object that reads single columns."""
    is_large = is_large_table(table, names)
    return _ColumnsInTurn(table, names, text_columns) if is_large else table.frame(names, text_columns)


def read_cells(
    names: Sequence[str], kinds: Sequence[str], faults: Faults, reading: Reading, targets: Sequence[str]
) -> list[Cells]:
    """Return the cells of the columns `names`, and record the invalid cells in `faults`.

    Args:
        names: the columns.
        kinds: the required type of each column; "" if its cells determine the type.
        faults: the faults of the table.
        reading: the options for the notation of cells.
        targets: the names of the targets. With the option `censored`, cells of these columns can be bounds.
    """
    table = faults.table
    text_columns = [name for name, kind in zip(names, kinds, strict=True) if kind == "text"]
    is_large = is_large_table(table, names)
    columns = columns_of(table, names, text_columns)
    if reading.missing_code and not faults.trained:
        faults.notes += notes_of_unused_codes(columns, reading, table.decimal, table.where)
    cells: list[Cells] = []
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True), start=1):
        style = Style(table.decimal, reading.codes_of(name), reading.censored and name in targets)
        column = interpret(name, columns[name], faults, kind=kind, style=style)
        if is_large:
            column = column._replace(numbers=mapped.store(column.numbers))
            shown_observer()(Progress("start", number, len(names), note=f"reading the columns of {table.where}"))
        cells.append(column)
    return cells


def is_large_table(table: AbstractTable, names: Sequence[str]) -> bool:
    """Whether the columns `names` are so large that they are read one by one and kept in temporary files."""
    return table.num_stored_rows * len(names) * np.dtype(np.float32).itemsize > mapped.LARGE_BYTES


def encode(encoding: Encoding, cells: Sequence[Cells]) -> Float[np.ndarray, "row feature"]:
    """Return the inputs of the rows, in a temporary file if the numbers of the cells are in temporary files."""
    if not any(mapped.is_mapped(column.numbers) for column in cells):
        return encoding.encode(cells)
    x = mapped.empty((len(cells[0].numbers), len(encoding.inputs)), np.float32)
    for rows in mapped.row_blocks(x):
        x[rows] = encoding.encode([column._replace(numbers=column.numbers[rows]) for column in cells])
    return x


def keep_rows(column: Cells, rows: np.ndarray) -> Cells:
    """Return the cells of the rows with these indices. The levels of text are unchanged."""
    bounds = None if column.bounds is None else column.bounds[rows]
    return column._replace(numbers=mapped.take(column.numbers, rows), bounds=bounds)
