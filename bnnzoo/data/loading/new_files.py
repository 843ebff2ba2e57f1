"""Text files of new rows. If the form of a file is ambiguous, the options of the training file are used."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Collection
from pathlib import Path

from bnnzoo.data.checks.check import plain_name
from bnnzoo.data.columns.reading_options import Reading, format_lines, parse_lines
from bnnzoo.data.formats.delimited import DelimitedTable
from bnnzoo.data.formats.textfile import is_utf8, read_text
from bnnzoo.data.rows.signature import Signature
from bnnzoo.errors import BnnzooWarning, UsageError

_CELLS = re.compile(r"[,;\t| \"]+")
"""Characters between the cells of a line, for any separator."""
_CELLS_WITH_SPACES = re.compile(r"[,;\t|\"]+")
_NUMBER = re.compile(r"[+-]?[0-9.]+")


def open_like_training(path: Path, signature: Signature) -> DelimitedTable:
    """Return the table in a text file of new rows.

    The separator and the decimal mark are detected. If they are ambiguous, those of the training file are used. A file
    in UTF-8 is read as UTF-8. Any other file is read with the encoding that was set for the training file.

    The lines that were skipped in the training file are skipped in this file too, unless they are data rows. A line is
    a data row if it is below the header and contains a number or a known text level.

    A warning is given if the separator or the decimal mark is unusual for the suffix, unless both are those of the
    training file.

    Raises:
        UsageError: if the file cannot be read as a table.
    """
    trained_reading = signature.reading.text_options
    encoding = "" if not trained_reading.encoding or is_utf8(path) else trained_reading.encoding
    table = _open_with_skipped_lines(path, Reading(encoding=encoding), trained_reading, signature)
    if table.note and (table.reading.separator, table.decimal) != (trained_reading.separator, trained_reading.decimal):
        warnings.warn(f"{table.where}: {table.note}", BnnzooWarning, stacklevel=4)
    return table


def _open_with_skipped_lines(
    path: Path, reading: Reading, trained_reading: Reading, signature: Signature
) -> DelimitedTable:
    lines = parse_lines(trained_reading.skip_rows)
    if not lines:
        return DelimitedTable(path, reading, trained_reading)
    columns = signature.column_names
    try:
        table = DelimitedTable(path, reading, trained_reading)
    except UsageError:
        if _begins_with_data(path, reading, columns, lines):
            raise
        return DelimitedTable(path, _skip_lines(reading, lines), trained_reading)
    if set(columns).isdisjoint(table.names):
        try:
            shorter_table = DelimitedTable(path, _skip_lines(reading, lines), trained_reading)
        except UsageError:
            return table  # the caller reports that the columns are unknown
        return table if set(columns).isdisjoint(shorter_table.names) else shorter_table
    levels = {level for column in (signature.encoding.columns if signature.encoding else ()) for level in column.levels}
    lines_to_skip = {line for line in lines if line > 1 and not table.is_row(line - 2, levels)}
    return DelimitedTable(path, _skip_lines(reading, lines_to_skip), trained_reading) if lines_to_skip else table


def _begins_with_data(path: Path, reading: Reading, columns: Collection[str], lines: Collection[int]) -> bool:
    """Whether a file probably begins with the header and data, so that skipping `lines` would lose rows.

    This is the case if two conditions hold: the first line contains the name of a training column, and one of `lines`
    does not exist or contains a number.
    """
    text = read_text(path, reading.encoding, has_options=False).decode("utf-8").split("\n")
    names = {plain_name(cell) for cell in (*_CELLS.split(text[0]), *_CELLS_WITH_SPACES.split(text[0]))}
    if names.isdisjoint(columns):
        return False
    cells = (cell for line in lines if 1 < line <= len(text) for cell in _CELLS.split(text[line - 1].strip()))
    return max(lines) > len(text) or any(map(_NUMBER.fullmatch, cells))


def _skip_lines(reading: Reading, lines: Collection[int]) -> Reading:
    return dataclasses.replace(reading, skip_rows=tuple(format_lines(lines).split(",")))
