"""The text of a CSV or TSV file: its lines and its records."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from bnnzoo.data.columns.reading_options import format_lines
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting


class DelimitedText(NamedTuple):
    """A text with a known separator, without the lines that the user skips.

    Attributes:
        where: the name of the file in messages.
        raw: the text.
        delimiter: the separator of the columns.
        skipped: the numbers of the skipped lines, from 1.
        has_options: whether messages may name options.
    """

    where: str
    raw: bytes
    delimiter: str
    skipped: Collection[int]
    has_options: bool

    def line_number(self, position: int) -> int:
        """Return the number, from 1, of the line at a position in the text."""
        return self.raw.count(b"\n", 0, position) + 1

    def stream(self, position: int) -> io.BytesIO:
        """Return a stream of the text from a position on."""
        stream = io.BytesIO(self.raw)
        stream.seek(position)
        return stream

    def reader(self, position: int) -> Any:
        """Return a CSV reader of the text from a position on."""
        lines = (line.decode("utf-8") for line in self.stream(position))
        return csv.reader(lines, delimiter=self.delimiter, strict=True, skipinitialspace=True)

    def records(self, position: int, first: int = 0) -> Iterator[list[str]]:
        """Yield the fields of each row, starting with row `first` (from 0) at a position."""
        reader = self.reader(position)
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

    def skip_option(self, lines: Collection[int]) -> str:
        """Return the option that also skips these lines, counted from 1 without the lines that are already skipped."""
        kept_lines = itertools.filterfalse(self.skipped.__contains__, itertools.count(1))
        original_line = dict(enumerate(itertools.islice(kept_lines, max(lines)), 1))
        return setting("skip_rows", format_lines({*self.skipped, *(original_line[line] for line in lines)}))
