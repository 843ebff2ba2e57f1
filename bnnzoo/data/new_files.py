"""Text files of new rows, read with the options of the training file unless they are written differently."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection
from pathlib import Path

from bnnzoo.data.dataset import Signature
from bnnzoo.data.delimited import DelimitedTable
from bnnzoo.data.reading import Reading, skipped_lines, written_lines
from bnnzoo.data.textfile import is_utf8
from bnnzoo.errors import BnnzooWarning, UsageError


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
        return DelimitedTable(path, _skipping(reading, lines), trained)
    if not set(columns) <= set(table.names):
        return DelimitedTable(path, _skipping(reading, lines), trained)
    levels = {level for column in (like.encoding.columns if like.encoding else ()) for level in column.levels}
    below = {line for line in lines if line > 1 and not table.is_row(line - 2, levels)}
    return DelimitedTable(path, _skipping(reading, below), trained) if below else table


def _skipping(reading: Reading, lines: Collection[int]) -> Reading:
    return dataclasses.replace(reading, skip_rows=tuple(written_lines(lines).split(",")))
