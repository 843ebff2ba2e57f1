"""Levels of categories: comparison of texts with the known levels, and positions of the levels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from bnnzoo.data.columns.cells import Cells, as_text
from bnnzoo.data.columns.forms import BOOLEAN, Style, is_true

Decimal = Literal["", ".", ","]


def level_positions(texts: Sequence[str], known_levels: Sequence[str], decimal: Decimal = "") -> list[int]:
    """Return the position of each text among the known levels, or -1 if no level matches.

    A text matches the level with the same spelling. If all known levels are plain numbers or booleans with distinct
    values, a text also matches the level with the same value. For example, 1.0 matches the level 1. Numbers in `texts`
    have the decimal mark `decimal`, and the known levels have a point.
    """
    position_of_level = {text: i for i, text in enumerate(known_levels)}
    position_of_value = {value: i for i, value in enumerate(numeric_values(known_levels) or ())}
    position_of_value = position_of_value if len(position_of_value) == len(position_of_level) else {}
    return [
        position_of_level.get(
            text, -1 if (value := _value(text, decimal)) is None else position_of_value.get(value, -1)
        )
        for text in texts
    ]


def numeric_values(levels: Sequence[str], decimal: Decimal = "") -> list[float] | None:
    """Return the value of each level if all levels are plain numbers or booleans, otherwise None.

    1 and 1.0 are plain numbers. 01 is not a plain number, because a number with a leading zero is a code.
    """
    values = [value for text in levels if (value := _value(text, decimal)) is not None]
    are_plain = len(values) == len(levels) and all(
        BOOLEAN.fullmatch(text)
        or _with_point(text, decimal) == as_text(value)
        or (abs(value) < 2**53 and re.fullmatch(r"-?(0|[1-9][0-9]*)\.0+", _with_point(text, decimal)))
        for text, value in zip(levels, values, strict=True)
    )
    return values if are_plain else None


def merge_equal_levels(cells: Cells, decimal: Decimal = "") -> Cells:
    """Merge levels of equal value in a column of text, such as 1 and 1.0. The first of these levels is kept.

    If all levels are numbers, decimal commas in them are replaced by points.
    """
    values = numeric_values(cells.levels, decimal) or []
    if values:
        cells = cells._replace(levels=tuple(_with_point(text, decimal) for text in cells.levels))
    first = {value: level for level, value in zip(reversed(cells.levels), reversed(values), strict=False)}
    if len(first) == len(values):
        return cells
    levels = tuple(level for level in cells.levels if level in set(first.values()))
    codes = np.array([*(levels.index(first[value]) for value in values), np.nan])
    index = np.where(cells.is_missing, len(values), np.nan_to_num(cells.numbers)).astype(int)
    return cells.with_levels(codes[index], levels)


def _value(text: str, decimal: Decimal) -> float | None:
    """Return the value of a number or a boolean, or None for other text."""
    if BOOLEAN.fullmatch(text):
        return is_true(text)
    style = Style(decimal)
    return style.number(text) if style.is_number(text) else None


def _with_point(text: str, decimal: Decimal) -> str:
    """Return a number with a decimal point in place of the decimal mark."""
    return text.replace(",", ".") if decimal == "," else text
