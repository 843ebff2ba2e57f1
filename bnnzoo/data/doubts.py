"""Warnings about columns that are valid but probably not as intended."""

from __future__ import annotations

import re
import shlex
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from bnnzoo.data.columns import Cells
from bnnzoo.data.faults import listed, with_names
from bnnzoo.data.forms import WITH_UNIT
from bnnzoo.errors import BnnzooWarning

_FEWEST_IDENTIFIED = 20
"""With fewer rows, all values may be distinct by chance."""
_FEWEST_NUMBERED = 3
"""The same limit for a column with a name of row numbers."""
_ROW_NUMBERS = re.compile(
    r"unnamed: ?\d+|rownames?|row[ ._-]?(?:names?|id|no|nr|num(?:ber)?)?|index|level_0|\.\.\.1|#", re.I
)
"""Names that pandas, R and databases give to row numbers."""
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


def warn_of_inputs(cells: Sequence[Cells], where: str) -> None:
    """Warn about constant columns and identifiers. A single input may be distinct in every row, as a clock is.

    A column that is named as programs name row numbers needs fewer rows than another identifier.
    """
    found: dict[str, list[str]] = {"constant": [], "identifier": []}
    for column in cells:
        present = column.numbers[~column.is_missing]
        if len(present) < 2:
            continue
        if present.max() == present.min():
            found["constant"] += [] if column.is_missing.any() else [column.name]
            continue
        fewest = _FEWEST_NUMBERED if _ROW_NUMBERS.fullmatch(column.name) else _FEWEST_IDENTIFIED
        if len(cells) > 1 and len(present) >= fewest and column.kind in ("number", "text"):
            whole = column.kind == "text" or np.array_equal(present, np.floor(present))
            if whole and len(np.unique(present)) == len(present):
                found["identifier"].append(column.name)
    for kind, what in (
        ("constant", "the same in every row: {} nothing"),
        ("identifier", "different in every row, as identifiers are"),
    ):
        if names := found[kind]:
            noun, says, them = ("column", "it says", "it") if len(names) == 1 else ("columns", "they say", "them")
            cure = with_names("--drop NAME", names)
            text = f"{where}: {noun} {listed(names)}: {what.format(says)}; {cure} leaves {them} out"
            warnings.warn(text, BnnzooWarning, stacklevel=3)


def warn_of_targets(cells: Sequence[Cells], where: str) -> None:
    """Warn about constant targets."""
    constant = [c.name for c in cells if len(c.numbers) > 1 and np.nanmax(c.numbers) == np.nanmin(c.numbers)]
    if constant:
        text = f"{where}: target {listed(constant)}: the same in every row: there is nothing to predict"
        warnings.warn(text, BnnzooWarning, stacklevel=3)


def warn_of_text(
    cells: Sequence[Cells],
    categories: Sequence[str],
    targets: Sequence[str],
    where: str,
    skip: Callable[[int], str] | None,
) -> None:
    """Warn of text that is hardly a category: amounts with units, names of columns, totals, letters of either case.

    Args:
        categories: the columns of text that the user declared as levels.
        targets: the names of the targets.
        skip: the option that leaves out a row, counted from 0, or ""; None where rows were left out already.
    """
    texts = [column for column in cells if column.kind == "text"]
    found = []
    for column in texts:
        name, levels = column.name, column.levels
        units = [match[1] for level in levels if (match := WITH_UNIT.fullmatch(level))]
        unit, count = Counter(units).most_common(1)[0] if units else ("", 0)
        if name not in categories and count >= _FEWEST_WITH_UNIT and 2 * count >= len(levels):
            option = "--task classification" if name in targets else f"--categories {shlex.quote(name)}"
            found.append(
                f"column {name}: numbers with a unit ({unit}) are read as text, each another level; write plain "
                f"numbers, or {option} if levels are meant"
            )
        found += [f"column {name}: {text}; write them alike if they are one" for text in _twins(levels)]
        marks = [level for level in levels if not any(map(str.isalnum, level))]
        if name in targets and len(marks) == 1 and len(levels) > 1:
            code = shlex.quote(f"{name}={marks[0]}")
            found.append(
                f"target {name}: class {marks[0]!r} looks like a mark for a missing cell; --missing-code {code} with "
                "--missing drop leaves such rows out"
            )
        last = column.numbers[-1]
        if skip and len(column.numbers) > 2 and np.isfinite(last) and np.sum(column.numbers == last) == 1:
            level, row = levels[int(last)], len(column.numbers)
            if _TOTALS.fullmatch(level):
                option = skip(row - 1)
                cure = f"{option} leaves it out" if option else "remove it"
                found.append(f"row {row}, column {name}: {level!r}: a row of totals is no observation; {cure}")
    named = [column.name for column in texts if column.name in column.levels]
    if len(named) > 1 and 2 * len(named) >= len(cells):
        found.append(
            f"the names of columns are among their cells ({listed(named)}): the header is repeated, or the first line "
            "is none; remove the line, or put a header above it"
        )
    for text in found:
        warnings.warn(f"{where}: {text}", BnnzooWarning, stacklevel=4)


def _twins(levels: Sequence[str]) -> list[str]:
    """Return descriptions of levels that look alike: in other capitals, or with invisible or wide characters."""
    folded = Counter(level.casefold() for level in levels)
    twins = [level for level in levels if folded[level.casefold()] > 1]
    texts = [f"levels that differ in capitals only: {listed(twins)}"] if twins else []
    seen = Counter(_visible(level) for level in levels)
    twins = [level for level in levels if seen[_visible(level)] > 1]
    return texts + ([f"levels that look alike: {listed(ascii(level) for level in twins)}"] if twins else [])


def _visible(text: str) -> str:
    """Return a text without invisible characters, and with the plain form of wide characters and ligatures."""
    kept = "".join(letter for letter in text if unicodedata.category(letter) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", kept).split())


def warn_of_dates(cells: Sequence[Cells], where: str) -> None:
    """Warn of dates that say that there is none, and of dates that are written as whole numbers."""
    for column in cells:
        present = np.unique(column.numbers[~column.is_missing])
        if column.kind == "date":
            for day in sentinel_days(present):
                date = np.datetime64(int(day), "D")
                code = shlex.quote(f"{column.name}={date}")
                text = f"column {column.name}: {date} is far from the other dates, as a code for a missing one is"
                text += f"; --missing-code {code} with --missing median or drop takes such cells as missing"
                warnings.warn(f"{where}: {text}", BnnzooWarning, stacklevel=4)
        elif column.kind == "number" and _are_written_dates(present):
            text = f"column {column.name}: whole numbers such as {present[0]:.0f} look like dates and are read as "
            text += "numbers; write dates as YYYY-MM-DD"
            warnings.warn(f"{where}: {text}", BnnzooWarning, stacklevel=4)


def sentinel_days(distinct: Float[np.ndarray, " distinct"]) -> list[float]:
    """Return the days, since 1970, that say that there is no date, and are far from the other dates of a column.

    `distinct` are the sorted distinct dates of the column.
    """
    days = [float(np.datetime64(text, "D").astype(float)) for text in _SENTINELS]
    others = distinct[~np.isin(np.floor(distinct), days)]
    if others.size < _FEWEST_VALUES:
        return []
    span = max(others[-1] - others[0], 1.0)
    whole = np.unique(np.floor(distinct))
    return [float(day) for day in whole if day in days and max(others[0] - day, day - others[-1]) > span]


def _are_written_dates(numbers: Float[np.ndarray, " distinct"]) -> bool:
    """Whether all numbers, of several months, are dates written as YYYYMMDD."""
    if numbers.size < _FEWEST_VALUES or numbers[0] < 19000101 or numbers[-1] > 21001231:
        return False
    if not np.array_equal(numbers, np.floor(numbers)):
        return False
    whole = numbers.astype(int)
    month, day = whole // 100 % 100, whole % 100
    return bool(np.all((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)))
