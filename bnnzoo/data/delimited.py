"""Delimited text: CSV and TSV.

The form of every line is checked here (its fields, its quotes); pandas' C parser then converts. So that no line is
ever filled up, cut or skipped, as that parser would do.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import os
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from bnnzoo.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

DELIMITERS = {".csv": ",", ".tsv": "\t"}

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_COMMA_IN_NUMBER = re.compile(rb"[+-]?[0-9]*,[0-9]+|[^,]*")
_CHUNK = 2**22
_LOOKED_AT = 20
"""Rows that are looked at for another separator."""
_OTHERS = {
    b"\x1f\x8b": "packed by gzip; unpack it first (gunzip)",
    b"PK\x03\x04": "a zip archive or a spreadsheet, not text; save the table as CSV",
    b"sep=": "the first line names the separator; leave it out, and write the fields with commas",
}
"""What files begin with that are no table whose first line is its header."""


class DelimitedTable:
    """The table in a file of text: UTF-8, a header line with unique names, rows of as many fields."""

    def __init__(self, path: Path):
        self.where = str(path)
        self._delimiter = DELIMITERS[path.suffix.lower()]
        self._raw, start = _text_of(path)
        self.names, self._start = self._header(start)
        self._check_names()
        if not self._raw[self._start : self._start + _CHUNK].strip() and not self._raw[self._start :].strip():
            raise UsageError(f"{self.where}: a header but no data rows; add at least one")
        plain = b'"' not in self._raw and _only_ends_lines(self._raw)
        self._lines = self._check_lines() if plain else None
        self._num_rows = self._check_records() if self._lines is None else len(self._lines)

    def frame(self, names: Sequence[str], written: Collection[str] = (), /) -> pd.DataFrame:
        """The columns `names`, each of the type that all its cells have: numbers, booleans or else text as written."""
        place = {name: i for i, name in enumerate(self.names)}
        places = [place[name] for name in names]
        found = self._converted(places, [place[name] for name in written])
        # pandas infers the types of a long file piece by piece: numbers in some are no longer as written. Nor are whole
        # ones beside a gap, from 2^53 on.
        mixed = [i for i in places if found[i].dtype == object or (found[i].dtype == float and _are_long(found[i]))]
        if mixed:
            found[mixed] = self._converted(mixed, mixed)[mixed]
        return found[places].set_axis(list(names), axis=1)

    def _converted(self, places: list[int], texts: list[int]) -> Any:
        """The columns at `places`, those of `texts` among them as text, by place."""
        import pandas as pd

        text = io.BytesIO(self._raw)
        text.seek(self._start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            found = pd.read_csv(
                text,
                sep=self._delimiter,
                header=None,
                names=list(range(len(self.names))),
                usecols=places,
                dtype=dict.fromkeys(texts, str),
                index_col=False,
                skip_blank_lines=False,
                skipinitialspace=True,
                engine="c",
            )
        if len(found) != self._num_rows:
            raise UsageError(
                f"{self.where}: {self._num_rows} rows or {len(found)}, by how line ends are read: they are mixed; "
                "save the file with one kind of line end"
            )
        return found

    def shown(self, row: int, name: str) -> str:
        """The raw text of a cell; `row` counts from 0."""
        if self._lines is None:
            cells = next(itertools.islice(self._records(), row, None))
        else:
            cells = next(self._records(row, int(self._lines[row])))
        return cells[self.names.index(name)] if cells else ""

    def _header(self, start: int) -> tuple[tuple[str, ...], int]:
        """The column names, and where the first data row begins."""
        consumed = start

        def lines() -> Iterator[str]:
            nonlocal consumed
            text = io.BytesIO(self._raw)
            text.seek(start)
            for line in text:
                consumed += len(line)
                yield line.decode("utf-8")

        try:
            cells = next(csv.reader(lines(), delimiter=self._delimiter, strict=True, skipinitialspace=True))
        except csv.Error as error:
            raise UsageError(f'{self.where}: header: {error}; quote names as "a name"') from error
        names = tuple(cell.strip() for cell in cells)
        if len(names) == 1 and any(mark in names[0] for mark in ",;|\t"):
            raise UsageError(
                f"{self.where}: the header is one column, {names[0]!r}; separate columns by a "
                f"{'comma' if self._delimiter == ',' else 'tab'}"
            )
        if len(names) == 1 and len(names[0].split()) > 1 and self._one_is_several(names[0], consumed):
            raise UsageError(
                f"{self.where}: the header is one column, {names[0]!r}, and the rows have spaces too; separate columns "
                "by commas"
            )
        if not any(names):
            raise UsageError(f"{self.where}: the first line is empty; the header with the column names belongs there")
        if names[0].startswith("#") and len(names) != self._fields_of_next(consumed):
            raise UsageError(f"{self.where}: the first line is a remark; leave such lines out, the header is the first")
        for mark in ";|":
            if self._is_of(mark, start, consumed):
                wanted = "comma" if self._delimiter == "," else "tab"
                raise UsageError(f"{self.where}: columns are separated by {mark!r}; separate columns by a {wanted}")
        return names, consumed

    def _is_of(self, mark: str, start: int, after: int) -> bool:
        """Whether the header and the first rows have another mark equally often, and between its marks a row has commas
        in numbers alone: 1,5 and no `Homo|sapiens,1.5`, which is two cells.
        """
        text = io.BytesIO(self._raw)
        text.seek(after)
        lines = [self._raw[start:after], *itertools.islice(text, _LOOKED_AT)]
        counts = {line.count(mark.encode()) for line in lines}
        cells = (cell.strip() for line in lines[1:] for cell in line.split(mark.encode()))
        return len(lines) > 1 and len(counts) == 1 and 0 not in counts and all(map(_COMMA_IN_NUMBER.fullmatch, cells))

    def _fields_of_next(self, start: int) -> int:
        line = self._raw[start:].partition(b"\n")[0].decode("utf-8", "replace")
        return len(next(csv.reader([line], delimiter=self._delimiter), []))

    def _one_is_several(self, header: str, start: int) -> bool:
        """Whether the first row has as many words as the header."""
        row = self._raw[start:].lstrip().partition(b"\n")[0].decode("utf-8", "replace")
        return len(row.split()) == len(header.split())

    def _check_names(self) -> None:
        """The first line holds names: no numbers but those that count columns (0, 1, ...) or years, or head text."""
        numbers = [name for name in self.names if _NUMBER.fullmatch(name)]
        first = int(numbers[0]) if numbers and numbers[0].isdecimal() else -1
        counted = numbers == [str(first + i) for i in range(len(numbers))] and (first in (0, 1) or len(numbers) > 2)
        if numbers and not counted:
            below = next(self._records(), [])
            data = [
                name
                for name, cell in itertools.zip_longest(self.names, below[: len(self.names)], fillvalue="")
                if name in numbers and (not name.isdecimal() or _NUMBER.fullmatch(cell.strip()))
            ]
            if data or len(numbers) == len(self.names):
                raise UsageError(
                    f"{self.where}: no header line: the first line holds numbers ({(data or numbers)[0]}); put a line "
                    "of column names above it; if that is a name, begin it with a letter"
                )

    def _check_lines(self) -> Int[np.ndarray, " row"]:
        """Where each row begins, in text without quotes, all rows having as many fields as the header."""
        characters = np.frombuffer(self._raw, np.uint8, offset=self._start)
        starts, separators, open_line = [np.zeros(1, np.int64)], [], 0
        for first in range(0, len(characters), _CHUNK):
            piece = characters[first : first + _CHUNK]
            ends = np.flatnonzero(piece == ord("\n"))
            # Each sum begins at the end of the line before, which is no separator.
            found = np.add.reduceat((piece == ord(self._delimiter)).view(np.int8), np.r_[0, ends], dtype=np.int32)
            found[0] += open_line
            open_line = found[-1]
            starts.append(first + ends + 1)
            separators.append(found[:-1])
        counts = np.concatenate([*separators, [open_line]])
        lines = self._start + np.concatenate(starts)
        wrong = np.flatnonzero(counts != len(self.names) - 1)
        if wrong.size:
            row = int(wrong[0])
            self._check_fields(next(self._records(row, int(lines[row]))), row + 1)
        return lines

    def _check_records(self) -> int:
        """The number of rows, of text with quotes, all of them having as many fields as the header."""
        row = 0
        for row, cells in enumerate(self._records(), start=1):
            if len(cells) != len(self.names):
                self._check_fields(cells, row)
        return row

    def _check_fields(self, cells: list[str], row: int) -> None:
        if not cells and len(self.names) > 1:
            raise UsageError(f"{self.where}: row {row}: an empty line; remove it")
        if len(cells or [""]) != len(self.names):
            raise UsageError(
                f"{self.where}: row {row}: {len(cells)} fields, but the header has {len(self.names)}; correct the row"
            )

    def _records(self, first: int = 0, place: int = 0) -> Iterator[list[str]]:
        """The fields of each row, from row `first` (from 0) on, which begins at `place`."""
        text = io.BytesIO(self._raw)
        text.seek(place or self._start)
        reader = csv.reader(
            (line.decode("utf-8") for line in text), delimiter=self._delimiter, strict=True, skipinitialspace=True
        )
        for row in itertools.count(first + 1):
            try:
                yield next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # Python says this in words that are a programmer's, and others in each version.
                stray = str(error).startswith("new-line character")
                what = "a line break within a cell that has no quotes" if stray else error
                raise UsageError(f"{self.where}: row {row}: {what}; check its quotes") from error


def _text_of(path: Path) -> tuple[bytes, int]:
    """The bytes of a file of UTF-8 text, and how many of them are a byte-order mark."""
    where = str(path)
    try:
        raw = _without_closing_lines(path)
    except OSError as error:
        raise UsageError(f"{where}: cannot be read ({error.strerror})") from error
    for magic, what in _OTHERS.items():
        if raw.startswith(magic):
            raise UsageError(f"{where}: {what}")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{where}: UTF-16 text, not UTF-8; save it as UTF-8")
    start = 0
    while raw.startswith(codecs.BOM_UTF8, start):  # several where exports were joined
        start += len(codecs.BOM_UTF8)
    if not raw.isascii():
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
    if b"\r\r\n" in raw:  # CRLF that was written through a text file of Windows
        raw = re.sub(rb"\r+\n", b"\n", raw)
    raw = raw.rstrip(b"\r\n")
    if not raw[start : start + _CHUNK].strip() and not raw[start:].strip():
        raise UsageError(f"{where}: the file is empty; it needs a header line and data rows")
    return raw, start


def _without_closing_lines(path: Path) -> bytes:
    """What a file holds but its closing blank lines, which are no rows: to strip them from the text would copy it."""
    with path.open("rb") as file:
        if not file.seekable():
            return file.read()
        end = file.seek(0, os.SEEK_END)
        while end:
            first = max(0, end - _CHUNK)
            file.seek(first)
            end = first + len(file.read(end - first).rstrip(b"\r\n"))
            if end > first:
                break
        file.seek(0)
        return file.read(end)


def _only_ends_lines(raw: bytes) -> bool:
    """Whether each carriage return is part of a line's end."""
    return b"\r" not in raw or raw.count(b"\r") == raw.count(b"\r\n")


def _are_long(numbers: pd.Series) -> bool:
    """Whether these are whole numbers, some of more digits than float64 holds."""
    present = numbers.to_numpy()
    present = present[np.isfinite(present)]
    return bool(np.max(np.abs(present), initial=0) >= 2**53) and np.array_equal(present, np.floor(present))


def _line_place(raw: bytes, position: int) -> str:
    row = raw.count(b"\n", 0, position)
    return f"row {row}" if row else "header"
