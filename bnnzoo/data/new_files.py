"""Text files of new rows, read with the options of the training file unless they are written differently."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Collection
from pathlib import Path

from bnnzoo.data.check import plain_name
from bnnzoo.data.dataset import Signature
from bnnzoo.data.delimited import DelimitedTable
from bnnzoo.data.reading import Reading, skipped_lines, written_lines
from bnnzoo.data.textfile import is_utf8, read_text
from bnnzoo.errors import BnnzooWarning, UsageError

_CELLS = re.compile(r"[,;\t| \"]+")
"""Characters around the cells of a line, whatever separates them."""
_CELLS_WITH_SPACES = re.compile(r"[,;\t|\"]+")
_NUMBER = re.compile(r"[+-]?[0-9.]+")


def like_trained(path: Path, like: Signature) -> DelimitedTable:
    """Return the table in a text file of new rows.

    Separator and decimal mark are detected, and those of training where the file leaves them open. UTF-8 is read as
    such. Lines that training skipped are skipped where they hold no rows: above the header, or without any number or
    known level.
    """
    trained = like.reading.of_text
    encoding = "" if not trained.encoding or is_utf8(path) else trained.encoding
    table = _with_skipped(path, Reading(encoding=encoding), trained, like)
    if table.note and (table.reading.separator, table.decimal) != (trained.separator, trained.decimal):
        warnings.warn(f"{table.where}: {table.note}", BnnzooWarning, stacklevel=4)
    return table


def _with_skipped(path: Path, reading: Reading, trained: Reading, like: Signature) -> DelimitedTable:
    lines = skipped_lines(trained.skip_rows)
    if not lines:
        return DelimitedTable(path, reading, trained)
    columns = [column.name for column in like.encoding.columns] if like.encoding else like.feature_names
    try:
        table = DelimitedTable(path, reading, trained)
    except UsageError:
        if _begins_with_data(path, reading, columns, lines):
            raise
        return DelimitedTable(path, _skipping(reading, lines), trained)
    if set(columns).isdisjoint(table.names):
        try:
            skipped = DelimitedTable(path, _skipping(reading, lines), trained)
        except UsageError:
            return table  # its names are reported
        return table if set(columns).isdisjoint(skipped.names) else skipped
    levels = {level for column in (like.encoding.columns if like.encoding else ()) for level in column.levels}
    below = {line for line in lines if line > 1 and not table.is_row(line - 2, levels)}
    return DelimitedTable(path, _skipping(reading, below), trained) if below else table


def _begins_with_data(path: Path, reading: Reading, columns: Collection[str], lines: Collection[int]) -> bool:
    """Whether the first line names a training column, and some of the skipped `lines` is absent or has a number."""
    text = read_text(path, reading.encoding, has_options=False).decode("utf-8").split("\n")
    names = {plain_name(cell) for cell in (*_CELLS.split(text[0]), *_CELLS_WITH_SPACES.split(text[0]))}
    if names.isdisjoint(columns):
        return False
    cells = (cell for line in lines if 1 < line <= len(text) for cell in _CELLS.split(text[line - 1].strip()))
    return max(lines) > len(text) or any(map(_NUMBER.fullmatch, cells))


def _skipping(reading: Reading, lines: Collection[int]) -> Reading:
    return dataclasses.replace(reading, skip_rows=tuple(written_lines(lines).split(",")))
