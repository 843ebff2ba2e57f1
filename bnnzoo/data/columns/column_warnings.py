"""Texts of warnings about columns that are valid, but probably not what the user intended."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from bnnzoo.data.columns.cells import Cells
from bnnzoo.data.columns.faults import list_names, with_names
from bnnzoo.data.columns.forms import WITH_UNIT
from bnnzoo.finding import setting

_MIN_IDENTIFIED = 20
"""Minimal number of rows for a warning about an identifier. All values of fewer rows may be distinct by chance."""
_MIN_NUMBERED = 3
"""Minimal number of rows for a warning about an identifier if the name of the column is usual for row numbers."""
_ROW_NUMBERS = re.compile(
    r"unnamed: ?\d+|rownames?|row[ ._-]?(?:names?|id|no|nr|num(?:ber)?)?|index|level_0|\.\.\.1|#", re.I
)
"""Names that pandas, R and databases give to row numbers."""
_SENTINELS = ("0001-01-01", "1753-01-01", "1899-12-30", "1899-12-31", "1900-01-01", "1970-01-01", "9999-12-31")
"""Dates that systems use as placeholders for a missing date."""
_TOTALS = re.compile(
    r"(?:(?:grand|sub)?[ -]?totals?|sum|summe|gesamt|insgesamt|somme|suma|totale|mean|average)\b.*", re.I
)
"""Labels of a last row with sums or means of the columns."""
_MIN_WITH_UNIT = 3
"""Minimal number of levels with the same unit, such as 1 kg, for the warning that a text column should be numbers."""
_MIN_VALUES = 2
"""Minimal number of ordinary dates in a column with a placeholder date; also of numbers that look like dates."""


def warnings_about_inputs(cells: Sequence[Cells]) -> list[str]:
    """Return warnings about inputs that are constant, or that are identifiers.

    An identifier is a column of text or whole numbers that has a different cell in every row. A small table contains
    such columns by chance. At least 20 rows are therefore required, or 3 if the column has a usual name for row
    numbers. The only input of a table is never reported as an identifier, because this input may be a time, for
    example. A constant column with missing cells is not reported.
    """
    names_by_kind: dict[str, list[str]] = {"constant": [], "identifier": []}
    for column in cells:
        present = column.numbers[~column.is_missing]
        if len(present) < 2:
            continue
        if present.max() == present.min():
            names_by_kind["constant"] += [] if column.is_missing.any() else [column.name]
            continue
        fewest = _MIN_NUMBERED if _ROW_NUMBERS.fullmatch(column.name) else _MIN_IDENTIFIED
        if len(cells) > 1 and len(present) >= fewest and column.kind in ("number", "text"):
            is_whole = column.kind == "text" or np.array_equal(present, np.floor(present))
            if is_whole and len(np.unique(present)) == len(present):
                names_by_kind["identifier"].append(column.name)
    doubts = []
    for kind, pattern in (
        ("constant", "the same in every row, so {} no information"),
        ("identifier", "different in every row, like identifiers"),
    ):
        if names := names_by_kind[kind]:
            noun, clause, pronoun = (
                ("column", "it carries", "it") if len(names) == 1 else ("columns", "they carry", "them")
            )
            remedy = with_names("[[drop=NAME]]", names)
            doubts.append(f"{noun} {list_names(names)}: {pattern.format(clause)}; leave {pronoun} out with {remedy}")
    return doubts


def warnings_about_targets(cells: Sequence[Cells]) -> list[str]:
    """Return a warning about constant targets, or an empty list if no target is constant."""
    constant = [
        column.name
        for column in cells
        if len(column.numbers) > 1 and np.nanmax(column.numbers) == np.nanmin(column.numbers)
    ]
    if not constant:
        return []
    problem = "the same in every row, so there is nothing to predict"
    return [f"target {list_names(constant)}: {problem}; choose another [[target]]"]


def warnings_about_text(
    cells: Sequence[Cells], categories: Sequence[str], targets: Sequence[str], skip: Callable[[int], str] | None
) -> list[str]:
    """Return warnings about columns of text.

    The warnings are about numbers with a unit, levels that look alike, a class that may mean a missing cell, a row of
    totals, and cells with the names of columns.

    Args:
        categories: the columns that the user declared as categories.
        targets: the names of the targets.
        skip: a function that returns the option for leaving out a row, or "" if there is no such option. The rows count
            from 0. `skip` is None if rows were left out before: the last cell need not be the last row of the table.
    """
    texts = [column for column in cells if column.kind == "text"]
    doubts = []
    for column in texts:
        name, levels = column.name, column.levels
        units = [match[1] for level in levels if (match := WITH_UNIT.fullmatch(level))]
        unit, count = Counter(units).most_common(1)[0] if units else ("", 0)
        if name not in categories and count >= _MIN_WITH_UNIT and 2 * count >= len(levels):
            option = "[[task=classification]]" if name in targets else setting("categories", name)
            doubts.append(
                f"column {name}: numbers with a unit ({unit}) are read as text, each as a category of its own; "
                f"write plain numbers, or confirm the categories with {option}"
            )
        doubts += [
            f"column {name}: {text}; if they mean the same, write them in the same way"
            for text in _describe_similar(levels)
        ]
        marks = [level for level in levels if not any(map(str.isalnum, level))]
        if name in targets and len(marks) == 1 and len(levels) > 1:
            code = setting("missing_code", f"{name}={marks[0]}")
            doubts.append(
                f"target {name}: class {marks[0]!r} looks like a mark for a missing cell; to leave such rows out, use "
                f"{code} with [[missing=drop]]"
            )
        last = column.numbers[-1]
        if skip and len(column.numbers) > 2 and np.isfinite(last) and np.sum(column.numbers == last) == 1:
            level, row = levels[int(last)], len(column.numbers)
            if _TOTALS.fullmatch(level):
                option = skip(row - 1)
                remedy = f"leave it out with {option}" if option else "remove it"
                doubts.append(f"row {row}, column {name}: {level!r}: a row of totals is not an observation; {remedy}")
    columns_with_own_name = [column.name for column in texts if column.name in column.levels]
    if len(columns_with_own_name) > 1 and 2 * len(columns_with_own_name) >= len(cells):
        doubts.append(
            f"the cells of several columns contain the column names ({list_names(columns_with_own_name)}): the "
            "header is repeated, or the first line is not the header; remove the repeated header, or put a header "
            "above the first line"
        )
    return doubts


def _describe_similar(levels: Sequence[str]) -> list[str]:
    """Return a description of categories that differ only in case, and one of categories that look alike.

    Categories that look alike differ only in invisible characters, or in wide or combined forms of letters.
    """
    folded = Counter(level.casefold() for level in levels)
    twins = [level for level in levels if folded[level.casefold()] > 1]
    texts = [f"categories that differ only in capital letters: {list_names(twins)}"] if twins else []
    visible = Counter(_visible(level) for level in levels)
    twins = [level for level in levels if visible[_visible(level)] > 1]
    return texts + ([f"categories that look alike: {list_names(ascii(level) for level in twins)}"] if twins else [])


def _visible(text: str) -> str:
    """Return a text without invisible characters, with plain letters in place of wide letters and ligatures."""
    visible = "".join(letter for letter in text if unicodedata.category(letter) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", visible).split())


def warnings_about_dates(cells: Sequence[Cells]) -> list[str]:
    """Return warnings about placeholder dates, and about whole numbers such as 20240317 that are probably dates."""
    doubts = []
    for column in cells:
        present = column.numbers[~column.is_missing]
        if column.kind == "date":
            for day in sentinel_days(np.unique(present)):
                date = np.datetime64(int(day), "D")
                code = setting("missing_code", f"{column.name}={date}")
                doubts.append(
                    f"column {column.name}: {date} is far from the other dates, so it may be a code for a missing "
                    f"cell; to read it as missing, use {code} with [[missing=median]] or drop"
                )
        elif column.kind == "number" and _are_written_dates(present):
            doubts.append(
                f"column {column.name}: whole numbers such as {present.min():.0f} look like dates but are read as "
                "numbers; write dates as YYYY-MM-DD"
            )
    return doubts


def sentinel_days(distinct: Float[np.ndarray, " distinct"]) -> list[float]:
    """Return the placeholder dates of a column that are far from its other dates, as days since 1970.

    Args:
        distinct: the sorted distinct dates of the column, as days since 1970.
    """
    days = [float(np.datetime64(text, "D").astype(float)) for text in _SENTINELS]
    others = distinct[~np.isin(np.floor(distinct), days)]
    if others.size < _MIN_VALUES:
        return []
    span = max(others[-1] - others[0], 1.0)
    whole_days = np.unique(np.floor(distinct))
    return [float(day) for day in whole_days if day in days and max(others[0] - day, day - others[-1]) > span]


def _are_written_dates(numbers: Float[np.ndarray, " row"]) -> bool:
    """Whether there are at least two different numbers, and all of them are possible dates in the form YYYYMMDD."""
    # The range is tested first, which avoids sorting most columns.
    if not numbers.size or numbers.min() < 19000101 or numbers.max() > 21001231:
        return False
    distinct = np.unique(numbers)
    if distinct.size < _MIN_VALUES or not np.array_equal(distinct, np.floor(distinct)):
        return False
    integers = distinct.astype(int)
    month, day = integers // 100 % 100, integers % 100
    return bool(np.all((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)))
