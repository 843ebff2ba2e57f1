"""Checks of codes. A code is a value such as -999 that means a missing cell.

A number such as -999 that is far from the other values of its column probably is a code that the user did not declare.
A code that the user declared in `missing_code` probably is a mistake if no cell contains it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from bnnzoo.data.columns.cells import as_text
from bnnzoo.data.columns.faults import list_names
from bnnzoo.data.columns.forms import Style
from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.errors import BnnzooWarning
from bnnzoo.finding import setting

_FAR = 10.0
"""Minimal distance of a code from the nearest other value, in interquartile ranges of the other values."""
_MIN_ROWS = 10
"""Minimal number of rows at which a value that occurs once can be distinguished from an ordinary outlier."""
_LARGEST_SINGLE_CODE = -99.0
"""Codes up to this number are reported even if they occur only once, in columns of at least `_MIN_ROWS` cells."""
_SMALLEST_SINGLE_HIGH_CODE = 999.0
"""Codes from this number on are reported even if they occur only once, in columns of at least `_MIN_ROWS` cells."""
_ANY_ROWS = -999.0
"""Codes up to this number are reported even if they occur only once, in columns of any length."""
_MIN_VALUES = 2
"""Minimal number of distinct values besides the codes in a column whose codes are reported."""
_ALWAYS_CODES = (-200.0, -32768.0, 32767.0, -2147483648.0, 2147483647.0, -1e20, 1e20, -1e30, 1e30, 9.96921e36)
"""Codes of instruments and file formats that do not consist of one repeated digit."""
_SCALE_CODES = (7.0, 8.0, 9.0)
"""Codes of questionnaires: refused, do not know, no answer. If 7 occurs without 8 and 9, it may be an answer."""
_TOP_REPEATED, _TOP_ONCE = 0.1, 0.25
"""Minimal fraction of the rows that have the largest value of a scale, such as 5 on a scale from 1 to 5.

`_TOP_REPEATED` applies if several cells contain a code, and `_TOP_ONCE` if only one cell does. If the largest value is
rarer, the column probably contains counts.
"""
_TOP_ROWS = 4
"""Minimal number of rows that have the largest value of a scale."""


class Code(NamedTuple):
    """A value that looks like a code for a missing cell.

    It occurs in `count` of `rows` cells. The other values of the column lie between `low` and `high`.
    """

    column: str
    value: float
    count: int
    rows: int
    low: float
    high: float

    @property
    def text(self) -> str:
        """The value as the user types it."""
        if abs(self.value) < 1e15 and self.value == int(self.value):
            return f"{self.value:.0f}"
        single = np.float32(self.value)
        return str(single) if single == self.value else f"{self.value:.10g}"

    def describe(self, others: str = "others") -> str:
        """Return a text with the value, its frequency and the range of the other values.

        Args:
            others: the noun for the other values in this text, such as "training rows".
        """
        return (
            f"{self.column} ({self.text} in {self.count} of {self.rows} rows, {others} {self.low:g} to {self.high:g})"
        )


def find_codes(name: str, numbers: Float[np.ndarray, " row"]) -> list[Code]:
    """Return the values of a column that look like codes and lie outside the range of the other values.

    Cells that are nan or infinite are ignored. Only numbers that are often used as codes are considered, see
    `_looks_like_a_code`.

    A code must occur more than once, with two exceptions. In a column of at least ten cells, numbers up to -99, numbers
    from 999 on, and the numbers in `_ALWAYS_CODES` need to occur only once. In any column, the codes -999, -9999 and so
    on need to occur only once.

    A code must lie more than ten interquartile ranges from the nearest other value. For -9 and values below -50 it is
    enough that no other value is negative.

    The numbers 7, 8 and 9 have another rule: they are codes if the other values form a scale, see `_beside_a_scale`.
    """
    present = numbers[np.isfinite(numbers)]
    # A code is the minimum or the maximum of the column. Testing these two values first avoids sorting most columns.
    if not present.size or not may_hold_codes(float(present.min()), float(present.max())):
        return []
    values, counts = np.unique(present, return_counts=True)
    has_enough_rows = present.size >= _MIN_ROWS
    suspects = [
        value
        for value, count in zip(values, counts, strict=True)
        if _looks_like_a_code(float(value)) and (count > 1 or _may_occur_once(float(value), enough=has_enough_rows))
    ]
    beside = _beside_a_scale(values, counts)
    others = present[~np.isin(present, [*suspects, *beside])]
    if not (suspects or beside) or np.unique(others).size < _MIN_VALUES:
        return []
    low, high = float(others.min()), float(others.max())
    lower_quartile, upper_quartile = np.percentile(others, [25, 75])
    spread = float(upper_quartile - lower_quartile) or high - low
    codes = []
    for value, count in zip(values, counts, strict=True):
        gap = max(low - value, value - high)
        is_only_negative = (value == -9 or value < -50) and low >= 0
        if value in beside or (value in suspects and gap > 0 and (is_only_negative or gap > _FAR * spread)):
            codes.append(Code(name, float(value), int(count), present.size, low, high))
    return codes


def _beside_a_scale(values: Float[np.ndarray, " value"], counts: Int[np.ndarray, " value"]) -> list[float]:
    """Return the values among 7, 8 and 9 that are probably codes in a column of answers on a scale.

    For example, 9 is returned if the other values are 1, 2, 3, 4 and 5. The other values must be consecutive whole
    numbers that start at 0 or 1. The largest answer must be at least two below every code. It must also be frequent,
    because the largest value is rare in a column of counts. The column must have at least ten cells, and fewer than
    half of the cells may contain a code. A 7 without an 8 or 9 is not a code.

    Args:
        values: the distinct values of the column, sorted.
        counts: the number of cells with each value.
    """
    rows, jumps = counts.sum(), np.flatnonzero(np.diff(values) != 1)
    if rows < _MIN_ROWS or values[0] not in (0.0, 1.0) or not jumps.size or not jumps[0]:
        return []
    top, codes = int(jumps[0]), values[jumps[0] + 1 :]
    count = int(counts[top + 1 :].sum())
    least = max(_TOP_ROWS, (_TOP_REPEATED if count > 1 else _TOP_ONCE) * rows)
    is_beside = np.isin(codes, _SCALE_CODES).all() and codes[-1] > _SCALE_CODES[0] and counts[top] >= least
    is_beside = is_beside and 2 * count < rows
    return [float(code) for code in codes] if is_beside else []


def warnings_about_codes(codes: Sequence[Code], targets: Sequence[str], *, instead: str = "") -> list[str]:
    """Return the texts of warnings about values that look like codes.

    Args:
        codes: the values.
        targets: the names of the targets.
        instead: the remedy in the warnings. By default the remedy is the option `missing_code`. Only tables have this
            option.
    """
    doubts = []
    for are_targets in (False, True):
        codes_of_kind = [code for code in codes if (code.column in targets) == are_targets]
        if not codes_of_kind:
            continue
        options = " ".join(setting("missing_code", f"{code.column}={code.text}") for code in codes_of_kind)
        missing_option = "[[missing=drop]]" if are_targets else "[[missing=median]] or drop"
        remedy = instead or f"to read it as missing, use {options} with {missing_option}"
        noun = "target" if are_targets else "column"
        noun += "s" if len({code.column for code in codes_of_kind}) > 1 else ""
        listing = list_names(code.describe() for code in codes_of_kind)
        doubts.append(f"{noun} {listing}: a value far from the other values may be a code for a missing cell; {remedy}")
    return doubts


def notes_of_unused_codes(frame: Any, reading: Reading, decimal: Any, where: str) -> list[str]:
    """Return a note for each code of `missing_code` that no cell contains.

    If the code contains a comma, such as -9,-99, it is probably a list of codes, so warn instead. Other codes cause
    no warning, because a part of a table need not contain every code of the whole table.

    Args:
        frame: the columns in use, as the file reader returns them: a data frame, or an object with the attribute
            `columns` that returns a column for `frame[name]`.
        reading: the options, including `missing_code`.
        decimal: the decimal mark of numbers in text cells.
        where: the name of the table in messages.
    """
    notes = []
    for code in reading.missing_code:
        options_of_code = replace(reading, missing_code=(code,))
        styles = {str(name): Style(decimal, options_of_code.codes_of(str(name))) for name in frame.columns}
        columns = [name for name, style in styles.items() if style.codes]
        if not columns or any(_holds_code(frame[name], styles[name]) for name in columns):
            continue
        value = styles[columns[0]].codes[0]
        prefix = code[: len(code) - len(value)] if code.endswith(value) else ""
        pieces = [piece.strip() for piece in value.split(",")]
        text = f"[[missing_code]] {code!r}: no cell contains this code"
        if len(pieces) > 1 and all(pieces):
            options = " ".join(setting("missing_code", prefix + piece) for piece in pieces)
            warnings.warn(f"{where}: {text}; if it is a list of codes, use {options}", BnnzooWarning, stacklevel=4)
        else:
            notes.append(f"{text}; check how missing cells are written in the file")
    return notes


def _holds_code(series: Any, style: Style) -> bool:
    """Whether a column contains a code of `style`. The result is always True for dates, which are not tested."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return True
    if pd.api.types.is_any_real_numeric_dtype(series.dtype):
        codes = np.array(style.code_numbers, np.float64)
        values = series.to_numpy(np.float64, na_value=np.nan)
        return bool(np.isin(values, [*codes, *codes.astype(np.float32)]).any())
    texts = {as_text(value) for value in series.dropna().unique()}
    plain = style._replace(codes=())
    return any(style.is_missing(text) and not plain.is_missing(text) for text in texts)


def may_hold_codes(low: float, high: float) -> bool:
    """Whether the minimum `low` or the maximum `high` of a column looks like a code."""
    return _looks_like_a_code(low) or _looks_like_a_code(high) or high in _SCALE_CODES[1:]


def _looks_like_a_code(value: float) -> bool:
    """Whether a number is often used as a code.

    Such numbers are -1, -7, -8, -9, repetitions of the digit 7, 8 or 9 (such as -999 and 99.99), and `_ALWAYS_CODES`.
    """
    if value in (-1.0, -9.0, -8.0, -7.0) or value in _ALWAYS_CODES or np.float32(value) == np.float32(9.96921e36):
        return True
    digits = f"{abs(value):.7g}".replace(".", "")
    return len(digits) > 1 and digits[0] in "789" and set(digits) == {digits[0]} and abs(value) >= 10


def _may_occur_once(value: float, *, enough: bool) -> bool:
    """Whether a code with this value is reported even if it occurs only once.

    `enough` states whether the column has at least ten cells.
    """
    if value in _ALWAYS_CODES:
        return enough
    return value <= (_LARGEST_SINGLE_CODE if enough else _ANY_ROWS) or (enough and value >= _SMALLEST_SINGLE_HIGH_CODE)
