"""Tables of numbers on disk: CSV, TSV and Parquet.

Two readers of text: pandas' C parser for speed, and an exact one in Python that defines what is accepted. The
fast one answers only where it cannot differ from the exact one; whatever it stumbles over goes to the exact
one, which names the row and the column, or reads the table.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import math
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnnzoo.data.check import and_more, check_column_names, did_you_mean
from bnnzoo.errors import UsageError

DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PLAIN_ROW = re.compile(r"[0-9eE+\-., \t]*")
_MISSING = {"nan", "+nan", "-nan", "na", "n/a", "#n/a", "null", "none", "<na>"}
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
_INFINITE = {"inf", "infinity"}


class Table(NamedTuple):
    """Columns by name; values [N, C] float64, which may still hold nan (Parquet) or what float32 cannot."""

    names: tuple[str, ...]
    values: NDArray[np.float64]


def read_table(path: Path, columns: Sequence[str] | None = None) -> Table:
    """The table in `path`: all its columns, or `columns` in that order (the others may hold anything)."""
    if path.suffix.lower() in DELIMITERS:
        return _read_text(path, DELIMITERS[path.suffix.lower()], columns)
    return _read_parquet(path, columns)


def column_indices(names: Sequence[str], columns: Sequence[str], where: str) -> list[int]:
    """Where each of `columns` stands in `names`."""
    for column in columns:
        if column not in names:
            raise UsageError(f"{where}: no column named {column}; {did_you_mean(column, names)}")
    return [list(names).index(column) for column in columns]


def _read_text(path: Path, delimiter: str, columns: Sequence[str] | None) -> Table:
    where = str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{where}: cannot be read ({error.strerror})") from error
    raw = _clean_bytes(raw, where)
    names, start = _read_header(raw, delimiter, where)
    body = raw[start:]
    if not body.strip():
        raise UsageError(f"{where}: a header but no data rows; add at least one")
    wanted = list(range(len(names))) if columns is None else column_indices(names, columns, where)
    values = _read_fast(body, delimiter, len(names), wanted)
    if values is None:
        values = _read_exact(body, delimiter, names, wanted, where)
    return Table(tuple(names[i] for i in wanted), values)


def _clean_bytes(raw: bytes, where: str) -> bytes:
    """`raw` without byte-order mark and closing blank lines, known to be UTF-8 text."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{where}: UTF-16 text, not UTF-8; save it as UTF-8")
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where}: {_line_place(raw, error.start)}: not UTF-8 (byte 0x{raw[error.start]:02x}); "
            "save the file as UTF-8"
        ) from error
    if b"\0" in raw:
        raise UsageError(f"{where}: {_line_place(raw, raw.index(0))}: a NUL byte; the file is damaged or not text")
    if b"\n" not in raw:
        raw = raw.replace(b"\r", b"\n")
    raw = raw.rstrip(b"\r\n")
    if not raw.strip():
        raise UsageError(f"{where}: the file is empty; it needs a header line and data rows")
    return raw


def _line_place(raw: bytes, position: int) -> str:
    row = raw.count(b"\n", 0, position)
    return f"row {row}" if row else "header"


def _read_header(raw: bytes, delimiter: str, where: str) -> tuple[list[str], int]:
    """The column names, and where in `raw` the first data row begins."""
    consumed = 0

    def lines():
        nonlocal consumed
        for line in io.BytesIO(raw):
            consumed += len(line)
            yield line.decode("utf-8")

    try:
        cells = next(csv.reader(lines(), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise UsageError(f'{where}: header: {error}; quote names as "a name"') from error
    names = [cell.strip() for cell in cells]
    if len(names) == 1 and any(mark in names[0] for mark in ",;|\t"):
        raise UsageError(
            f"{where}: the header is one column, {names[0]!r}; separate columns by a "
            f"{'comma' if delimiter == ',' else 'tab'}"
        )
    if not any(names):
        raise UsageError(f"{where}: the first line is empty; the header with the column names belongs there")
    numbered = [[str(i + first) for i in range(len(names))] for first in (0, 1)]
    if all(_NUMBER.fullmatch(name) for name in names) and names not in numbered:
        raise UsageError(f"{where}: no header line: the first line holds numbers; put a line of column names above it")
    check_column_names(names, where)
    return names, consumed


def _read_fast(body: bytes, delimiter: str, num_columns: int, wanted: list[int]) -> NDArray[np.float64] | None:
    """The columns `wanted` [N, len(wanted)] by pandas' C parser; None if anything is out of the ordinary."""
    import pandas as pd

    if b'"' in body:
        return None
    characters = np.frombuffer(body, dtype=np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(characters == ord("\n")) + 1])
    separators = np.add.reduceat(characters == ord(delimiter), starts, dtype=np.int64)
    if np.any(separators != num_columns - 1):
        return None
    lowered = body.lower()
    if b"true" in lowered or b"false" in lowered:
        return None  # pandas would read a column of these words as numbers
    try:
        frame = pd.read_csv(
            io.BytesIO(body),
            sep=delimiter,
            header=None,
            names=list(range(num_columns)),
            index_col=False,
            usecols=wanted,
            dtype=np.float64,
            na_filter=False,
            engine="c",
        )
    except (ValueError, OverflowError):
        return None
    values = frame[wanted].to_numpy(dtype=np.float64)
    if values.shape[0] != starts.size or not np.isfinite(values).all():
        return None
    return values


def _read_exact(
    body: bytes, delimiter: str, names: Sequence[str], wanted: list[int], where: str
) -> NDArray[np.float64]:
    """The columns `wanted` [N, len(wanted)], cell by cell; the first bad one is named, others are counted."""
    numbers = array("d")
    first_problem, num_problems = "", 0
    try:
        for row, cells in enumerate(_records(body, delimiter, len(names), where), start=1):
            picked = [cells[i] for i in wanted]
            plain = _plain_numbers(picked)
            if plain is not None:
                numbers.extend(plain)
                continue
            for i, cell in zip(wanted, picked, strict=True):
                number = _parse_number(cell)
                if not isinstance(number, str):
                    numbers.append(number)
                    continue
                first_problem = first_problem or f"{where}: row {row}, column {names[i]}: {number}"
                num_problems += 1
    except UsageError:
        if not num_problems:
            raise
    if num_problems:
        problem, _, cure = first_problem.rpartition("; ")
        raise UsageError(f"{problem}{and_more(num_problems - 1)}; {cure}")
    return np.asarray(numbers, dtype=np.float64).reshape(-1, len(wanted))


def _records(body: bytes, delimiter: str, num_columns: int, where: str) -> Iterator[list[str]]:
    """The rows of the table, each of `num_columns` cells."""
    reader = csv.reader((line.decode("utf-8") for line in io.BytesIO(body)), delimiter=delimiter, strict=True)
    for row in itertools.count(1):
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise UsageError(f"{where}: row {row}: {error}; check its quotes") from error
        if cells is None:
            return
        if not cells and num_columns > 1:
            raise UsageError(f"{where}: row {row}: an empty line; remove it")
        cells = cells or [""]
        if len(cells) != num_columns:
            raise UsageError(
                f"{where}: row {row}: {len(cells)} fields, but the header has {num_columns}; correct the row"
            )
        yield cells


def _plain_numbers(cells: list[str]) -> list[float] | None:
    """The numbers in a row whose cells are all plain finite ones: what `_parse_number` says, at less cost."""
    if not _PLAIN_ROW.fullmatch(",".join(cells)):
        return None
    try:
        numbers = [float(cell) for cell in cells]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _parse_number(cell: str) -> float | str:
    """The number in a cell, or `problem; cure`."""
    text = cell.strip()
    if _NUMBER.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return number
        return f"{_shown(text)} is infinite in float32; rescale the column"
    if not text:
        return "an empty cell; fill it in or drop the row"
    if text.casefold() in _MISSING:
        return "not a number (nan); fill it in or drop the row"
    if text.casefold().lstrip("+-") in _INFINITE:
        return f"not finite ({text}); fill it in or drop the row"
    if _NUMBER.fullmatch(text.replace(",", ".", 1)):
        return f"not a number ({_shown(text)}): a decimal comma; write a decimal point"
    return f"not a number ({_shown(text)}); write text as numbers, or drop the column"


def _shown(text: str) -> str:
    """A cell's text for a message: quoted, on one line, at most 40 characters."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Table:
    where = str(path)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(f"{where}: Parquet files need pyarrow; pip install 'bnnzoo[parquet]'") from error
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            all_names = [name for name in file.schema_arrow.names if not _PANDAS_INDEX.fullmatch(name)]
            check_column_names(all_names, where)
            names = all_names if columns is None else [all_names[i] for i in column_indices(all_names, columns, where)]
            table = file.read(columns=names)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{where}: not a Parquet file, or a damaged one; write it again") from error
    if table.num_rows == 0:
        raise UsageError(f"{where}: no data rows; add at least one")
    values = np.empty((table.num_rows, len(names)), dtype=np.float64)
    for i, name in enumerate(names):
        column = table.column(name)
        kind = column.type
        if pa.types.is_decimal(kind):
            column = column.cast(pa.float64())
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise UsageError(f"{where}: column {name}: not numbers ({kind}); write text as numbers, or drop the column")
        values[:, i] = np.asarray(column.to_pandas(), dtype=np.float64)
    return Table(tuple(names), values)
