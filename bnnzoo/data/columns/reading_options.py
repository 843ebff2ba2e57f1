"""Options for reading table cells. The file of a run stores them, so that new tables are read in the same way."""

from __future__ import annotations

import codecs
import dataclasses
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import FailFast

from bnnzoo.data.checks.check import did_you_mean
from bnnzoo.errors import UsageError

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "space": " ", "pipe": "|"}
"""Names of separators that are hard to type in a shell."""
_LINES = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_DECIMAL_COMMA = re.compile(r"[+\u2212-]?[0-9]*,[0-9]+")
_MAX_SKIPPED = 1_000_000
"""Maximal number of lines in one range of `skip_rows`."""


@dataclass(frozen=True)
class Reading:
    """Options for reading a table; `separator`, `decimal`, `skip_rows` and `encoding` apply to text files only.

    Attributes:
        separator: the character between the cells of a row; "" to detect it.
        decimal: the decimal mark, "." or ","; "" to detect it.
        skip_rows: lines of the file to skip, counted from 1, such as "2" or "1-10".
        encoding: the text encoding; "" for UTF-8.
        missing_code: values that mean a missing cell: VALUE for all columns, NAME=VALUE for the column NAME.
        censored: whether targets such as <0.5, >100 and 1..2 are read as bounds.
    """

    separator: str = ""
    decimal: Literal["", ".", ","] = ""
    skip_rows: Annotated[tuple[str, ...], FailFast()] = ()
    encoding: str = ""
    missing_code: Annotated[tuple[str, ...], FailFast()] = ()
    censored: bool = False

    @classmethod
    def from_options(
        cls,
        *,
        separator: str | None = None,
        decimal: str | None = None,
        skip_rows: Sequence[str] = (),
        encoding: str | None = None,
        missing_code: Sequence[str] = (),
        censored: bool = False,
    ) -> Reading:
        """Return the options after checks, with names such as `comma` replaced by the characters.

        Raises:
            UsageError: if a value is invalid.
        """
        separator_mark: Any = "" if separator is None else SEPARATORS.get(separator, separator.replace("\\t", "\t"))
        if separator is not None and (
            len(separator_mark) != 1 or separator_mark in '"\n\r' or separator_mark.isalnum()
        ):
            words = ", ".join(SEPARATORS)
            raise UsageError(
                "[[separator]]: must be one character that is not a letter, a digit or a quotation mark, or one of "
                f"{words} (got {separator!r})"
            )
        decimal_mark: Any = "" if decimal is None else decimal
        if decimal_mark not in ("", ".", ","):
            raise UsageError(f'[[decimal]]: must be "." or "," (got {decimal!r})')
        if decimal_mark == "." and separator_mark == ".":  # a comma can be both, if 1,5 is in quotes
            raise UsageError(f"[[separator]] and [[decimal]]: must differ (both are {separator_mark!r})")
        if encoding is not None:
            _check_encoding(encoding)
        lines = tuple(part.strip() for text in skip_rows for part in text.split(",") if part.strip())
        parse_lines(lines)
        codes = tuple(unicodedata.normalize("NFC", code) for code in missing_code)
        return cls(separator_mark, decimal_mark, lines, encoding or "", codes, censored)

    def check(self) -> None:
        """Check options that were read from a file.

        Raises:
            ValueError: if `from_options` cannot return these options.
        """
        options: dict[str, Any] = dict(vars(self))
        options |= {name: options[name] or None for name in ("separator", "decimal", "encoding")}
        try:
            is_valid = Reading.from_options(**options) == self
        except UsageError:
            is_valid = False
        if not is_valid:
            raise ValueError("its options for reading a table are invalid")

    @property
    def text_options(self) -> Reading:
        """The options that apply to text files only; `missing_code` and `censored` have their default values."""
        return dataclasses.replace(self, missing_code=(), censored=False)

    def check_codes(self, names: Sequence[str], where: str) -> None:
        """Check the codes of `missing_code`: VALUE must not be empty, and in NAME=VALUE, NAME must be a column.

        Args:
            names: the names of the columns of the table.
            where: the name of the table in error messages.

        Raises:
            UsageError: if a column is unknown, or if a value is empty.
        """
        for code in self.missing_code:
            matching_names = [name for name in names if code.startswith(f"{name}=")]
            name, equals, value = code.partition("=")
            if matching_names:
                name = max(matching_names, key=len)
                value = code[len(name) + 1 :]
            elif equals:
                raise UsageError(
                    f"{where}: [[missing_code]] {code!r}: no column named {name}; {did_you_mean(name, names)}"
                )
            if not (value if equals else code).strip():
                raise UsageError(
                    f"{where}: [[missing_code]] {code!r}: the code is empty; remove it, because empty cells always "
                    "count as missing"
                )

    def codes_of(self, name: str) -> tuple[str, ...]:
        """Return the values that mean a missing cell in the column `name`.

        If the decimal mark is a comma, a code with a decimal comma is returned twice: with the comma, and with a point
        for new tables with decimal points.
        """
        codes = []
        for code in self.missing_code:
            if "=" not in code:
                codes.append(code.strip())
            elif code.startswith(f"{name}="):
                codes.append(code[len(name) + 1 :].strip())
        commas = [code for code in codes if self.decimal == "," and _DECIMAL_COMMA.fullmatch(code)]
        return (*codes, *(code.replace(",", ".") for code in commas))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields with non-default values, as JSON-compatible values."""
        defaults = vars(PLAIN)
        return {key: value for key, value in vars(self).items() if value != defaults[key]}


PLAIN = Reading()
"""The options with their default values."""


def parse_lines(texts: Iterable[str]) -> frozenset[int]:
    """Return the line numbers in the texts of `skip_rows`, such as "2" or "1-10". Lines count from 1.

    Raises:
        UsageError: if a text is neither a line nor a range of lines, or if a range has more than a million lines.
    """
    lines: set[int] = set()
    for text in texts:
        match = _LINES.fullmatch(text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise UsageError(
                f"[[skip_rows]]: must be line numbers of the file, counted from 1, such as 2 or 1-10,12 (got {text!r})"
            )
        if last - first >= _MAX_SKIPPED:
            raise UsageError(f"[[skip_rows]]: a range must have at most {_MAX_SKIPPED} lines (got {text!r})")
        lines.update(range(first, last + 1))
    return frozenset(lines)


def format_lines(lines: Collection[int]) -> str:
    """Return lines in the notation of `--skip-rows`: 1-10,12."""
    ranges: list[list[int]] = []
    for line in sorted(lines):
        if ranges and ranges[-1][1] == line - 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _check_encoding(name: str) -> None:
    try:
        is_text = codecs.lookup(name)._is_text_encoding  # pyright: ignore[reportAttributeAccessIssue]
    except LookupError:
        is_text = False
    if not is_text:
        raise UsageError(
            f"[[encoding]]: unknown encoding (got {name!r}); use for instance utf-8, cp1252 (Windows), latin-1 or "
            "utf-16"
        )
