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
from bnnzoo.data.check import plain_name
from bnnzoo.data.columns import as_text
from bnnzoo.data.dialect import Dialect
from bnnzoo.data.first_lines import (
    MAX_INSPECTED_LINES,
    are_units,
    check_names,
    header_line,
    is_number_cell,
    remedy_for_extra_field,
)
from bnnzoo.data.reading import PLAIN, SEPARATORS, Reading, format_lines, parse_lines
from bnnzoo.data.textfile import CHUNK, has_plain_line_ends, read_text, spaces_to_tabs, without_lines
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.finding import setting

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
        self._requested, default, self._has_options = reading, trained or PLAIN, trained is None
        raw = read_text(path, self._requested.encoding, has_options=self._has_options)
        self._skipped = parse_lines(self._requested.skip_rows)
        self._raw = without_lines(raw, self._skipped, self.where)
        self._dialect, start = self._detect_dialect(default.separator or DELIMITERS[path.suffix.lower()], default)
        self._delimiter = self._dialect.separator
        if self._delimiter == " ":
            self._raw, self._delimiter = spaces_to_tabs(self._raw), "\t"
        self._header_start = start
        header, self._start = self._header(start)
        if not self._raw[self._start : self._start + CHUNK].strip() and not self._raw[self._start :].strip():
            raise UsageError(f"{self.where}: a header but no data rows; add at least one row")
        self._num_fields = len(header)
        self.names = header
        check_names(self.names, next(self._records(), []), self.where)
        plain = b'"' not in self._raw and has_plain_line_ends(self._raw)
        self._lines = self._check_lines() if plain else None
        self._num_rows = self._check_records() if self._lines is None else len(self._lines)
        self.names = self._drop_empty_columns()

    @property
    def decimal(self) -> Literal["", ".", ","]:
        """Decimal mark of numbers."""
        return self._dialect.decimal

    @property
    def reading(self) -> Reading:
        """Reading of the file, including detected options."""
        return dataclasses.replace(self._requested, separator=self._dialect.separator, decimal=self.decimal)

    @property
    def note(self) -> str:
        """Detected options that differ from the plain form; "" if there are none."""
        usual = DELIMITERS[Path(self.where).suffix.lower()]
        options = [
            setting(field)
            for field, requested, detected, usual_mark in (
                ("separator", self._requested.separator, self._dialect.separator, usual),
                ("decimal", self._requested.decimal, self.decimal, "."),
            )
            if not requested and detected != usual_mark
        ]
        verb = "changes" if len(options) == 1 else "change"
        detection_note = f" (detected; {' and '.join(options)} {verb} this)" if self._has_options else ""
        return f"{self._dialect.describe()}{detection_note}" if options else ""

    def has_number(self, row: int) -> bool:
        """Whether a row, counted from 0, has a number. False beyond the last row."""
        cells = next(itertools.islice(self._records(), row, None), [])
        return any(map(is_number_cell, cells))

    def is_row(self, row: int, levels: Collection[str]) -> bool:
        """Whether a row, from 0, has a number or one of these levels of text."""
        cells = next(itertools.islice(self._records(), row, None), [])
        return self.has_number(row) or any(as_text(cell) in levels for cell in cells)

    def zero_padded_cells(self, names: Sequence[str], /) -> dict[str, str]:
        """A cell with a leading zero, such as 0123, of each column that has one among its first cells."""
        position_of_name = {name: i for i, name in enumerate(self.names) if name in names}
        cells_by_name: dict[str, str] = {}
        for cells in itertools.islice(self._records(), MAX_INSPECTED_LINES):
            cells_by_name |= {
                name: cells[i].strip()
                for name, i in position_of_name.items()
                if name not in cells_by_name and _PADDED.fullmatch(cells[i].strip())
            }
        return cells_by_name

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
        kept_lines = itertools.filterfalse(self._skipped.__contains__, itertools.count(1))
        original_line = dict(enumerate(itertools.islice(kept_lines, max(lines)), 1))
        return f"{setting('skip_rows', format_lines({*self._skipped, *(original_line[line] for line in lines)}))}"

    def _detect_dialect(self, preferred: str, default: Reading) -> tuple[Dialect, int]:
        """Return the dialect and the start of the header, which follows a line that names the separator."""
        requested, start = self._requested, 0
        separator_line = _SEPARATOR_LINE.match(self._raw)
        if separator_line is not None:
            start, preferred = separator_line.end(), separator_line[1].decode("utf-8", "replace")
        text = io.BytesIO(self._raw)
        text.seek(start)
        lines = [line.decode("utf-8") for line in itertools.islice(text, MAX_INSPECTED_LINES)]
        lines = list(itertools.dropwhile(lambda line: line.startswith("#"), lines)) or lines
        separator = requested.separator or (preferred if separator_line else dialect.separator_of(lines, preferred))
        if separator is None:
            remedy = "name the separator, for instance [[separator=semicolon]]"
            remedy = remedy if self._has_options else "separate them by commas"
            raise UsageError(
                f"{self.where}: several characters may separate the columns ({lines[0].strip()[:60]!r}); {remedy}"
            )
        decimal = requested.decimal or dialect.decimal_of(lines, separator, default.decimal or ".")
        if requested.decimal == "," and not requested.separator and separator == "," and not dialect.has_commas(lines):
            warnings.warn(
                f"{self.where}: [[decimal=,]] has no effect: commas separate the columns, and no cell has a decimal "
                "comma; if another character separates them, name it with [[separator]]",
                BnnzooWarning,
                stacklevel=5,
            )
        if not requested.decimal and (cell := dialect.thousands_in(lines, separator, decimal)):
            warnings.warn(
                f"{self.where}: {cell} is read as {float(cell):g}, and similar cells likewise; in a file with "
                "semicolons the point may separate thousands; if it does, write such numbers without it"
                + ("; if it is the decimal mark, use [[decimal=.]]" if self._has_options else ""),
                BnnzooWarning,
                stacklevel=5,
            )
        return Dialect(separator, cast(Any, decimal)), start

    def frame(self, names: Sequence[str], text_columns: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names`, each of the type of all its cells: numbers, booleans, or else text as written."""
        position_of_name = {name: i for i, name in enumerate(self.names)}
        positions = [position_of_name[name] for name in names]
        columns = self._read_columns(positions, [position_of_name[name] for name in text_columns])
        # pandas infers the types of a long file in pieces: a column with numbers in some pieces loses the original
        # text. Integers from 2^53 on beside a gap lose digits. These columns are read again as text.
        columns_to_reread = [
            i for i in positions if columns[i].dtype == object or (columns[i].dtype == float and _are_long(columns[i]))
        ]
        if columns_to_reread:
            columns[columns_to_reread] = self._read_columns(columns_to_reread, columns_to_reread)[columns_to_reread]
        return columns[positions].set_axis(list(names), axis=1)

    def _read_columns(self, positions: list[int], text_positions: list[int]) -> Any:
        """Return the columns at `positions`, by position; those at `text_positions` are read as text."""
        import pandas as pd

        text = io.BytesIO(self._raw)
        text.seek(self._start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            columns = pd.read_csv(
                text,
                sep=self._delimiter,
                decimal=self.decimal,
                header=None,
                names=list(range(self._num_fields)),
                usecols=positions,
                dtype=dict.fromkeys(text_positions, str),
                index_col=False,
                skip_blank_lines=False,
                skipinitialspace=True,
                engine="c",
            )
        if len(columns) != self._num_rows:
            raise UsageError(
                f"{self.where}: the file has {self._num_rows} or {len(columns)} rows, because its line ends are "
                "mixed; save it with one kind of line end"
            )
        return columns

    def cell_text(self, row: int, name: str) -> str:
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
            first_line = self._raw[start:].partition(b"\n")[0]
            has_quoted_spaces = b'" "' in first_line and self._has_options
            remedy = (
                "if spaces separate columns, use [[separator=space]]"
                if has_quoted_spaces
                else 'quote names as "a name"'
            )
            raise UsageError(f"{self.where}: header: {error}; {remedy}") from error
        names = tuple(map(plain_name, cells))
        if not any(names):
            num_blank = len(self._raw[start:]) - len(self._raw[start:].lstrip())
            lines_above = range(1, self._raw.count(b"\n", 0, start + num_blank) + 1)
            remedy = "put the column names there"
            if lines_above and self._has_options:
                remedy += f", or leave blank lines out with {self._skip_option(lines_above)}"
            raise UsageError(f"{self.where}: the first line is empty, but must be the header; {remedy}")
        self._check_remarks(names, start)
        if len(names) > 2 and sum(map(bool, names)) == 1 and self._has_options:
            option = self._skip_option([self._raw.count(b"\n", 0, start) + 1])
            raise UsageError(
                f"{self.where}: the first line has {len(names)} cells, and only {next(filter(None, names))!r} "
                f"is not empty; if it is a title, leave it out with {option}"
            )
        if len(names) == 1 and any(mark in names[0] for mark in dialect.MARKS):
            likely_mark = max(dialect.MARKS, key=names[0].count)
            mark_name = next(mark_name for mark_name, mark in SEPARATORS.items() if mark == likely_mark)
            option = setting("separator", mark_name)
            remedy = f"; if columns are separated by {dialect.NAMES[likely_mark]}, use {option}"
            raise self._one_column(names[0], remedy)
        if len(names) == 1 and len(names[0].split()) > 1 and self._is_space_separated(names[0], consumed):
            remedy = ", and the rows contain spaces; if spaces separate columns, use [[separator=space]]"
            raise self._one_column(names[0], remedy)
        if len(names) == 1 and (mark := dialect.unusual_separator(names[0], self._raw[consumed:].partition(b"\n")[0])):
            remedy = (
                f", and the first row has {mark} as often; if it separates columns, use {setting('separator', mark)}"
            )
            raise self._one_column(names[0], remedy)
        return names, consumed

    def _one_column(self, header: str, remedy: str) -> UsageError:
        """Return the error for a header that is one column; new files have a remedy without options."""
        remedy = remedy if self._has_options else "; separate its columns as in the training file"
        return UsageError(f"{self.where}: the header is one column, {header!r}{remedy}")

    def _check_remarks(self, names: Sequence[str], start: int) -> None:
        """Refuse remarks (lines that begin with #) above the header, with the option that skips them.

        One line with # and as many fields as the next line is a header.
        """
        if not names[0].startswith("#"):
            return
        text = io.BytesIO(self._raw)
        text.seek(start)
        lines = [line.decode("utf-8") for line in itertools.islice(text, MAX_INSPECTED_LINES)]
        count = next((i for i, line in enumerate(lines) if not line.lstrip().startswith("#")), len(lines))
        next_records = [
            next(csv.reader([line], delimiter=self._delimiter), []) for line in lines[count - 1 : count + 3]
        ]
        last, header, *rows = [*next_records, [], []]
        if len(last) == len(header) and (len(last) > 1 or count == 1):
            count -= 1  # the last remark is the header
            header, rows = last, [header, *rows]
        if not count:
            return
        first_remark = self._raw.count(b"\n", 0, start) + 1
        skipped, units = list(range(first_remark, first_remark + count)), ""
        if len(rows) > 1 and are_units(rows[0], rows[1]):
            skipped.append(first_remark + count + 1)
            units = f", and line {first_remark + count + 1} seems to hold units"
        problem = "the first line is a remark" if count == 1 else f"the first {count} lines are remarks (#)"
        pronoun = "it" if count == 1 else "them"
        remedy = (
            f"leave {pronoun} out with {self._skip_option(skipped)}{units}"
            if self._has_options
            else f"remove {pronoun}"
        )
        raise UsageError(f"{self.where}: {problem}, but the header must come first; {remedy}")

    def _is_space_separated(self, header: str, start: int) -> bool:
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
            piece_counts = np.add.reduceat(
                (piece == ord(self._delimiter)).view(np.int8), np.r_[0, ends], dtype=np.int32
            )
            piece_counts[0] += open_line
            open_line = piece_counts[-1]
            starts.append(first + ends + 1)
            separators.append(piece_counts[:-1])
        counts = np.concatenate([*separators, [open_line]])
        lines = self._start + np.concatenate(starts)
        invalid_rows = np.flatnonzero(counts != self._num_fields - 1)
        if invalid_rows.size:
            row = int(invalid_rows[0])
            cells = next(self._records(row, int(lines[row])))
            if 2 * invalid_rows.size > len(counts):
                self._refuse_header(cells, int(invalid_rows.size))
            option = self._skip_option([self._raw.count(b"\n", 0, int(lines[row])) + 1]) if self._has_options else ""
            self._check_fields(cells, row + 1, option)
        return lines

    def _check_records(self) -> int:
        """The number of rows, of text with quotes, all of them having as many fields as the header."""
        row, num_invalid, first_invalid = 0, 0, ([], 0)
        for row, cells in enumerate(self._records(), start=1):
            if len(cells or [""]) != self._num_fields:
                first_invalid, num_invalid = first_invalid if num_invalid else (cells, row), num_invalid + 1
        if 2 * num_invalid > row:
            self._refuse_header(first_invalid[0], num_invalid)
        if num_invalid:
            self._lines = None
            self._check_fields(*first_invalid, self.skip_option(first_invalid[1] - 1))
        return row

    def _refuse_header(self, cells: list[str], count: int) -> None:
        """Refuse a table of which most rows have another number of fields than the first line.

        Rows with one more may have names, as R's write.table gives them, or end with a separator. Other first lines
        are no header.
        """
        place = f"{self.where}: {count} rows do not have {self._num_fields} fields, as the header has"
        header = header_line(self._raw, self._delimiter)
        if header > 1 and self._num_fields == 1 and not any(is_number_cell(cell) for cell in cells):
            cells = []  # a title above a header, not row names
        if len(cells) == self._num_fields + 1:
            if not cells[-1].strip():
                raise UsageError(f"{place}, because they end with a separator; let the header end with one too")
            remedy = remedy_for_extra_field(
                cells, self._delimiter, self._requested.decimal, has_options=self._has_options
            )
            raise UsageError(f"{place}, but for instance {len(cells)}; {remedy}")
        if header > 1 and self._has_options:
            option = self._skip_option(range(1, header))
            raise UsageError(f"{place}; if the header is further down, leave out the lines above it with {option}")

    def _check_fields(self, cells: list[str], row: int, option: str = "") -> None:
        skip_advice = f", or leave its line out with {option}" if option else ""
        if not cells and self._num_fields > 1:
            raise UsageError(f"{self.where}: row {row}: the line is empty; remove it{skip_advice}")
        if len(cells or [""]) != self._num_fields:
            remark = ": a remark (#)" if cells and cells[0].startswith("#") else ""
            raise UsageError(
                f"{self.where}: row {row}: {len(cells)} fields, but the header has {self._num_fields}{remark}; "
                f"correct the row{skip_advice}"
            )

    def _drop_empty_columns(self) -> tuple[str, ...]:
        """Return the names without the nameless empty last columns of lines that end with separators."""
        names = list(self.names)
        while (
            len(names) > 1
            and not names[-1]
            and self._read_columns([len(names) - 1], [len(names) - 1]).isna().to_numpy().all()
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
                is_line_break = str(error).startswith("new-line character")
                problem = "a line break in a cell without quotes" if is_line_break else error
                raise UsageError(f"{self.where}: row {row}: {problem}; correct its quotes") from error


def _are_long(numbers: pd.Series) -> bool:
    """Whether numbers are whole and some are too large for float64 to hold exactly."""
    finite = numbers.to_numpy()
    finite = finite[np.isfinite(finite)]
    return bool(np.max(np.abs(finite), initial=0) >= 2**53) and np.array_equal(finite, np.floor(finite))
