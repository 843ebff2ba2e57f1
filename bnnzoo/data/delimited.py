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
import shlex
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from jaxtyping import Int

from bnnzoo.data import dialect
from bnnzoo.data.check import plain_name
from bnnzoo.data.columns import as_text
from bnnzoo.data.dialect import Dialect
from bnnzoo.data.first_lines import (
    LOOKED_AT,
    NUMBER_CELL,
    are_units,
    check_names,
    cure_of_one_more,
    header_line,
)
from bnnzoo.data.reading import PLAIN, SEPARATORS, Reading, skipped_lines, written_lines
from bnnzoo.data.textfile import CHUNK, only_ends_lines, read_text, spaces_as_tabs, without_lines
from bnnzoo.errors import BnnzooWarning, UsageError

if TYPE_CHECKING:
    import pandas as pd

DELIMITERS = {".csv": ",", ".tsv": "\t"}

_PADDED = re.compile(r"0[0-9]+(?:[.,][0-9]+)?")
_SEPARATOR_LINE = re.compile(rb"sep=([^\r\n])\r?\n", re.IGNORECASE)
"""Excel's first line that names the separator."""


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
        self._header_start = start
        header, self._start = self._header(start)
        if not self._raw[self._start : self._start + CHUNK].strip() and not self._raw[self._start :].strip():
            raise UsageError(f"{self.where}: a header but no data rows; add at least one")
        self._num_fields = len(header)
        self.names = header
        check_names(self.names, next(self._records(), []), self.where)
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
            option
            for option, asked, found, plain in (
                ("--separator", self._asked.separator, self._dialect.separator, usual),
                ("--decimal", self._asked.decimal, self.decimal, "."),
            )
            if not asked and found != plain
        ]
        verb = "changes" if len(options) == 1 else "change"
        by = f" (detected; {' and '.join(options)} {verb} it)" if self._has_options else ""
        return f"{self._dialect.describe()}{by}" if options else ""

    def has_number(self, row: int) -> bool:
        """Whether a row, counted from 0, has a number. False beyond the last row."""
        cells = next(itertools.islice(self._records(), row, None), [])
        return any(NUMBER_CELL.fullmatch(cell.strip()) for cell in cells)

    def is_row(self, row: int, levels: Collection[str]) -> bool:
        """Whether a row, from 0, has a number or one of these levels of text."""
        cells = next(itertools.islice(self._records(), row, None), [])
        return self.has_number(row) or any(as_text(cell) in levels for cell in cells)

    def padded(self, names: Sequence[str], /) -> dict[str, str]:
        """A cell with a leading zero, such as 0123, of each column that has one among its first cells."""
        place = {name: i for i, name in enumerate(self.names) if name in names}
        found: dict[str, str] = {}
        for cells in itertools.islice(self._records(), LOOKED_AT):
            found |= {
                name: cells[i].strip()
                for name, i in place.items()
                if name not in found and _PADDED.fullmatch(cells[i].strip())
            }
        return found

    def skip_option(self, *rows: int) -> str:
        """Return the option that also skips rows, counted from 0 (-1 is the header); "" for new files."""
        if not self._has_options:
            return ""
        return self._skip_option(sorted(line for row in rows for line in self._lines_of(row)))

    def _lines_of(self, row: int) -> range:
        """Return the lines, counted from 1, of a row counted from 0; -1 is the header."""
        first = self._raw.count(b"\n", 0, self._start) + 1
        if row < 0:
            return range(self._raw.count(b"\n", 0, self._header_start) + 1, first)
        if self._lines is not None:
            line = self._raw.count(b"\n", 0, int(self._lines[row])) + 1
            return range(line, line + 1)
        text = io.BytesIO(self._raw)
        text.seek(self._start)
        reader, last = self._reader(text), 0
        for _ in range(row + 1):
            last = reader.line_num
            next(reader)
        return range(first + last, first + reader.line_num)

    def _skip_option(self, lines: Collection[int]) -> str:
        """Return the option that also skips these lines, counted from 1 without the lines that are already skipped."""
        kept = itertools.filterfalse(self._skipped.__contains__, itertools.count(1))
        place = dict(enumerate(itertools.islice(kept, max(lines)), 1))
        return f"--skip-rows {written_lines({*self._skipped, *(place[line] for line in lines)})}"

    def _detected(self, preferred: str, default: Reading) -> tuple[Dialect, int]:
        """Return the dialect and the start of the header, which follows a line that names the separator."""
        asked, start = self._asked, 0
        named = _SEPARATOR_LINE.match(self._raw)
        if named is not None:
            start, preferred = named.end(), named[1].decode("utf-8", "replace")
        text = io.BytesIO(self._raw)
        text.seek(start)
        lines = [line.decode("utf-8") for line in itertools.islice(text, LOOKED_AT)]
        lines = list(itertools.dropwhile(lambda line: line.startswith("#"), lines)) or lines
        separator = asked.separator or (preferred if named else dialect.separator_of(lines, preferred))
        if separator is None:
            cure = "name one: --separator semicolon, for instance" if self._has_options else "separate them by commas"
            raise UsageError(
                f"{self.where}: several characters may separate the columns ({lines[0].strip()[:60]!r}); {cure}"
            )
        decimal = asked.decimal or dialect.decimal_of(lines, separator, default.decimal or ".")
        if asked.decimal == "," and not asked.separator and separator == "," and not dialect.has_commas(lines):
            warnings.warn(
                f"{self.where}: --decimal , has no effect: commas separate the columns, and no cell has a decimal "
                "comma; if another character separates them, --separator names it",
                BnnzooWarning,
                stacklevel=5,
            )
        if not asked.decimal and (cell := dialect.thousands_in(lines, separator, decimal)):
            warnings.warn(
                f"{self.where}: {cell} is read as {float(cell):g}, and so are others like it; beside semicolons the "
                "point may separate thousands: write such numbers without it"
                + ("; --decimal . if it is the decimal mark" if self._has_options else ""),
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
                f"{self.where}: {self._num_rows} rows or {len(found)}, by how line ends are read: they are mixed; "
                "save the file with one kind of line end"
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
            spaced = b'" "' in first and self._has_options
            cure = "if spaces separate columns, --separator space" if spaced else 'quote names as "a name"'
            raise UsageError(f"{self.where}: header: {error}; {cure}") from error
        names = tuple(map(plain_name, cells))
        if not any(names):
            blank = len(self._raw[start:]) - len(self._raw[start:].lstrip())
            above = range(1, self._raw.count(b"\n", 0, start + blank) + 1)
            cure = f"; {self._skip_option(above)} leaves blank lines out" if above and self._has_options else ""
            raise UsageError(
                f"{self.where}: the first line is empty; the header with the column names belongs there{cure}"
            )
        self._check_remarks(names, start)
        if len(names) > 2 and sum(map(bool, names)) == 1 and self._has_options:
            option = self._skip_option([self._raw.count(b"\n", 0, start) + 1])
            raise UsageError(
                f"{self.where}: the first line has {len(names)} cells, and only {next(filter(None, names))!r} is not "
                f"empty; if it is a title, {option} leaves it out"
            )
        if len(names) == 1 and any(mark in names[0] for mark in dialect.MARKS):
            likely = max(dialect.MARKS, key=names[0].count)
            word = next(word for word, mark in SEPARATORS.items() if mark == likely)
            separated = f"if columns are separated by {dialect.NAMES[likely]}, --separator {word}"
            raise self._one_column(names[0], separated if self._has_options else "")
        if len(names) == 1 and len(names[0].split()) > 1 and self._one_is_several(names[0], consumed):
            separated = "and the rows have spaces too; if they separate columns, --separator space"
            raise self._one_column(names[0], separated if self._has_options else "")
        if len(names) == 1 and (mark := dialect.unusual_separator(names[0], self._raw[consumed:].partition(b"\n")[0])):
            separated = (
                f"and the first row has {mark} as often; if it separates columns, --separator {shlex.quote(mark)}"
            )
            raise self._one_column(names[0], separated if self._has_options else "")
        return names, consumed

    def _one_column(self, header: str, cure: str) -> UsageError:
        """Return the error for a header that is one column; the default remedy is for new files."""
        cure = cure or "separate its columns as in the training file"
        comma = "," if cure.startswith("and") else ";"
        return UsageError(f"{self.where}: the header is one column, {header!r}{comma} {cure}")

    def _check_remarks(self, names: Sequence[str], start: int) -> None:
        """Refuse remarks (lines that begin with #) above the header, with the option that skips them.

        One line with # and as many fields as the next line is a header.
        """
        if not names[0].startswith("#"):
            return
        text = io.BytesIO(self._raw)
        text.seek(start)
        lines = [line.decode("utf-8") for line in itertools.islice(text, LOOKED_AT)]
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
        if len(rows) > 1 and are_units(rows[0], rows[1]):
            skipped.append(first + count + 1)
            units = f", and what looks like units in line {first + count + 1}"
        what = "the first line is a remark" if count == 1 else f"the first {count} lines are remarks (#)"
        them = "it" if count == 1 else "them"
        cure = f"{self._skip_option(skipped)} leaves {them} out{units}" if self._has_options else f"remove {them}"
        raise UsageError(f"{self.where}: {what}, and the header belongs there; {cure}")

    def _one_is_several(self, header: str, start: int) -> bool:
        """Whether the first row has as many words as the header, or one more: the names of rows."""
        row = self._raw[start:].lstrip().partition(b"\n")[0].decode("utf-8", "replace")
        return len(row.split()) - len(header.split()) in (0, 1)

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
            self._lines = None
            self._check_fields(*first, self.skip_option(first[1] - 1))
        return row

    def _refuse_header(self, cells: list[str], count: int) -> None:
        """Refuse a table of which most rows have another number of fields than the first line.

        Rows with one more may have names, as R's write.table gives them, or end with a separator. Other first lines
        are no header.
        """
        place = f"{self.where}: {count} rows have other numbers of fields than the header, {self._num_fields}"
        header = header_line(self._raw, self._delimiter)
        if header > 1 and self._num_fields == 1 and not any(NUMBER_CELL.fullmatch(cell.strip()) for cell in cells):
            cells = []  # a title above a header, and no names of rows
        if len(cells) == self._num_fields + 1:
            if not cells[-1].strip():
                raise UsageError(f"{place}: they end with a separator, and the header does not; add one to it")
            cure = cure_of_one_more(cells, self._delimiter, self._asked.decimal, has_options=self._has_options)
            raise UsageError(f"{place}, such as {len(cells)}: {cure}")
        if header > 1 and self._has_options:
            option = self._skip_option(range(1, header))
            raise UsageError(f"{place}; if the header is further down, {option} leaves out what is above it")

    def _check_fields(self, cells: list[str], row: int, option: str = "") -> None:
        cure = f", or {option} leaves its line out" if option else ""
        if not cells and self._num_fields > 1:
            raise UsageError(f"{self.where}: row {row}: an empty line; remove it{cure}")
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

    def _reader(self, text: io.BytesIO) -> Any:
        """Return the CSV reader of a text from its position on."""
        lines = (line.decode("utf-8") for line in text)
        return csv.reader(lines, delimiter=self._delimiter, strict=True, skipinitialspace=True)

    def _records(self, first: int = 0, place: int = 0) -> Iterator[list[str]]:
        """Yield the fields of each row, starting with row `first` (from 0) at position `place`."""
        text = io.BytesIO(self._raw)
        text.seek(place or self._start)
        reader = self._reader(text)
        for row in itertools.count(first + 1):
            try:
                yield next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # Python's message is for programmers and differs between versions.
                stray = str(error).startswith("new-line character")
                what = "a line break within a cell that has no quotes" if stray else error
                raise UsageError(f"{self.where}: row {row}: {what}; check its quotes") from error


def _are_long(numbers: pd.Series) -> bool:
    """Whether numbers are whole and some are too large for float64 to hold exactly."""
    present = numbers.to_numpy()
    present = present[np.isfinite(present)]
    return bool(np.max(np.abs(present), initial=0) >= 2**53) and np.array_equal(present, np.floor(present))
