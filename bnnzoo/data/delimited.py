"""Delimited text: CSV and TSV.

This module checks the fields and the quotes of every line; pandas' C parser then converts the cells. On its own that
parser would pad, truncate or skip malformed lines.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from jaxtyping import Int

from bnnzoo.data import dialect
from bnnzoo.data.dialect import Dialect
from bnnzoo.data.forms import DATE
from bnnzoo.data.reading import PLAIN, SEPARATORS, Reading, skipped_lines, written_lines
from bnnzoo.data.textfile import CHUNK, only_ends_lines, read_text, spaces_as_tabs, without_lines
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.finding import setting

if TYPE_CHECKING:
    import pandas as pd

DELIMITERS = {".csv": ",", ".tsv": "\t"}

_NUMBER = re.compile(r"[+-]?(?:[0-9]+[.,]?[0-9]*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?")
_PADDED = re.compile(r"0[0-9]+(?:[.,][0-9]+)?")
_SEPARATOR_LINE = re.compile(rb"sep=([^\r\n])\r?\n", re.IGNORECASE)
"""Excel's first line that names the separator."""
_LOOKED_AT = 1024
"""Number of lines for detecting the separator and the decimal mark."""


class DelimitedTable:
    """The table in a text file: a header line with unique names, and rows with the same number of fields.

    Args:
        reading: the requested options; the others are detected.
        trained: the reading of the training table, for a table of new rows; used if detection is ambiguous. No options
            apply then, and messages name none.
    """

    def __init__(self, path: Path, reading: Reading = PLAIN, trained: Reading | None = None):
        self.where = str(path)
        self._asked, default, self._has_options = reading, trained or PLAIN, trained is None
        raw = read_text(path, self._asked.encoding, has_options=self._has_options)
        self._skipped = skipped_lines(self._asked.skip_rows)
        self._raw = without_lines(raw, self._skipped, self.where)
        self._dialect, start = self._detected(default.separator or DELIMITERS[path.suffix.lower()], default)
        self._delimiter = self._dialect.separator
        if self._delimiter == " ":
            self._raw, self._delimiter = spaces_as_tabs(self._raw), "\t"
        header, self._start = self._header(start)
        if not self._raw[self._start : self._start + CHUNK].strip() and not self._raw[self._start :].strip():
            raise UsageError(f"{self.where}: a header but no data rows; add at least one row")
        self._num_fields = len(header)
        self.names = header
        self._check_names()
        plain = b'"' not in self._raw and only_ends_lines(self._raw)
        self._lines = self._check_lines() if plain else None
        self._num_rows = self._check_records() if self._lines is None else len(self._lines)
        self.names = self._without_empty_end()

    @property
    def decimal(self) -> Literal["", ".", ","]:
        """Decimal mark of numbers."""
        return self._dialect.decimal

    @property
    def reading(self) -> Reading:
        """Reading of the file, including detected options."""
        return dataclasses.replace(self._asked, separator=self._dialect.separator, decimal=self.decimal)

    @property
    def note(self) -> str:
        """Detected options that differ from the plain form; "" if there are none."""
        usual = DELIMITERS[Path(self.where).suffix.lower()]
        options = [
            setting(field)
            for field, asked, found, plain in (
                ("separator", self._asked.separator, self._dialect.separator, usual),
                ("decimal", self._asked.decimal, self.decimal, "."),
            )
            if not asked and found != plain
        ]
        verb = "changes" if len(options) == 1 else "change"
        by = f" (detected; {' and '.join(options)} {verb} this)" if self._has_options else ""
        return f"{self._dialect.describe()}{by}" if options else ""

    def has_number(self, row: int) -> bool:
        """Whether a row, counted from 0, has a number. False beyond the last row."""
        cells = next(itertools.islice(self._records(), row, None), [])
        return any(_NUMBER.fullmatch(cell.strip()) for cell in cells)

    def is_row(self, row: int, levels: Collection[str]) -> bool:
        """Whether a row, from 0, has a number or one of these levels of text."""
        cells = next(itertools.islice(self._records(), row, None), [])
        return self.has_number(row) or any(" ".join(cell.split()) in levels for cell in cells)

    def padded(self, names: Sequence[str], /) -> dict[str, str]:
        """A cell with a leading zero, such as 0123, of each column that has one among its first cells."""
        place = {name: i for i, name in enumerate(self.names) if name in names}
        found: dict[str, str] = {}
        for cells in itertools.islice(self._records(), _LOOKED_AT):
            found |= {
                name: cells[i].strip()
                for name, i in place.items()
                if name not in found and _PADDED.fullmatch(cells[i].strip())
            }
        return found

    def skip_option(self, row: int) -> str:
        """Return the option that also skips a row, counted from 0; "" if its line is unknown."""
        if self._lines is None or not self._has_options:
            return ""
        return self._skip_option([self._raw.count(b"\n", 0, int(self._lines[row])) + 1])

    def _skip_option(self, lines: Collection[int]) -> str:
        """Return the option that also skips these lines, counted from 1 without the lines that are already skipped."""
        kept = itertools.filterfalse(self._skipped.__contains__, itertools.count(1))
        place = dict(enumerate(itertools.islice(kept, max(lines)), 1))
        return f"{setting('skip_rows', written_lines({*self._skipped, *(place[line] for line in lines)}))}"

    def _detected(self, preferred: str, default: Reading) -> tuple[Dialect, int]:
        """Return the dialect and the start of the header, which follows a line that names the separator."""
        asked, start = self._asked, 0
        named = _SEPARATOR_LINE.match(self._raw)
        if named is not None:
            start, preferred = named.end(), named[1].decode("utf-8", "replace")
        text = io.BytesIO(self._raw)
        text.seek(start)
        lines = [line.decode("utf-8") for line in itertools.islice(text, _LOOKED_AT)]
        lines = list(itertools.dropwhile(lambda line: line.startswith("#"), lines)) or lines
        separator = asked.separator or (preferred if named else dialect.separator_of(lines, preferred))
        if separator is None:
            raise UsageError(
                f"{self.where}: several characters may separate the columns ({lines[0].strip()[:60]!r}); name "
                "the separator, for instance [[separator=semicolon]]"
            )
        decimal = asked.decimal or dialect.decimal_of(lines, separator, default.decimal or ".")
        if not asked.decimal and (cell := dialect.thousands_in(lines, separator, decimal)):
            warnings.warn(
                f"{self.where}: {cell} is read as {float(cell):g}, and similar cells likewise; in a file with "
                "semicolons the point may separate thousands; if it does, write such numbers without it"
                + ("; if it is the decimal mark, use [[decimal=.]]" if self._has_options else ""),
                BnnzooWarning,
                stacklevel=5,
            )
        return Dialect(separator, cast(Any, decimal)), start

    def frame(self, names: Sequence[str], written: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names`, each of the type of all its cells: numbers, booleans, or else text as written."""
        place = {name: i for i, name in enumerate(self.names)}
        places = [place[name] for name in names]
        found = self._converted(places, [place[name] for name in written])
        # pandas infers the types of a long file in pieces: a column with numbers in some pieces loses the original
        # text. Integers from 2^53 on beside a gap lose digits. These columns are read again as text.
        mixed = [i for i in places if found[i].dtype == object or (found[i].dtype == float and _are_long(found[i]))]
        if mixed:
            found[mixed] = self._converted(mixed, mixed)[mixed]
        return found[places].set_axis(list(names), axis=1)

    def _converted(self, places: list[int], texts: list[int]) -> Any:
        """Return the columns at `places`, by position; those at `texts` are read as text."""
        import pandas as pd

        text = io.BytesIO(self._raw)
        text.seek(self._start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            found = pd.read_csv(
                text,
                sep=self._delimiter,
                decimal=self.decimal,
                header=None,
                names=list(range(self._num_fields)),
                usecols=places,
                dtype=dict.fromkeys(texts, str),
                index_col=False,
                skip_blank_lines=False,
                skipinitialspace=True,
                engine="c",
            )
        if len(found) != self._num_rows:
            raise UsageError(
                f"{self.where}: the file has {self._num_rows} or {len(found)} rows, because its line ends are "
                "mixed; save it with one kind of line end"
            )
        return found

    def shown(self, row: int, name: str) -> str:
        """Return the raw text of a cell; `row` counts from 0."""
        if self._lines is None:
            cells = next(itertools.islice(self._records(), row, None))
        else:
            cells = next(self._records(row, int(self._lines[row])))
        return cells[self.names.index(name)] if cells else ""

    def _header(self, start: int) -> tuple[tuple[str, ...], int]:
        """Return the column names and the position of the first data row."""
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
            first = self._raw[start:].partition(b"\n")[0]
            cure = (
                ("if spaces separate columns, use [[separator=space]]")
                if b'" "' in first
                else 'quote names as "a name"'
            )
            raise UsageError(f"{self.where}: header: {error}; {cure}") from error
        names = tuple(cell.strip() for cell in cells)
        if not any(names):
            raise UsageError(
                f"{self.where}: the first line is empty, but must be the header; put the column names there"
            )
        self._check_remarks(names, start)
        if len(names) > 2 and sum(map(bool, names)) == 1 and self._has_options:
            option = self._skip_option([self._raw.count(b"\n", 0, start) + 1])
            raise UsageError(
                f"{self.where}: the first line has {len(names)} cells, and only {next(filter(None, names))!r} "
                f"is not empty; if it is a title, leave it out with {option}"
            )
        if len(names) == 1 and any(mark in names[0] for mark in dialect.MARKS):
            likely = max(dialect.MARKS, key=names[0].count)
            word = next(word for word, mark in SEPARATORS.items() if mark == likely)
            raise UsageError(
                f"{self.where}: the header is one column, {names[0]!r}; if columns are separated by "
                f"{dialect.NAMES[likely]}, use {setting('separator', word)}"
            )
        if len(names) == 1 and len(names[0].split()) > 1 and self._one_is_several(names[0], consumed):
            raise UsageError(
                f"{self.where}: the header is one column, {names[0]!r}, and the rows contain spaces; if spaces "
                "separate columns, use [[separator=space]]"
            )
        return names, consumed

    def _check_remarks(self, names: Sequence[str], start: int) -> None:
        """Refuse remarks (lines that begin with #) above the header, with the option that skips them.

        One line with # and as many fields as the next line is a header.
        """
        if not names[0].startswith("#"):
            return
        text = io.BytesIO(self._raw)
        text.seek(start)
        lines = [line.decode("utf-8") for line in itertools.islice(text, _LOOKED_AT)]
        count = next((i for i, line in enumerate(lines) if not line.lstrip().startswith("#")), len(lines))
        below = [next(csv.reader([line], delimiter=self._delimiter), []) for line in lines[count - 1 : count + 3]]
        last, header, *rows = [*below, [], []]
        if len(last) == len(header) and (len(last) > 1 or count == 1):
            count -= 1  # the last remark is the header
            header, rows = last, [header, *rows]
        if not count:
            return
        first = self._raw.count(b"\n", 0, start) + 1
        skipped, units = list(range(first, first + count)), ""
        if len(rows) > 1 and _are_units(rows[0], rows[1]):
            skipped.append(first + count + 1)
            units = f", and line {first + count + 1} seems to hold units"
        what = "the first line is a remark" if count == 1 else f"the first {count} lines are remarks (#)"
        them = "it" if count == 1 else "them"
        cure = f"leave {them} out with {self._skip_option(skipped)}{units}" if self._has_options else f"remove {them}"
        raise UsageError(f"{self.where}: {what}, but the header must come first; {cure}")

    def _one_is_several(self, header: str, start: int) -> bool:
        """Whether the first row has as many words as the header, or one more: the names of rows."""
        row = self._raw[start:].lstrip().partition(b"\n")[0].decode("utf-8", "replace")
        return len(row.split()) - len(header.split()) in (0, 1)

    def _check_names(self) -> None:
        """The first line holds names: no numbers but those that count columns (0, 1, ...) or years, or head text."""
        below = next(self._records(), [])
        dates = [name for name, cell in zip(self.names, below, strict=False) if _are_dates(name, cell.strip())]
        if dates:
            raise UsageError(
                f"{self.where}: no header line: the first line holds a date ({dates[0]}), and so does the "
                "second; put a line of column names above it"
            )
        numbers = [name for name in self.names if _NUMBER.fullmatch(name)]
        first = int(numbers[0]) if numbers and numbers[0].isdecimal() else -1
        counted = numbers == [str(first + i) for i in range(len(numbers))] and (first in (0, 1) or len(numbers) > 2)
        if numbers and not counted:
            data = [
                name
                for name, cell in itertools.zip_longest(self.names, below[: len(self.names)], fillvalue="")
                if name in numbers and (not name.isdecimal() or _NUMBER.fullmatch(cell.strip()))
            ]
            if data or len(numbers) == len(self.names):
                raise UsageError(
                    f"{self.where}: no header line: the first line holds numbers ({(data or numbers)[0]}); put "
                    "a line of column names above it; if that is the name of a column, let it begin with a "
                    "letter"
                )

    def _check_lines(self) -> Int[np.ndarray, " row"]:
        """Check the number of fields of each row in text without quotes; return the start position of each row."""
        characters = np.frombuffer(self._raw, np.uint8, offset=self._start)
        starts, separators, open_line = [np.zeros(1, np.int64)], [], 0
        for first in range(0, len(characters), CHUNK):
            piece = characters[first : first + CHUNK]
            ends = np.flatnonzero(piece == ord("\n"))
            # Each sum starts at the previous line end, which is not a separator.
            found = np.add.reduceat((piece == ord(self._delimiter)).view(np.int8), np.r_[0, ends], dtype=np.int32)
            found[0] += open_line
            open_line = found[-1]
            starts.append(first + ends + 1)
            separators.append(found[:-1])
        counts = np.concatenate([*separators, [open_line]])
        lines = self._start + np.concatenate(starts)
        wrong = np.flatnonzero(counts != self._num_fields - 1)
        if wrong.size:
            row = int(wrong[0])
            cells = next(self._records(row, int(lines[row])))
            if 2 * wrong.size > len(counts):
                self._refuse_header(cells, int(wrong.size))
            option = self._skip_option([self._raw.count(b"\n", 0, int(lines[row])) + 1]) if self._has_options else ""
            self._check_fields(cells, row + 1, option)
        return lines

    def _check_records(self) -> int:
        """The number of rows, of text with quotes, all of them having as many fields as the header."""
        row, wrong, first = 0, 0, ([], 0)
        for row, cells in enumerate(self._records(), start=1):
            if len(cells or [""]) != self._num_fields:
                first, wrong = first if wrong else (cells, row), wrong + 1
        if 2 * wrong > row:
            self._refuse_header(first[0], wrong)
        if wrong:
            self._check_fields(*first)
        return row

    def _refuse_header(self, cells: list[str], count: int) -> None:
        """Refuse a table of which most rows have another number of fields than the first line.

        Rows with one more may have names, as R's write.table gives them, or end with a separator. Other first lines
        are no header.
        """
        place = f"{self.where}: {count} rows do not have {self._num_fields} fields, as the header has"
        if len(cells) == self._num_fields + 1:
            if not cells[-1].strip():
                raise UsageError(f"{place}, because they end with a separator; let the header end with one too")
            raise UsageError(
                f"{place}, but for instance {len(cells)}; if they begin with row names (as R's write.table "
                "writes them), add a name for these at the start of the header, and leave that column out with "
                "[[drop]]"
            )
        header = self._header_line()
        if header > 1 and self._has_options:
            option = self._skip_option(range(1, header))
            raise UsageError(f"{place}; if the header is further down, leave out the lines above it with {option}")

    def _header_line(self) -> int:
        """The first line, from 1, from which on lines have as many fields as most; 0 where there is none."""
        text = io.BytesIO(self._raw)
        lines = [line.decode("utf-8") for line in itertools.islice(text, _LOOKED_AT)]
        counts = [line.count(self._delimiter) for line in lines]
        usual = max(counts, key=counts.count)
        return counts.index(usual) + 1 if usual and counts.index(usual) < len(counts) / 2 else 0

    def _check_fields(self, cells: list[str], row: int, option: str = "") -> None:
        cure = f", or leave its line out with {option}" if option else ""
        if not cells and self._num_fields > 1:
            raise UsageError(f"{self.where}: row {row}: the line is empty; remove it{cure}")
        if len(cells or [""]) != self._num_fields:
            remark = ": a remark (#)" if cells and cells[0].startswith("#") else ""
            raise UsageError(
                f"{self.where}: row {row}: {len(cells)} fields, but the header has {self._num_fields}{remark}; "
                f"correct the row{cure}"
            )

    def _without_empty_end(self) -> tuple[str, ...]:
        """Return the names without the nameless empty last columns of lines that end with separators."""
        names = list(self.names)
        while (
            len(names) > 1
            and not names[-1]
            and self._converted([len(names) - 1], [len(names) - 1]).isna().to_numpy().all()
        ):
            names.pop()
        return tuple(names)

    def _records(self, first: int = 0, place: int = 0) -> Iterator[list[str]]:
        """Yield the fields of each row, starting with row `first` (from 0) at position `place`."""
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
                # Python's message is for programmers and differs between versions.
                stray = str(error).startswith("new-line character")
                what = "a line break in a cell without quotes" if stray else error
                raise UsageError(f"{self.where}: row {row}: {what}; correct its quotes") from error


def _are_dates(*cells: str) -> bool:
    """Whether all cells are days, or moments."""
    return all(len(cell) > len("2024-05") and DATE.fullmatch(cell) for cell in cells)


def _are_long(numbers: pd.Series) -> bool:
    """Whether numbers are whole and some are too large for float64 to hold exactly."""
    present = numbers.to_numpy()
    present = present[np.isfinite(present)]
    return bool(np.max(np.abs(present), initial=0) >= 2**53) and np.array_equal(present, np.floor(present))


def _are_units(row: Sequence[str], below: Sequence[str]) -> bool:
    """Whether a row has no number but the row below has one: units or widths of the columns."""
    return not any(_NUMBER.fullmatch(cell.strip()) for cell in row) and any(
        _NUMBER.fullmatch(cell.strip()) for cell in below
    )
