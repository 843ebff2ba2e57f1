"""Warnings about columns that are valid but probably not as intended."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bnnzoo.data.columns import Cells
from bnnzoo.data.faults import listed, with_names
from bnnzoo.errors import BnnzooWarning

_FEWEST_IDENTIFIED = 20
"""With fewer rows, all values may be distinct by chance."""
_FAR = 10.0
"""Minimal distance of a code from the other cells, in their interquartile ranges."""
_FEWEST_VALUES = 2
"""Minimal number of other values in a column with a distant value."""
_EVER_CODES = (-200.0, -32768.0, 32767.0, -2147483648.0, 2147483647.0, -1e20, 1e20, -1e30, 1e30, 9.96921e36)
"""Codes of instruments and file formats that are not repeated digits."""


def warn_of_inputs(cells: Sequence[Cells], where: str) -> None:
    """Warn about constant columns and identifiers. A single input may be distinct in every row, as a clock is."""
    found: dict[str, list[str]] = {"constant": [], "identifier": []}
    for column in cells:
        present = column.numbers[~column.is_missing]
        if len(present) < 2:
            continue
        if present.max() == present.min():
            found["constant"] += [] if column.is_missing.any() else [column.name]
        elif len(cells) > 1 and len(present) >= _FEWEST_IDENTIFIED and column.kind in ("number", "text"):
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
    """Return the repeated values that look like codes and lie far outside the other cells of a column; nan is ignored.

    Far means more than ten interquartile ranges from the nearest other value. For -9 and values below -50 it is enough
    that no other value is negative.
    """
    present = numbers[np.isfinite(numbers)]
    # A distant value is the minimum or the maximum, so most columns need no sorting.
    if not present.size or not any(_looks_like_a_code(float(end)) for end in (present.min(), present.max())):
        return []
    values, counts = np.unique(present, return_counts=True)
    suspects = [v for v, c in zip(values, counts, strict=True) if c > 1 and _looks_like_a_code(float(v))]
    others = present[~np.isin(present, suspects)]
    if not suspects or np.unique(others).size < _FEWEST_VALUES:
        return []
    low, high = float(others.min()), float(others.max())
    quarter, middle = np.percentile(others, [25, 75])
    spread = float(middle - quarter) or high - low
    found = []
    for value, count in zip(values, counts, strict=True):
        gap = max(low - value, value - high)
        only_negative = (value == -9 or value < -50) and low >= 0
        if value in suspects and gap > 0 and (only_negative or gap > _FAR * spread):
            found.append(Code(name, float(value), int(count), present.size, low, high))
    return found


def warn_of_codes(codes: Sequence[Code], targets: Sequence[str], where: str, *, of_table: bool = True) -> None:
    """Warn about values that look like codes, with the options that mark them as missing.

    Args:
        codes: the values to report.
        targets: the names of the target columns.
        where: the name of the data in messages.
        of_table: whether the options of tables apply; arrays have no missing cells.
    """
    for are_targets in (False, True):
        some = [code for code in codes if (code.column in targets) == are_targets]
        if not some:
            continue
        options = " ".join(f"--missing-code {shlex.quote(f'{code.column}={code.text}')}" for code in some)
        then = "--missing drop" if are_targets else "--missing median or drop"
        cure = f"{options} with {then} takes such cells as missing"
        cure = cure if of_table else "if it is, leave such rows out, or give a table with --missing-code"
        noun = "target" if are_targets else "column"
        noun += "s" if len({code.column for code in some}) > 1 else ""
        listing = listed(code.describe() for code in some)
        text = f"{where}: {noun} {listing}: far from the other values, as a code for a missing one is; {cure}"
        warnings.warn(text, BnnzooWarning, stacklevel=3)


def _looks_like_a_code(value: float) -> bool:
    """Whether a number is -1, -7, -8, -9, a repetition of 7, 8 or 9 (-999, 99.99), or a code of a format."""
    if value in (-1.0, -9.0, -8.0, -7.0) or value in _EVER_CODES or np.float32(value) == np.float32(9.96921e36):
        return True
    digits = f"{abs(value):.7g}".replace(".", "")
    return len(digits) > 1 and digits[0] in "789" and set(digits) == {digits[0]} and abs(value) >= 10
