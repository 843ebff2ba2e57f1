"""Separator and decimal mark of delimited text. They are detected from the first lines if no option sets them."""

from __future__ import annotations

import csv
import io
import itertools
import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.data.formats.delimited_text import MAX_INSPECTED_LINES
from bnnzoo.errors import BnnzooWarning, UsageError

MARKS = (",", ";", "\t", "|")
"""The separators that can be detected."""
NAMES = {",": "commas", ";": "semicolons (;)", "\t": "tabs", "|": "bars (|)", " ": "spaces"}
_RECORDS = 1000
"""Number of rows from which the decimal mark is detected."""
_FEW_RECORDS = 20
"""Number of rows from which the separator is detected."""

_WITH_COMMA = re.compile(r"[+\u2212-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")
_WITH_POINT = re.compile(r"[+\u2212-]?[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?")
_THOUSANDS = re.compile(r"[+\u2212-]?[1-9][0-9]{0,2}[.,][0-9]{3}")
"""A cell that may be a whole number with a thousands separator."""
_SEPARATOR_LINE = re.compile(rb"sep=([^\r\n])\r?\n", re.IGNORECASE)
"""A first line that names the separator. Excel reads such lines."""


def detect_dialect(
    raw: bytes, requested: Reading, default: Reading, usual: str, where: str, *, has_options: bool
) -> tuple[Reading, int]:
    """Return the options with separator and decimal mark, and the position in the text at which the header starts.

    If the first line names the separator (`sep=;`), the header starts after this line.

    Args:
        raw: the text.
        requested: the requested options.
        default: the options whose separator and decimal mark are used if detection is ambiguous.
        usual: the usual separator of files with this suffix. It is used if `default` has no separator.
        where: the name of the file in messages.
        has_options: whether error messages propose options.

    Raises:
        UsageError: if two or more characters may be the separator.
    """
    preferred = default.separator or usual
    start = 0
    separator_line = _SEPARATOR_LINE.match(raw)
    if separator_line is not None:
        start, preferred = separator_line.end(), separator_line[1].decode("utf-8", "replace")
    text = io.BytesIO(raw)
    text.seek(start)
    lines = [line.decode("utf-8") for line in itertools.islice(text, MAX_INSPECTED_LINES)]
    lines = list(itertools.dropwhile(lambda line: line.startswith("#"), lines)) or lines
    separator = requested.separator or (preferred if separator_line else _separator_of(lines, preferred))
    if separator is None:
        remedy = "name the separator, for instance [[separator=semicolon]]"
        remedy = remedy if has_options else "separate them by commas"
        raise UsageError(f"{where}: several characters may separate the columns ({lines[0].strip()[:60]!r}); {remedy}")
    decimal = requested.decimal or _decimal_of(lines, separator, default.decimal or ".")
    if requested.decimal == "," and not requested.separator and separator == "," and not _has_commas(lines):
        warnings.warn(
            f"{where}: [[decimal=,]] has no effect: commas separate the columns, and no cell has a decimal "
            "comma; if another character separates the columns, name it with [[separator]]",
            BnnzooWarning,
            stacklevel=5,
        )
    if not requested.decimal and (cell := _thousands_in(lines, separator, decimal)):
        warnings.warn(
            f"{where}: {cell} is read as {float(cell):g}, but in a file with semicolons the point may separate "
            "thousands; if the point separates thousands, write the numbers without it"
            + ("; if it is the decimal mark, use [[decimal=.]]" if has_options else ""),
            BnnzooWarning,
            stacklevel=5,
        )
    return replace(requested, separator=separator, decimal=cast(Any, decimal)), start


def _separator_of(lines: Sequence[str], preferred: str) -> str | None:
    """Return the separator of a file with these first lines, or None if two separators are equally likely.

    Three rules apply in turn:
    1. If `preferred` is a comma or is not in the first line, another separator that splits numbers with decimal commas
       takes precedence (see `_splits_numbers`).
    2. `preferred` is returned if it splits every line into the same number of cells.
    3. The only other separator that does so is returned, or `preferred` if there is no such separator.
    """
    lines = lines[: _FEW_RECORDS + 1]
    others = [mark for mark in MARKS if mark != preferred]
    if preferred == "," or preferred not in lines[0]:
        number_marks = [mark for mark in others if _splits_numbers(mark, lines)]
        if number_marks:
            return number_marks[0] if len(number_marks) == 1 else None
    if _is_regular(preferred, lines):
        return preferred
    regular = [mark for mark in others if _is_regular(mark, lines)]
    if len(regular) > 1:
        return None
    return regular[0] if regular else preferred


def _decimal_of(lines: Sequence[str], separator: str, preferred: Literal[".", ","]) -> Literal[".", ","]:
    """Return the decimal mark of the numbers below a header, or `preferred` if the numbers do not determine it.

    If commas separate the columns, the decimal mark is a comma only if `preferred` is a comma, some numbers have a
    decimal comma, and no number has a decimal point.
    """
    if separator == "," and preferred == ".":
        return preferred  # a quoted cell 1,5 need not be a number with a decimal comma
    commas, points = _decimals(_cells(lines, separator))
    if separator == ",":
        return "," if commas and not points else "."
    if commas == points:
        return preferred
    return "," if commas else "."


def _has_commas(lines: Sequence[str]) -> bool:
    """Whether a quoted cell contains a comma in a file with commas between the columns."""
    return any("," in cell for cell in _cells(lines, ","))


def unusual_separator(header: str, row: bytes) -> str:
    """Return a character outside `MARKS` that may separate the columns of a header and a row.

    Such a character occurs equally often in both lines. Return "" if there is no such character, or more than one.
    """
    first = row.decode("utf-8", "replace")
    marks = [mark for mark in dict.fromkeys(header) if not mark.isalnum() and mark not in "_-. \"'()[]%"]
    marks = [mark for mark in marks if header.strip(mark) == header and header.count(mark) == first.count(mark)]
    return marks[0] if len(marks) == 1 else ""


def _thousands_in(lines: Sequence[str], separator: str, decimal: str) -> str:
    """Return a cell such as 1.234 that may be a whole number with a thousands separator, or "" if there is none.

    Such a cell is ambiguous only if semicolons separate the columns, and if no other cell determines the decimal mark.
    """
    if separator != ";" or decimal != ".":
        return ""
    cells = _cells(lines, separator)
    candidates = sorted(cell for cell in cells if _THOUSANDS.fullmatch(cell) and "." in cell)
    return candidates[0].replace("\u2212", "-") if candidates and not any(_decimals(cells)) else ""


def _cells(lines: Sequence[str], separator: str) -> set[str]:
    """Return the distinct cells below a header. A bound such as <0.5 is replaced by its number."""
    rows = _records(lines[1:], separator, _RECORDS)
    return {cell.strip().lstrip("<>\u2264\u2265=").strip() for row in rows for cell in row}


def _decimals(cells: Collection[str]) -> tuple[bool, bool]:
    """Return whether a cell has a decimal comma, and whether a cell has a decimal point.

    Cells such as 1.234 are ignored, because their mark may be a thousands separator.
    """
    clear = [cell for cell in cells if not _THOUSANDS.fullmatch(cell)]
    return any(map(_WITH_COMMA.fullmatch, clear)), any(map(_WITH_POINT.fullmatch, clear))


def _splits_numbers(mark: str, lines: Sequence[str]) -> bool:
    """Whether every line contains `mark` equally often, and every comma below the header can be a decimal comma.

    For example, the separator ; splits `1,5;100` into two numbers. The separator | does not split `Homo|sapiens,1.5`
    into numbers, because the comma in `sapiens,1.5` is not a decimal comma.
    """
    counts = {line.count(mark) for line in lines}
    if len(lines) < 2 or len(counts) > 1 or 0 in counts:
        return False
    cells = (cell.strip() for line in lines[1:] for cell in line.split(mark))
    return all("," not in cell or _WITH_COMMA.fullmatch(cell) for cell in cells)


def _is_regular(mark: str, lines: Sequence[str]) -> bool:
    """Whether the separator `mark` splits every line into the same number of cells, and into at least two."""
    records = _records(lines, mark, _FEW_RECORDS + 1)
    return len(records) > 1 and len(records[0]) > 1 and len({len(record) for record in records}) == 1


def _records(lines: Sequence[str], mark: str, count: int) -> list[list[str]]:
    reader = csv.reader(lines, delimiter=mark, skipinitialspace=True)
    try:
        return list(itertools.islice(filter(None, reader), count))
    except csv.Error:  # reported when the rows are read
        return []
