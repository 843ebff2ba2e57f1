"""The first lines of delimited text: names of columns, units, and rows that have one field more than the header."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence

from bnnzoo.data.forms import DATE
from bnnzoo.errors import UsageError

NUMBER_CELL = re.compile(r"[+-]?(?:[0-9]+[.,]?[0-9]*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?")
"""A number with a point or a decimal comma."""
LOOKED_AT = 1024
"""Number of lines for detecting the separator, the decimal mark and the header."""


def check_names(names: Sequence[str], below: Sequence[str], where: str) -> None:
    """Refuse a first line that holds data and no names.

    Numbers are names only if they count the columns (0, 1, ...), are years, or head text.

    Args:
        names: the cells of the first line.
        below: the cells of the first row.
        where: the name of the file in messages.

    Raises:
        UsageError: with the first number or date.
    """
    dates = [name for name, cell in zip(names, below, strict=False) if _are_dates(name, cell.strip())]
    if dates:
        raise UsageError(
            f"{where}: no header line: the first line holds a date ({dates[0]}), and so does the one below; put a line "
            "of column names above it"
        )
    numbers = [name for name in names if NUMBER_CELL.fullmatch(name)]
    first = int(numbers[0]) if numbers and numbers[0].isdecimal() else -1
    counted = numbers == [str(first + i) for i in range(len(numbers))] and (first in (0, 1) or len(numbers) > 2)
    if numbers and not counted:
        data = [
            name
            for name, cell in itertools.zip_longest(names, below[: len(names)], fillvalue="")
            if name in numbers and (not name.isdecimal() or NUMBER_CELL.fullmatch(cell.strip()))
        ]
        if data or len(numbers) == len(names):
            raise UsageError(
                f"{where}: no header line: the first line holds numbers ({(data or numbers)[0]}); put a line of column "
                "names above it; if that is a name, begin it with a letter"
            )


def header_line(raw: bytes, delimiter: str) -> int:
    """Return the line, from 1, from which on lines have the most frequent number of fields; 0 if there is none."""
    text = io.BytesIO(raw)
    counts = [line.decode("utf-8").count(delimiter) for line in itertools.islice(text, LOOKED_AT)]
    usual = max(counts, key=counts.count)
    return counts.index(usual) + 1 if usual and counts.index(usual) < len(counts) / 2 else 0


def cure_of_one_more(cells: Sequence[str], delimiter: str, decimal: str, *, has_options: bool) -> str:
    """Return the remedy for rows that have one field more than the header.

    Args:
        cells: the fields of the first such row.
        delimiter: the separator of fields.
        decimal: the decimal mark that the user asked for.
        has_options: whether the remedy may name options.
    """
    if any(cell.strip().startswith("'") for cell in cells):
        return "if cells are quoted by ', quote them by \" instead"
    drop = ", and leave that column out with --drop" if has_options else ""
    start = "write a name for them at the start of the header"
    names = f"if they begin with names of rows (R's write.table), {start}{drop}"
    commas = "if numbers have decimal commas, separate the columns by semicolons" if delimiter == "," else ""
    both = (commas, names) if decimal == "," else (names, commas)
    return "; ".join(filter(None, both))


def are_units(row: Sequence[str], below: Sequence[str]) -> bool:
    """Whether a row has no number but the row below has one: units or widths of the columns."""
    return not any(NUMBER_CELL.fullmatch(cell.strip()) for cell in row) and any(
        NUMBER_CELL.fullmatch(cell.strip()) for cell in below
    )


def _are_dates(*cells: str) -> bool:
    """Whether all cells are days, or moments."""
    return all(len(cell) > len("2024-05") and DATE.fullmatch(cell) for cell in cells)
