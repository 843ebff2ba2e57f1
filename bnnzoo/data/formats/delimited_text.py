"""The text of a CSV or TSV file: its lines and its records."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Collection, Iterator
from typing import NamedTuple

from bnnzoo.data.columns.reading_options import format_lines
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting

MAX_INSPECTED_LINES = 1024
"""Maximal number of lines from which the separator, the decimal mark and the header are detected."""


class Record(NamedTuple):
    """The fields of a row, and the position in the text at which the next row starts."""

    cells: list[str]
    end: int


class DelimitedText(NamedTuple):
    """A text with a known separator, without the lines that the user skips.

    Attributes:
        where: the name of the file in messages.
        raw: the text without the skipped lines.
        delimiter: the separator of the columns.
        skipped: the numbers of the skipped lines in the file, counted from 1.
        has_options: whether error messages propose options.
    """

    where: str
    raw: bytes
    delimiter: str
    skipped: Collection[int]
    has_options: bool

    def line_number(self, position: int) -> int:
        """Return the number of the line at a position in the text, counted from 1."""
        return self.raw.count(b"\n", 0, position) + 1

    def stream(self, position: int) -> io.BytesIO:
        """Return a stream of the text from a position on."""
        stream = io.BytesIO(self.raw)
        stream.seek(position)
        return stream

    def parse(self, position: int) -> Iterator[Record]:
        """Yield the records from a position on, with the errors of Python's `csv` module.

        Raises:
            csv.Error: if the quotes of a record are invalid.
        """
        end = position

        def lines() -> Iterator[str]:
            nonlocal end
            for line in self.stream(position):
                end += len(line)
                yield line.decode("utf-8")

        for cells in csv.reader(lines(), delimiter=self.delimiter, strict=True, skipinitialspace=True):
            yield Record(cells, end)

    def records(self, position: int, row: int = 0) -> Iterator[Record]:
        """Yield the records from a position on, with error messages that name the row.

        Args:
            position: the position in the text.
            row: the number of the row that starts at this position, counted from 0.

        Raises:
            UsageError: if the quotes of a record are invalid.
        """
        try:
            for record in self.parse(position):
                row += 1
                yield record
        except csv.Error as error:
            # Python's message about line breaks is for programmers, and differs between versions of Python.
            is_line_break = str(error).startswith("new-line character")
            problem = "a line break in a cell without quotes" if is_line_break else error
            raise UsageError(f"{self.where}: row {row + 1}: {problem}; correct the quotes of this row") from error

    def skip_option(self, lines: Collection[int]) -> str:
        """Return the option that skips these lines in addition to the lines that are skipped already.

        Args:
            lines: numbers of lines of this text, counted from 1 without the skipped lines.
        """
        kept_lines = itertools.filterfalse(self.skipped.__contains__, itertools.count(1))
        original_line = dict(enumerate(itertools.islice(kept_lines, max(lines)), 1))
        return setting("skip_rows", format_lines({*self.skipped, *(original_line[line] for line in lines)}))
