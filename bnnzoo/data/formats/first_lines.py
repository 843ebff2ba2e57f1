"""The first lines of delimited text: names of columns, units, and rows that have one field more than the header."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence

from bnnzoo.data.columns.forms import DATE
from bnnzoo.errors import UsageError

_NUMBER = re.compile(r"[+-]?(?:[0-9]+[.,]?[0-9]*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?")
"""A number with a point or a decimal comma."""
MAX_INSPECTED_LINES = 1024
"""Number of lines for detecting the separator, the decimal mark and the header."""


def is_number_cell(cell: str) -> bool:
    """Whether a cell is a number."""
    return _NUMBER.fullmatch(cell.strip()) is not None


def check_names(names: Sequence[str], first_row: Sequence[str], where: str) -> None:
    """Refuse a first line that holds data and no names.

    Numbers are names only if they count the columns (0, 1, ...), are years, or head text.

    Args:
        names: the cells of the first line.
        first_row: the cells of the first row.
        where: the name of the file in messages.

    Raises:
        UsageError: with the first number or date.
    """
    dates = [name for name, cell in zip(names, first_row, strict=False) if _are_dates(name, cell.strip())]
    if dates:
        raise UsageError(
            f"{where}: no header line: the first line holds a date ({dates[0]}), and so does the second; put "
            "a line of column names above it"
        )
    numbers = [name for name in names if is_number_cell(name)]
    first = int(numbers[0]) if numbers and numbers[0].isdecimal() else -1
    is_counting = numbers == [str(first + i) for i in range(len(numbers))] and (first in (0, 1) or len(numbers) > 2)
    if numbers and not is_counting:
        data = [
            name
            for name, cell in itertools.zip_longest(names, first_row[: len(names)], fillvalue="")
            if name in numbers and (not name.isdecimal() or is_number_cell(cell))
        ]
        if data or len(numbers) == len(names):
            raise UsageError(
                f"{where}: no header line: the first line holds numbers ({(data or numbers)[0]}); put a line of column "
                "names above it; if that is the name of a column, let it begin with a letter"
            )


def header_line(raw: bytes, delimiter: str) -> int:
    """Return the first line, counted from 1, with the most frequent number of fields; 0 if it cannot be determined."""
    text = io.BytesIO(raw)
    counts = [line.decode("utf-8").count(delimiter) for line in itertools.islice(text, MAX_INSPECTED_LINES)]
    usual = max(counts, key=counts.count)
    return counts.index(usual) + 1 if usual and counts.index(usual) < len(counts) / 2 else 0


def remedy_for_extra_field(cells: Sequence[str], delimiter: str, decimal: str, *, has_options: bool) -> str:
    """Return the remedy for rows that have one field more than the header.

    Args:
        cells: the fields of the first such row.
        delimiter: the separator of fields.
        decimal: the decimal mark that the user asked for.
        has_options: whether the remedy may name options.
    """
    if any(cell.strip().startswith("'") for cell in cells):
        return "if cells are quoted with ', quote them with \" instead"
    drop = ", and leave that column out with [[drop]]" if has_options else ""
    names = "if they begin with row names (as R's write.table writes them), add a name for these at the start of the "
    names += f"header{drop}"
    commas = "if numbers have decimal commas, separate the columns with semicolons" if delimiter == "," else ""
    both = (commas, names) if decimal == "," else (names, commas)
    return "; ".join(filter(None, both))


def are_units(row: Sequence[str], next_row: Sequence[str]) -> bool:
    """Whether a row has no number but the row below has one: units or widths of the columns."""
    return not any(map(is_number_cell, row)) and any(map(is_number_cell, next_row))


def _are_dates(*cells: str) -> bool:
    """Whether all cells are dates, with or without a time."""
    return all(len(cell) > len("2024-05") and DATE.fullmatch(cell) for cell in cells)
