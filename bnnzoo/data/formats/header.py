"""The header of delimited text: the line with the column names, and remedies for first lines that are no header."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence

from bnnzoo.data.checks.check import plain_name
from bnnzoo.data.columns.reading_options import SEPARATORS
from bnnzoo.data.formats.delimited_text import DelimitedText
from bnnzoo.data.formats.dialect import MARKS, NAMES, unusual_separator
from bnnzoo.data.formats.first_lines import MAX_INSPECTED_LINES, are_units
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting


def read_header(text: DelimitedText, start: int) -> tuple[tuple[str, ...], int]:
    """Return the column names and the position of the first data row.

    Raises:
        UsageError: if the line at `start` is no header.
    """
    consumed = start

    def lines() -> Iterator[str]:
        nonlocal consumed
        for line in text.stream(start):
            consumed += len(line)
            yield line.decode("utf-8")

    try:
        cells = next(csv.reader(lines(), delimiter=text.delimiter, strict=True, skipinitialspace=True))
    except csv.Error as error:
        first_line = text.raw[start:].partition(b"\n")[0]
        has_quoted_spaces = b'" "' in first_line and text.has_options
        remedy = (
            "if spaces separate columns, use [[separator=space]]" if has_quoted_spaces else 'quote names as "a name"'
        )
        raise UsageError(f"{text.where}: header: {error}; {remedy}") from error
    names = tuple(map(plain_name, cells))
    if not any(names):
        num_blank = len(text.raw[start:]) - len(text.raw[start:].lstrip())
        lines_above = range(1, text.line_number(start + num_blank))
        remedy = "put the column names there"
        if lines_above and text.has_options:
            remedy += f", or leave blank lines out with {text.skip_option(lines_above)}"
        raise UsageError(f"{text.where}: the first line is empty, but must be the header; {remedy}")
    _check_remarks(text, names, start)
    if len(names) > 2 and sum(map(bool, names)) == 1 and text.has_options:
        option = text.skip_option([text.line_number(start)])
        raise UsageError(
            f"{text.where}: the first line has {len(names)} cells, and only {next(filter(None, names))!r} "
            f"is not empty; if it is a title, leave it out with {option}"
        )
    if len(names) == 1 and any(mark in names[0] for mark in MARKS):
        likely_mark = max(MARKS, key=names[0].count)
        mark_name = next(mark_name for mark_name, mark in SEPARATORS.items() if mark == likely_mark)
        option = setting("separator", mark_name)
        remedy = f"; if columns are separated by {NAMES[likely_mark]}, use {option}"
        raise _one_column(text, names[0], remedy)
    if len(names) == 1 and len(names[0].split()) > 1 and _is_space_separated(text, names[0], consumed):
        remedy = ", and the rows contain spaces; if spaces separate columns, use [[separator=space]]"
        raise _one_column(text, names[0], remedy)
    if len(names) == 1 and (mark := unusual_separator(names[0], text.raw[consumed:].partition(b"\n")[0])):
        remedy = f", and the first row has {mark} as often; if it separates columns, use {setting('separator', mark)}"
        raise _one_column(text, names[0], remedy)
    return names, consumed


def _one_column(text: DelimitedText, header: str, remedy: str) -> UsageError:
    """Return the error for a header that is one column; new files have a remedy without options."""
    remedy = remedy if text.has_options else "; separate its columns as in the training file"
    return UsageError(f"{text.where}: the header is one column, {header!r}{remedy}")


def _check_remarks(text: DelimitedText, names: Sequence[str], start: int) -> None:
    """Refuse remarks (lines that begin with #) above the header, with the option that skips them.

    One line with # and as many fields as the next line is a header.
    """
    if not names[0].startswith("#"):
        return
    lines = [line.decode("utf-8") for line in itertools.islice(text.stream(start), MAX_INSPECTED_LINES)]
    count = next((i for i, line in enumerate(lines) if not line.lstrip().startswith("#")), len(lines))
    next_records = [next(csv.reader([line], delimiter=text.delimiter), []) for line in lines[count - 1 : count + 3]]
    last, header, *rows = [*next_records, [], []]
    if len(last) == len(header) and (len(last) > 1 or count == 1):
        count -= 1  # the last remark is the header
        header, rows = last, [header, *rows]
    if not count:
        return
    first_remark = text.line_number(start)
    skipped, units = list(range(first_remark, first_remark + count)), ""
    if len(rows) > 1 and are_units(rows[0], rows[1]):
        skipped.append(first_remark + count + 1)
        units = f", and line {first_remark + count + 1} seems to hold units"
    problem = "the first line is a remark" if count == 1 else f"the first {count} lines are remarks (#)"
    pronoun = "it" if count == 1 else "them"
    remedy = f"leave {pronoun} out with {text.skip_option(skipped)}{units}" if text.has_options else f"remove {pronoun}"
    raise UsageError(f"{text.where}: {problem}, but the header must come first; {remedy}")


def _is_space_separated(text: DelimitedText, header: str, start: int) -> bool:
    """Whether the first row has as many words as the header, or one more (a row name)."""
    row = text.raw[start:].lstrip().partition(b"\n")[0].decode("utf-8", "replace")
    return len(row.split()) - len(header.split()) in (0, 1)
