"""Levels of categories: which texts are the same level, and where each is among those that are known."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bnnzoo.data.columns import Cells, as_text
from bnnzoo.data.forms import BOOLEAN, NUMBER, Style, is_true

_PLAIN = Style()


def places_of(texts: Sequence[str], known: Sequence[str]) -> list[int]:
    """Where each text is among those that are known; -1 where it is none of them.

    A text is the one that is written so; where all that are known are numbers or truths, the one of its value.
    """
    place = {text: i for i, text in enumerate(known)}
    of_value = {value: i for i, value in enumerate(values_of(known) or ())}
    of_value = of_value if len(of_value) == len(place) else {}
    return [place.get(text, -1 if (value := _value(text)) is None else of_value.get(value, -1)) for text in texts]


def values_of(levels: Sequence[str]) -> list[float] | None:
    """The value of each level, where all are numbers or truths as tables write them: 1 or 1.0 and not 01, a code."""
    values = [value for text in levels if (value := _value(text)) is not None]
    plain = len(values) == len(levels) and all(
        BOOLEAN.fullmatch(text)
        or text == as_text(value)
        or (abs(value) < 2**53 and re.fullmatch(r"-?(0|[1-9][0-9]*)\.0+", text))
        for text, value in zip(levels, values, strict=True)
    )
    return values if plain else None


def one_level_a_value(cells: Cells) -> Cells:
    """A column of text whose levels of equal value, 1 and 1.0, are one: the first of them."""
    values = values_of(cells.levels) or []
    first = {value: level for level, value in zip(reversed(cells.levels), reversed(values), strict=False)}
    if len(first) == len(values):
        return cells
    levels = tuple(level for level in cells.levels if level in set(first.values()))
    codes = np.array([*(levels.index(first[value]) for value in values), np.nan])
    return cells._replace(
        numbers=codes[np.where(cells.is_missing, len(values), np.nan_to_num(cells.numbers)).astype(int)], levels=levels
    )


def _value(text: str) -> float | None:
    """The number or the truth that a text is, if it is one."""
    if BOOLEAN.fullmatch(text):
        return is_true(text)
    return _PLAIN.number(text) if NUMBER.fullmatch(text) else None
