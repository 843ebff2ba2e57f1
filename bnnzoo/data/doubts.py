"""Warnings about columns that are valid but probably not as intended."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bnnzoo.data.columns import Cells
from bnnzoo.data.faults import list_names, with_names
from bnnzoo.data.forms import WITH_UNIT
from bnnzoo.errors import BnnzooWarning
from bnnzoo.finding import setting

_FEWEST_IDENTIFIED = 20
"""With fewer rows, all values may be distinct by chance."""
_FAR = 10.0
"""Interquartile ranges of the other cells between them and a code."""
_FEWEST_ROWS = 10
"""Rows from which a value that occurs once can be told from an ordinary outlier."""
_LARGEST_SINGLE_CODE = -99.0
"""Codes from here on downwards need not repeat."""
_SENTINELS = ("0001-01-01", "1753-01-01", "1899-12-30", "1899-12-31", "1900-01-01", "1970-01-01", "9999-12-31")
"""Dates by which systems say that there is none."""
_TOTALS = re.compile(
    r"(?:(?:grand|sub)?[ -]?totals?|sum|summe|gesamt|insgesamt|somme|suma|totale|mean|average)\b.*", re.I
)
"""Labels of a closing row of sums or means."""
_FEWEST_WITH_UNIT = 3
"""Levels with the same unit from which they are amounts."""
_FEWEST_VALUES = 2
"""Minimal number of other values in a column with a distant value."""
_ALWAYS_CODES = (-200.0, -32768.0, 32767.0, -2147483648.0, 2147483647.0, -1e20, 1e20, -1e30, 1e30, 9.96921e36)
"""Codes of instruments and file formats that are not repeated digits."""


def warn_of_inputs(cells: Sequence[Cells], where: str) -> None:
    """Warn about constant columns and identifiers. A single input may be distinct in every row, as a clock is."""
    names_by_kind: dict[str, list[str]] = {"constant": [], "identifier": []}
    for column in cells:
        present = column.numbers[~column.is_missing]
        if len(present) < 2:
            continue
        if present.max() == present.min():
            names_by_kind["constant"] += [] if column.is_missing.any() else [column.name]
        elif len(cells) > 1 and len(present) >= _FEWEST_IDENTIFIED and column.kind in ("number", "text"):
            is_whole = column.kind == "text" or np.array_equal(present, np.floor(present))
            if is_whole and len(np.unique(present)) == len(present):
                names_by_kind["identifier"].append(column.name)
    for kind, pattern in (
        ("constant", "the same in every row, so {} nothing"),
        ("identifier", "different in every row, like identifiers"),
    ):
        if names := names_by_kind[kind]:
            noun, clause, pronoun = ("column", "it says", "it") if len(names) == 1 else ("columns", "they say", "them")
            remedy = with_names("[[drop=NAME]]", names)
            text = f"{where}: {noun} {list_names(names)}: {pattern.format(clause)}; leave {pronoun} out with {remedy}"
            warnings.warn(text, BnnzooWarning, stacklevel=3)


def warn_of_targets(cells: Sequence[Cells], where: str) -> None:
    """Warn about constant targets."""
    constant = [
        column.name
        for column in cells
        if len(column.numbers) > 1 and np.nanmax(column.numbers) == np.nanmin(column.numbers)
    ]
    if constant:
        text = f"{where}: target {list_names(constant)}: the same in every row, so there is nothing to predict"
        warnings.warn(text, BnnzooWarning, stacklevel=3)


def warn_of_text(
    cells: Sequence[Cells], categories: Sequence[str], where: str, skip: Callable[[int], str] | None
) -> None:
    """Warn of text that is hardly a category: amounts with units, names of columns, totals, letters of either case.

    Args:
        categories: columns of which the user says that they are some.
        skip: the option that leaves out a row, counted from 0, or ""; None where rows were left out already.
    """
    texts = [column for column in cells if column.kind == "text"]
    warnings_found = []
    for column in texts:
        name, levels = column.name, column.levels
        units = [match[1] for level in levels if (match := WITH_UNIT.fullmatch(level))]
        unit, count = Counter(units).most_common(1)[0] if units else ("", 0)
        if name not in categories and count >= _FEWEST_WITH_UNIT and 2 * count >= len(levels):
            warnings_found.append(
                f"column {name}: numbers with a unit ({unit}) are read as text, each as a category of its own; "
                f"write plain numbers, or confirm the categories with {setting('categories', name)}"
            )
        folded = Counter(level.casefold() for level in levels)
        case_variants = [level for level in levels if folded[level.casefold()] > 1]
        if case_variants:
            warnings_found.append(
                f"column {name}: categories that differ only in capital letters: {list_names(case_variants)}; write "
                "them "
                "alike if they are the same"
            )
        last = column.numbers[-1]
        if skip and len(column.numbers) > 2 and np.isfinite(last) and np.sum(column.numbers == last) == 1:
            level, row = levels[int(last)], len(column.numbers)
            if _TOTALS.fullmatch(level):
                option = skip(row - 1)
                remedy = f"leave it out with {option}" if option else "remove it"
                warnings_found.append(
                    f"row {row}, column {name}: {level!r}: a row of totals is not an observation; {remedy}"
                )
    columns_with_own_name = [column.name for column in texts if column.name in column.levels]
    if len(columns_with_own_name) > 1 and 2 * len(columns_with_own_name) >= len(cells):
        warnings_found.append(
            f"the cells of several columns contain the column names ({list_names(columns_with_own_name)}): the "
            "header is repeated, "
            "or the first line is not the header; remove the line, or put a header above it"
        )
    for text in warnings_found:
        warnings.warn(f"{where}: {text}", BnnzooWarning, stacklevel=4)


def warn_of_dates(cells: Sequence[Cells], where: str) -> None:
    """Warn of dates that say that there is none, and of dates that are written as whole numbers."""
    for column in cells:
        present = np.unique(column.numbers[~column.is_missing])
        if column.kind == "date":
            days = {float(np.datetime64(text, "D").astype(float)): text for text in _SENTINELS}
            other_days = present[~np.isin(np.floor(present), list(days))]
            if other_days.size < _FEWEST_VALUES:
                continue
            span = max(other_days[-1] - other_days[0], 1.0)
            distant_days = [
                day_number
                for day_number in np.floor(present)
                if day_number in days and max(other_days[0] - day_number, day_number - other_days[-1]) > span
            ]
            for day in distant_days:
                code = setting("missing_code", f"{column.name}={days[day]}")
                text = f"column {column.name}: {days[day]} is far from the other dates, like a code for a missing cell"
                text += f"; to read it as missing, use {code} with [[missing=median]] or drop"
                warnings.warn(f"{where}: {text}", BnnzooWarning, stacklevel=4)
        elif column.kind == "number" and _are_written_dates(present):
            text = f"column {column.name}: whole numbers such as {present[0]:.0f} look like dates but are read as "
            text += "numbers; write dates as YYYY-MM-DD"
            warnings.warn(f"{where}: {text}", BnnzooWarning, stacklevel=4)


def _are_written_dates(numbers: Float[np.ndarray, " distinct"]) -> bool:
    """Whether all numbers, of several months, are dates written as YYYYMMDD."""
    if numbers.size < _FEWEST_VALUES or numbers[0] < 19000101 or numbers[-1] > 21001231:
        return False
    if not np.array_equal(numbers, np.floor(numbers)):
        return False
    integers = numbers.astype(int)
    month, day = integers // 100 % 100, integers % 100
    return bool(np.all((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)))


class Code(NamedTuple):
    """A value that looks like a code for a missing cell."""

    column: str
    value: float
    count: int
    rows: int
    low: float
    high: float

    @property
    def text(self) -> str:
        """The value as the user types it."""
        return f"{self.value:.0f}" if abs(self.value) < 1e15 and self.value == int(self.value) else f"{self.value:.10g}"

    def describe(self) -> str:
        """Return the value, its frequency, and the range of the other values."""
        return f"{self.column} ({self.text} in {self.count} of {self.rows} rows, others {self.low:g} to {self.high:g})"


def find_codes(name: str, numbers: Float[np.ndarray, " row"]) -> list[Code]:
    """Find values that look like codes and lie far outside the other cells of a column; nan cells do not count.

    They must repeat, except those of -99 and below in a column of at least ten cells.

    Far means more than ten interquartile ranges from the nearest other value. For -9 and values below -50 it is enough
    that no other value is negative.
    """
    present = numbers[np.isfinite(numbers)]
    # A distant value is the minimum or the maximum, so most columns need no sorting.
    if not present.size or not any(_looks_like_a_code(float(end)) for end in (present.min(), present.max())):
        return []
    values, counts = np.unique(present, return_counts=True)
    has_enough_rows = present.size >= _FEWEST_ROWS
    suspects = [
        value
        for value, count in zip(values, counts, strict=True)
        if (count > 1 or (has_enough_rows and (value <= _LARGEST_SINGLE_CODE or value in _ALWAYS_CODES)))
        and _looks_like_a_code(float(value))
    ]
    others = present[~np.isin(present, suspects)]
    if not suspects or np.unique(others).size < _FEWEST_VALUES:
        return []
    low, high = float(others.min()), float(others.max())
    lower_quartile, median = np.percentile(others, [25, 75])
    spread = float(median - lower_quartile) or high - low
    codes = []
    for value, count in zip(values, counts, strict=True):
        gap = max(low - value, value - high)
        only_negative = (value == -9 or value < -50) and low >= 0
        if value in suspects and gap > 0 and (only_negative or gap > _FAR * spread):
            codes.append(Code(name, float(value), int(count), present.size, low, high))
    return codes


def warn_of_codes(codes: Sequence[Code], targets: Sequence[str], where: str, *, instead: str = "") -> None:
    """Warn of values that look like codes, with the options that make them missing.

    Args:
        instead: the cure where the options of tables do not apply: arrays have no missing cells.
    """
    for are_targets in (False, True):
        codes_of_kind = [code for code in codes if (code.column in targets) == are_targets]
        if not codes_of_kind:
            continue
        options = " ".join(setting("missing_code", f"{code.column}={code.text}") for code in codes_of_kind)
        missing_option = "[[missing=drop]]" if are_targets else "[[missing=median]] or drop"
        remedy = f"to read it as missing, use {options} with {missing_option}"
        remedy = instead or remedy
        noun = "target" if are_targets else "column"
        noun += "s" if len({code.column for code in codes_of_kind}) > 1 else ""
        listing = list_names(code.describe() for code in codes_of_kind)
        text = f"{where}: {noun} {listing}: far from the other values, like a code for a missing cell; {remedy}"
        warnings.warn(text, BnnzooWarning, stacklevel=3)


def _looks_like_a_code(value: float) -> bool:
    """Whether a number is -1, -7, -8, -9, a repetition of 7, 8 or 9 (-999, 99.99), or a code of a format."""
    if value in (-1.0, -9.0, -8.0, -7.0) or value in _ALWAYS_CODES or np.float32(value) == np.float32(9.96921e36):
        return True
    digits = f"{abs(value):.7g}".replace(".", "")
    return len(digits) > 1 and digits[0] in "789" and set(digits) == {digits[0]} and abs(value) >= 10
