"""Delimited text: CSV and TSV.

This module checks the quotes and the number of fields of every row. Afterwards the C parser of pandas converts the
cells. Without these checks, the C parser would pad, truncate or skip malformed lines.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from bnnzoo.data.columns.cells import as_text
from bnnzoo.data.columns.reading_options import PLAIN, Reading, parse_lines
from bnnzoo.data.columns.table import AbstractTable
from bnnzoo.data.formats.delimited_text import MAX_INSPECTED_LINES, DelimitedText
from bnnzoo.data.formats.dialect import NAMES, detect_dialect
from bnnzoo.data.formats.header import check_names, header_line, is_number_cell, read_header, remedy_for_extra_field
from bnnzoo.data.formats.textfile import has_plain_line_ends, read_text, spaces_to_tabs, without_lines
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting

if TYPE_CHECKING:
    import pandas as pd

DELIMITERS = {".csv": ",", ".tsv": "\t"}

_VISIBLE = re.compile(rb"\S")
_PADDED = re.compile(r"0[0-9]+(?:[.,][0-9]+)?")


class DelimitedTable(AbstractTable):
    """The table in a text file: a header line with unique names, and rows with the same number of fields.

    Args:
        path: the file.
        reading: the requested options. The separator and the decimal mark are detected if they are not requested.
        trained: the options of the training table if the file contains new rows for a trained model; otherwise None. If
            detection is ambiguous, the options of the training table are used. Messages about new rows do not name
            options, because the user cannot set options for new rows.

    Raises:
        UsageError: if the text, its header or the number of fields of a row is invalid.
    """

    def __init__(self, path: Path, reading: Reading = PLAIN, trained: Reading | None = None):
        self.where = str(path)
        self._requested, has_options = reading, trained is None
        raw = read_text(path, reading.encoding, has_options=has_options)
        skipped = parse_lines(reading.skip_rows)
        raw = without_lines(raw, skipped, self.where)
        usual = DELIMITERS[path.suffix.lower()]
        self.reading, header_start = detect_dialect(
            raw, reading, trained or PLAIN, usual, self.where, has_options=has_options
        )
        self.decimal, delimiter = self.reading.decimal, self.reading.separator
        self.note = self._detected_options(usual, has_options=has_options)
        if delimiter == " ":
            raw, delimiter = spaces_to_tabs(raw), "\t"
        self._text = DelimitedText(self.where, raw, delimiter, skipped, has_options)
        self.names, start = read_header(self._text, header_start)
        if _VISIBLE.search(raw, start) is None:
            raise UsageError(f"{self.where}: a header but no data rows; add at least one row")
        self._num_fields = len(self.names)
        check_names(self.names, self._first_rows(start, 1)[0], self.where)
        ends, num_fields = self._measure_rows(start)
        self._starts = np.array([header_start, start, *ends])
        self._check_num_fields(num_fields)
        self.names = self._drop_empty_columns()

    def _detected_options(self, usual: str, *, has_options: bool) -> str:
        options = [
            setting(name)
            for name, usual_mark in (("separator", usual), ("decimal", "."))
            if not getattr(self._requested, name) and getattr(self.reading, name) != usual_mark
        ]
        if not options:
            return ""
        comma = ", numbers with a decimal comma" if self.decimal == "," else ""
        verb = "changes" if len(options) == 1 else "change"
        detection_note = f" (detected; {' and '.join(options)} {verb} this)" if has_options else ""
        separator = self.reading.separator
        return f"columns separated by {NAMES.get(separator, repr(separator))}{comma}{detection_note}"

    def _first_rows(self, start: int, count: int) -> list[list[str]]:
        return [record.cells for record in itertools.islice(self._text.records(start), count)]

    def _cells(self, row: int) -> list[str]:
        """Return the fields of a row, counted from 0, or an empty list beyond the last row."""
        starts = self._starts[1:-1]
        return next(self._text.records(int(starts[row]), row)).cells if row < len(starts) else []

    def has_number(self, row: int) -> bool:
        """Whether a row, counted from 0, contains a number. The result is False beyond the last row."""
        return any(map(is_number_cell, self._cells(row)))

    def is_row(self, row: int, levels: Collection[str]) -> bool:
        """Whether a row, counted from 0, contains a number or one of the text levels `levels`."""
        return self.has_number(row) or any(as_text(cell) in levels for cell in self._cells(row))

    def zero_padded_cells(self, names: Sequence[str]) -> dict[str, str]:
        """Return the first cell with a leading zero, such as 0123, by column name.

        Only the first 1024 rows are read. Columns without such a cell are left out.
        """
        rows = self._first_rows(int(self._starts[1]), MAX_INSPECTED_LINES)
        cells_by_name: dict[str, str] = {}
        for i, name in enumerate(self.names):
            padded = (cell for cells in rows if _PADDED.fullmatch(cell := cells[i].strip()))
            if name in names and (cell := next(padded, "")):
                cells_by_name[name] = cell
        return cells_by_name

    def skip_option(self, *rows: int) -> str:
        """Return the option that skips these rows in addition to the lines that are skipped already.

        The result is "" for a table of new rows.

        Args:
            rows: the rows, counted from 0; -1 is the header.
        """
        if not self._text.has_options:
            return ""
        return self._text.skip_option(sorted(line for row in rows for line in self._lines_of(row)))

    def _lines_of(self, row: int) -> range:
        """Return the numbers of the lines of a row. Lines count from 1, rows from 0; row -1 is the header."""
        start, end = (int(position) for position in self._starts[row + 1 : row + 3])
        return range(self._text.line_number(start), self._text.line_number(end - 1) + 1)

    def frame(self, names: Sequence[str], text_columns: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names`. A column is text unless all its cells are numbers or all are booleans."""
        position_of_name = {name: i for i, name in enumerate(self.names)}
        positions = [position_of_name[name] for name in names]
        columns = self._read_columns(positions, [position_of_name[name] for name in text_columns])
        # pandas infers the types of a long file in pieces. If a column has only numbers in some pieces, these cells
        # lose their original text. Integers from 2^53 on lose digits if a cell is missing. In both cases, the column is
        # read again as text.
        columns_to_reread = [
            i for i in positions if columns[i].dtype == object or (columns[i].dtype == float and _are_long(columns[i]))
        ]
        if columns_to_reread:
            columns[columns_to_reread] = self._read_columns(columns_to_reread, columns_to_reread)[columns_to_reread]
        return columns[positions].set_axis(list(names), axis=1)

    def _read_columns(self, positions: list[int], text_positions: list[int]) -> Any:
        """Return the columns at `positions`, named by position. The columns at `text_positions` are read as text."""
        import pandas as pd

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            columns = pd.read_csv(
                self._text.stream(int(self._starts[1])),
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
        num_rows = len(self._starts) - 2
        if len(columns) != num_rows:
            raise UsageError(
                f"{self.where}: its line ends are mixed, so it could have {num_rows} or {len(columns)} rows; save "
                "the file with one kind of line end"
            )
        return columns

    def cell_text(self, row: int, name: str) -> str:
        """Return the text of a cell as it is in the file; `row` counts from 0."""
        cells = self._cells(row)
        return cells[self.names.index(name)] if cells else ""

    def _measure_rows(self, start: int) -> tuple[Int[np.ndarray, " row"], Int[np.ndarray, " row"]]:
        """Return the end position and the number of fields of each row, from the position `start` in the text on."""
        if b'"' in self._text.raw or not has_plain_line_ends(self._text.raw):
            records = ((record.end, len(record.cells or [""])) for record in self._text.records(start))
            pairs: Any = np.fromiter(records, np.dtype((np.int64, 2)))
            return pairs[:, 0], pairs[:, 1]
        separator = self._text.delimiter.encode()
        lines = ((len(line), line.count(separator)) for line in self._text.stream(start))
        counts: Any = np.fromiter(lines, np.dtype((np.int64, 2)))
        return start + np.cumsum(counts[:, 0]), counts[:, 1] + 1

    def _check_num_fields(self, num_fields: Int[np.ndarray, " row"]) -> None:
        """Raise `UsageError` if a row has more or fewer fields than the header."""
        invalid_rows = np.flatnonzero(num_fields != self._num_fields)
        if not invalid_rows.size:
            return
        row = int(invalid_rows[0])
        cells = self._cells(row)
        if 2 * invalid_rows.size > len(num_fields):
            self._refuse_header(cells, int(invalid_rows.size))
        option = self.skip_option(row)
        skip_advice = f", or leave its line out with {option}" if option else ""
        if not cells:
            raise UsageError(f"{self.where}: row {row + 1}: the line is empty; remove it{skip_advice}")
        remark = ", and the row begins with #, like a comment" if cells[0].startswith("#") else ""
        raise UsageError(
            f"{self.where}: row {row + 1}: {len(cells)} fields, but the header has {self._num_fields}{remark}; "
            f"correct the row{skip_advice}"
        )

    def _refuse_header(self, cells: list[str], count: int) -> None:
        """Raise `UsageError` if there is a probable reason why most rows do not have as many fields as the header.

        If the rows have one field more than the header, they may begin with row names, as in files of R's write.table,
        or end with a separator. Otherwise a later line may be the header, see `header_line`. If none of these reasons
        is probable, no error is raised.

        Args:
            cells: the fields of the first row with another number of fields than the header.
            count: the number of such rows.
        """
        place = f"{self.where}: {count} rows do not have the {self._num_fields} fields of the header"
        header = header_line(self._text.raw, self._text.delimiter)
        if header > 1 and self._num_fields == 1 and not any(is_number_cell(cell) for cell in cells):
            cells = []  # a title above a header, not row names
        if len(cells) == self._num_fields + 1:
            if not cells[-1].strip():
                raise UsageError(
                    f"{place}, because the rows end with a separator; add a separator at the end of the header"
                )
            remedy = remedy_for_extra_field(
                cells, self._text.delimiter, self._requested.decimal, has_options=self._text.has_options
            )
            raise UsageError(f"{place} (got for instance {len(cells)} fields); {remedy}")
        if header > 1 and self._text.has_options:
            option = self._text.skip_option(range(1, header))
            raise UsageError(f"{place}; if the header is further down, leave out the lines above it with {option}")

    def _drop_empty_columns(self) -> tuple[str, ...]:
        """Return the names of the columns without empty columns at the end.

        A column is empty if it has neither a name nor values. Empty columns arise if each line ends with a separator.
        """
        names = list(self.names)
        while (
            len(names) > 1
            and not names[-1]
            and self._read_columns([len(names) - 1], [len(names) - 1]).isna().to_numpy().all()
        ):
            names.pop()
        return tuple(names)


def _are_long(numbers: pd.Series) -> bool:
    """Whether all numbers are whole, and some are too large for float64 to represent exactly."""
    finite = numbers.to_numpy()
    finite = finite[np.isfinite(finite)]
    return bool(np.max(np.abs(finite), initial=0) >= 2**53) and np.array_equal(finite, np.floor(finite))
