"""The header of delimited text: the line with the column names. Errors propose a remedy if the header is not valid."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Sequence

from bnnzoo.data.checks.check import plain_name
from bnnzoo.data.columns.forms import DATE
from bnnzoo.data.columns.reading_options import SEPARATORS
from bnnzoo.data.formats.delimited_text import MAX_INSPECTED_LINES, DelimitedText
from bnnzoo.data.formats.dialect import MARKS, NAMES, unusual_separator
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting

_NUMBER = re.compile(r"[+-]?(?:[0-9]+[.,]?[0-9]*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?")
"""A number with a point or a decimal comma."""


def read_header(text: DelimitedText, start: int) -> tuple[tuple[str, ...], int]:
    """Return the column names and the position of the first data row.

    Raises:
        UsageError: if the line at `start` cannot be a header.
    """
    try:
        cells, end = next(text.parse(start))
    except csv.Error as error:
        first_line = text.raw[start:].partition(b"\n")[0]
        has_quoted_spaces = b'" "' in first_line and text.has_options
        remedy = (
            "if spaces separate columns, use [[separator=space]]" if has_quoted_spaces else 'quote names as "a name"'
        )
        raise UsageError(f"{text.where}: header: {error}; {remedy}") from error
    names = tuple(map(plain_name, cells))
    if not any(names):
        num_blank = len(text.raw[start:]) - len(text.raw[start:].lstrip())
        lines_above = range(1, text.line_number(start + num_blank))
        remedy = "put the column names there"
        if lines_above and text.has_options:
            remedy += f", or leave blank lines out with {text.skip_option(lines_above)}"
        raise UsageError(f"{text.where}: the first line is empty, but must be the header; {remedy}")
    _check_comments(text, names, start)
    if len(names) > 2 and sum(map(bool, names)) == 1 and text.has_options:
        option = text.skip_option([text.line_number(start)])
        raise UsageError(
            f"{text.where}: the first line has {len(names)} cells, and only {next(filter(None, names))!r} "
            f"is not empty; if it is a title, leave it out with {option}"
        )
    if len(names) == 1 and any(mark in names[0] for mark in MARKS):
        likely_mark = max(MARKS, key=names[0].count)
        mark_name = next(mark_name for mark_name, mark in SEPARATORS.items() if mark == likely_mark)
        option = setting("separator", mark_name)
        remedy = f"; if columns are separated by {NAMES[likely_mark]}, use {option}"
        raise _one_column(text, names[0], remedy)
    if len(names) == 1 and len(names[0].split()) > 1 and _is_space_separated(text, names[0], end):
        remedy = ", and the rows contain spaces; if spaces separate columns, use [[separator=space]]"
        raise _one_column(text, names[0], remedy)
    if len(names) == 1 and (mark := unusual_separator(names[0], text.raw[end:].partition(b"\n")[0])):
        remedy = (
            f", and {mark} occurs as often in the first row; if it separates columns, use {setting('separator', mark)}"
        )
        raise _one_column(text, names[0], remedy)
    return names, end


def _one_column(text: DelimitedText, header: str, remedy: str) -> UsageError:
    """Return the error about a header with only one column.

    For a table of new rows, the remedy is replaced by a remedy without options.
    """
    remedy = remedy if text.has_options else "; separate its columns as in the training file"
    return UsageError(f"{text.where}: the header has only one column, {header!r}{remedy}")


def _check_comments(text: DelimitedText, names: Sequence[str], start: int) -> None:
    """Raise `UsageError` if there are comments (lines that begin with #) above the header.

    The message names the option that skips the comments. The last line that begins with # is the header, and not a
    comment, if it has as many fields as the next line.
    """
    if not names[0].startswith("#"):
        return
    lines = [line.decode("utf-8") for line in itertools.islice(text.stream(start), MAX_INSPECTED_LINES)]
    count = next((i for i, line in enumerate(lines) if not line.lstrip().startswith("#")), len(lines))
    next_records = [next(csv.reader([line], delimiter=text.delimiter), []) for line in lines[count - 1 : count + 3]]
    last, header, *rows = [*next_records, [], []]
    if len(last) == len(header) and (len(last) > 1 or count == 1):
        count -= 1  # the last comment is the header
        header, rows = last, [header, *rows]
    if not count:
        return
    first_comment = text.line_number(start)
    skipped, units = list(range(first_comment, first_comment + count)), ""
    if len(rows) > 1 and are_units(rows[0], rows[1]):
        skipped.append(first_comment + count + 1)
        units = f" (line {first_comment + count + 1} seems to hold units)"
    problem = "the first line is a comment" if count == 1 else f"the first {count} lines are comments (#)"
    pronoun = "it" if count == 1 else "them"
    remedy = f"leave {pronoun} out with {text.skip_option(skipped)}{units}" if text.has_options else f"remove {pronoun}"
    raise UsageError(f"{text.where}: {problem}, but the header must come first; {remedy}")


def _is_space_separated(text: DelimitedText, header: str, start: int) -> bool:
    """Whether the first row has as many words as the header, or one word more, which may be a row name."""
    row = text.raw[start:].lstrip().partition(b"\n")[0].decode("utf-8", "replace")
    return len(row.split()) - len(header.split()) in (0, 1)


def is_number_cell(cell: str) -> bool:
    """Whether a cell is a number."""
    return _NUMBER.fullmatch(cell.strip()) is not None


def check_names(names: Sequence[str], first_row: Sequence[str], where: str) -> None:
    """Check that the first line contains names and not data.

    Consecutive whole numbers are accepted as names if they start with 0 or 1, or if there are at least three of them,
    as in columns for years. Other whole numbers are accepted if some names are text, and if the cells below the numbers
    are not numbers.

    Args:
        names: the cells of the first line.
        first_row: the cells of the first row.
        where: the name of the file in messages.

    Raises:
        UsageError: if a name is a date and the cell below it is a date too, or if a number is not accepted as a name.
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
            number = (data or numbers)[0]
            raise UsageError(
                f"{where}: no header line: the first line holds numbers ({number}); put a line of column names above "
                f"it; if {number} is the name of a column, change it so that it begins with a letter"
            )


def header_line(raw: bytes, delimiter: str) -> int:
    """Return the line number, counted from 1, of the first line that has the most frequent number of fields.

    Return 0 if the most frequent number of fields is 1, or if this first line is not in the first half of the lines.
    """
    text = io.BytesIO(raw)
    counts = [line.decode("utf-8").count(delimiter) for line in itertools.islice(text, MAX_INSPECTED_LINES)]
    usual = max(counts, key=counts.count)
    return counts.index(usual) + 1 if usual and counts.index(usual) < len(counts) / 2 else 0


def remedy_for_extra_field(cells: Sequence[str], delimiter: str, decimal: str, *, has_options: bool) -> str:
    """Return the remedy for rows that have one field more than the header.

    Args:
        cells: the fields of the first such row.
        delimiter: the separator of fields.
        decimal: the decimal mark that the user requested.
        has_options: whether the remedy proposes options.
    """
    if any(cell.strip().startswith("'") for cell in cells):
        return "if cells are quoted with ', quote them with \" instead"
    drop = ", and leave that column out with [[drop]]" if has_options else ""
    names = (
        "if the rows begin with row names (as from R's write.table), add a column name for them at the start of the "
    )
    names += f"header{drop}"
    commas = "if numbers have decimal commas, separate the columns with semicolons" if delimiter == "," else ""
    both = (commas, names) if decimal == "," else (names, commas)
    return "; ".join(filter(None, both))


def are_units(row: Sequence[str], next_row: Sequence[str]) -> bool:
    """Whether a row probably contains units or widths of columns: it has no number, but the row below it has one."""
    return not any(map(is_number_cell, row)) and any(map(is_number_cell, next_row))


def _are_dates(*cells: str) -> bool:
    """Whether all cells are dates, with or without a time."""
    return all(len(cell) > len("2024-05") and DATE.fullmatch(cell) for cell in cells)
