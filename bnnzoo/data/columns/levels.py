"""Levels of categories: comparison of texts with the known levels, and positions of the levels."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bnnzoo.data.columns.cells import Cells, as_text
from bnnzoo.data.columns.forms import BOOLEAN, NUMBER, Style, is_true

_PLAIN = Style()


def level_positions(texts: Sequence[str], known_levels: Sequence[str]) -> list[int]:
    """Return the position of each text among the known levels, or -1 if no level matches.

    A text matches the level with the same spelling. If all known levels are plain numbers or booleans with distinct
    values, a text also matches the level with the same value. For example, 1.0 matches the level 1.
    """
    position_of_level = {text: i for i, text in enumerate(known_levels)}
    position_of_value = {value: i for i, value in enumerate(numeric_values(known_levels) or ())}
    position_of_value = position_of_value if len(position_of_value) == len(position_of_level) else {}
    return [
        position_of_level.get(text, -1 if (value := _value(text)) is None else position_of_value.get(value, -1))
        for text in texts
    ]


def numeric_values(levels: Sequence[str]) -> list[float] | None:
    """Return the value of each level if all levels are plain numbers or booleans, otherwise None.

    1 and 1.0 are plain numbers. 01 is not a plain number, because a number with a leading zero is a code.
    """
    values = [value for text in levels if (value := _value(text)) is not None]
    are_plain = len(values) == len(levels) and all(
        BOOLEAN.fullmatch(text)
        or text == as_text(value)
        or (abs(value) < 2**53 and re.fullmatch(r"-?(0|[1-9][0-9]*)\.0+", text))
        for text, value in zip(levels, values, strict=True)
    )
    return values if are_plain else None


def merge_equal_levels(cells: Cells) -> Cells:
    """Merge levels of equal value in a column of text, such as 1 and 1.0. The merged level is the first of them."""
    values = numeric_values(cells.levels) or []
    first = {value: level for level, value in zip(reversed(cells.levels), reversed(values), strict=False)}
    if len(first) == len(values):
        return cells
    levels = tuple(level for level in cells.levels if level in set(first.values()))
    codes = np.array([*(levels.index(first[value]) for value in values), np.nan])
    return cells._replace(
        numbers=codes[np.where(cells.is_missing, len(values), np.nan_to_num(cells.numbers)).astype(int)], levels=levels
    )


def _value(text: str) -> float | None:
    """Return the value of a number or a boolean, or None for other text."""
    if BOOLEAN.fullmatch(text):
        return is_true(text)
    return _PLAIN.number(text) if NUMBER.fullmatch(text) else None
