"""Delimited text: CSV and TSV.

This module checks the fields and the quotes of every line; pandas' C parser then converts the cells. On its own that
parser would pad, truncate or skip malformed lines.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int

from bnnzoo.data.columns.cells import as_text
from bnnzoo.data.columns.reading_options import PLAIN, Reading, parse_lines
from bnnzoo.data.formats.delimited_text import DelimitedText
from bnnzoo.data.formats.dialect import detect_dialect
from bnnzoo.data.formats.first_lines import (
    MAX_INSPECTED_LINES,
    check_names,
    header_line,
    is_number_cell,
    remedy_for_extra_field,
)
from bnnzoo.data.formats.header import read_header
from bnnzoo.data.formats.textfile import CHUNK, has_plain_line_ends, read_text, spaces_to_tabs, without_lines
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting

if TYPE_CHECKING:
    import pandas as pd

DELIMITERS = {".csv": ",", ".tsv": "\t"}

_PADDED = re.compile(r"0[0-9]+(?:[.,][0-9]+)?")


class DelimitedTable:
    """The table in a text file: a header line with unique names, and rows with the same number of fields.

    Args:
        reading: the requested options; the others are detected.
        trained: the reading of the training table, for a table of new rows; used if detection is ambiguous. Options
            cannot be given then, so messages name none.
    """

    def __init__(self, path: Path, reading: Reading = PLAIN, trained: Reading | None = None):
        self.where = str(path)
        self._requested, self._has_options = reading, trained is None
        raw = read_text(path, reading.encoding, has_options=self._has_options)
        skipped = parse_lines(reading.skip_rows)
        raw = without_lines(raw, skipped, self.where)
        self._dialect, self._header_start = detect_dialect(
            raw,
            reading,
            trained or PLAIN,
            DELIMITERS[path.suffix.lower()],
            self.where,
            has_options=self._has_options,
        )
        delimiter = self._dialect.separator
        if delimiter == " ":
            raw, delimiter = spaces_to_tabs(raw), "\t"
        self._text = DelimitedText(self.where, raw, delimiter, skipped, self._has_options)
        header, self._start = read_header(self._text, self._header_start)
        if not raw[self._start : self._start + CHUNK].strip() and not raw[self._start :].strip():
            raise UsageError(f"{self.where}: a header but no data rows; add at least one row")
        self._num_fields = len(header)
        self.names = header
        check_names(self.names, next(self._text.records(self._start), []), self.where)
        plain = b'"' not in self._text.raw and has_plain_line_ends(self._text.raw)
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
        cells = next(itertools.islice(self._text.records(self._start), row, None), [])
        return any(map(is_number_cell, cells))

    def is_row(self, row: int, levels: Collection[str]) -> bool:
        """Whether a row, from 0, has a number or one of these levels of text."""
        cells = next(itertools.islice(self._text.records(self._start), row, None), [])
        return self.has_number(row) or any(as_text(cell) in levels for cell in cells)

    def zero_padded_cells(self, names: Sequence[str], /) -> dict[str, str]:
        """Return a cell with a leading zero, such as 0123, for each column that has one among its first cells."""
        position_of_name = {name: i for i, name in enumerate(self.names) if name in names}
        cells_by_name: dict[str, str] = {}
        for cells in itertools.islice(self._text.records(self._start), MAX_INSPECTED_LINES):
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
        return self._text.skip_option(sorted(line for row in rows for line in self._lines_of(row)))

    def _lines_of(self, row: int) -> range:
        """Return the lines, counted from 1, of a row counted from 0; -1 is the header."""
        first = self._text.line_number(self._start)
        if row < 0:
            return range(self._text.line_number(self._header_start), first)
        if self._lines is not None:
            line = self._text.line_number(int(self._lines[row]))
            return range(line, line + 1)
        reader, last = self._text.reader(self._start), 0
        for _ in range(row + 1):
            last = reader.line_num
            next(reader)
        return range(first + last, first + reader.line_num)

    def frame(self, names: Sequence[str], text_columns: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names`, with types by their cells: numbers, booleans, or otherwise text as written."""
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

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            columns = pd.read_csv(
                self._text.stream(self._start),
                sep=self._text.delimiter,
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
            cells = next(itertools.islice(self._text.records(self._start), row, None))
        else:
            cells = next(self._text.records(int(self._lines[row]), row))
        return cells[self.names.index(name)] if cells else ""

    def _check_lines(self) -> Int[np.ndarray, " row"]:
        """Check the number of fields of each row in text without quotes; return the start position of each row."""
        characters = np.frombuffer(self._text.raw, np.uint8, offset=self._start)
        starts, separators, open_line = [np.zeros(1, np.int64)], [], 0
        for first in range(0, len(characters), CHUNK):
            piece = characters[first : first + CHUNK]
            ends = np.flatnonzero(piece == ord("\n"))
            # Each sum starts at the previous line end, which is not a separator.
            piece_counts = np.add.reduceat(
                (piece == ord(self._text.delimiter)).view(np.int8), np.r_[0, ends], dtype=np.int32
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
            cells = next(self._text.records(int(lines[row]), row))
            if 2 * invalid_rows.size > len(counts):
                self._refuse_header(cells, int(invalid_rows.size))
            option = self._text.skip_option([self._text.line_number(int(lines[row]))]) if self._has_options else ""
            self._check_fields(cells, row + 1, option)
        return lines

    def _check_records(self) -> int:
        """Check that all rows of a text with quotes have as many fields as the header; return the number of rows."""
        row, num_invalid, first_invalid = 0, 0, ([], 0)
        for row, cells in enumerate(self._text.records(self._start), start=1):
            if len(cells or [""]) != self._num_fields:
                first_invalid, num_invalid = first_invalid if num_invalid else (cells, row), num_invalid + 1
        if 2 * num_invalid > row:
            self._refuse_header(first_invalid[0], num_invalid)
        if num_invalid:
            self._lines = None
            self._check_fields(*first_invalid, self.skip_option(first_invalid[1] - 1))
        return row

    def _refuse_header(self, cells: list[str], count: int) -> None:
        """Refuse a table if most rows have a different number of fields than the first line.

        Rows with one more field may begin with row names, as R's write.table writes them, or end with a separator. In
        other cases the first line is no header.
        """
        place = f"{self.where}: {count} rows do not have {self._num_fields} fields, as the header has"
        header = header_line(self._text.raw, self._text.delimiter)
        if header > 1 and self._num_fields == 1 and not any(is_number_cell(cell) for cell in cells):
            cells = []  # a title above a header, not row names
        if len(cells) == self._num_fields + 1:
            if not cells[-1].strip():
                raise UsageError(f"{place}, because they end with a separator; let the header end with one too")
            remedy = remedy_for_extra_field(
                cells, self._text.delimiter, self._requested.decimal, has_options=self._has_options
            )
            raise UsageError(f"{place}, but for instance {len(cells)}; {remedy}")
        if header > 1 and self._has_options:
            option = self._text.skip_option(range(1, header))
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


def _are_long(numbers: pd.Series) -> bool:
    """Whether numbers are whole and some are too large for float64 to hold exactly."""
    finite = numbers.to_numpy()
    finite = finite[np.isfinite(finite)]
    return bool(np.max(np.abs(finite), initial=0) >= 2**53) and np.array_equal(finite, np.floor(finite))
