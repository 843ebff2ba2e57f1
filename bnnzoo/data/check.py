"""Checks that turn bad data into one-line errors which name the place and the cure.

How places are counted, here and in every message of this folder: `row K` is the K-th data row, from 1; the
header line of a table is not counted. Columns of tables have names; columns of arrays count from 1.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnnzoo.errors import UsageError
from bnnzoo.near import near_names


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a not-found message: the near names, or else the first few that exist."""
    names = list(names)
    near = near_names(name, names)
    if near:
        return f"did you mean {' or '.join(near)}?"
    if not names:
        return "there are none"
    shown = ", ".join(names[:8])
    return f"there are {shown}, ..." if len(names) > 8 else f"there are {shown}"


def check_column_names(names: Sequence[str], where: str) -> None:
    """Every column has a name, of one line, and no two share one."""
    seen: dict[str, int] = {}
    for number, name in enumerate(names, start=1):
        if not name:
            raise UsageError(
                f"{where}: column {number} has no name in the header; "
                "name it, or leave it out (pandas writes its row index so: to_csv(..., index=False))"
            )
        if any(unicodedata.category(character) in {"Cc", "Zl", "Zp"} for character in name):
            raise UsageError(f"{where}: the name of column {number} holds a control character ({name!r}); rename it")
        if name in seen:
            raise UsageError(f"{where}: columns {seen[name]} and {number} are both named {name}; names must be unique")
        seen[name] = number


def finite_float32(values: NDArray[Any], where: str, columns: Sequence[str] = ()) -> NDArray[np.float32]:
    """`values` [N, ...] as float32; every element is looked at: none may be nan or infinite once cast."""
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(values, dtype=np.float32)
    finite = np.isfinite(cast)
    if finite.all():
        return cast
    first = tuple(int(i) for i in np.unravel_index(np.argmin(finite), finite.shape))
    more = int(finite.size - np.count_nonzero(finite)) - 1
    place = f"{where}: row {first[0] + 1}"
    if len(first) == 2:
        place += f", column {columns[first[1]] if columns else first[1] + 1}"
    elif len(first) > 2:
        place += f", pixel {','.join(str(i + 1) for i in first[1:])}"
    value = float(values[first])
    if np.isnan(value):
        problem = "not a number (nan)"
    elif np.isinf(value):
        problem = f"not finite ({value})"
    else:
        problem = f"{value!r} is infinite in float32"
    cure = "rescale the column" if np.isfinite(value) else "fill it in or drop the row"
    raise UsageError(f"{place}: {problem}{and_more(more)}; {cure}")


def and_more(count: int) -> str:
    """` (and 3 more)`, or nothing for 0."""
    return f" (and {count} more)" if count else ""


def training_labels(y: NDArray[Any], where: str, column: str = "") -> tuple[NDArray[np.int32], int]:
    """Labels [N] of a training set as int32, and C: they are integral, 0..C-1, C >= 2, none missing."""
    _check_integral(y, where, column)
    present, first_rows = np.unique(y, return_index=True)
    gaps = np.flatnonzero(present != np.arange(present.size))
    if gaps.size:
        missing = int(gaps[0])
        label, row = int(present[missing]), int(first_rows[missing])
        cure = "subtract 1 from every label" if missing == 0 and label == 1 else "renumber the classes"
        raise UsageError(
            f"{_label_place(where, row, column)}: label {label}, but no row has label {missing}; "
            f"labels must run 0, 1, ..., C-1: {cure}, or ask for --task regression"
        )
    if present.size < 2:
        raise UsageError(
            f"{where}: every row has label 0; classification needs two classes, or ask for --task regression"
        )
    return y.astype(np.int32), int(present.size)


def check_labels(y: NDArray[Any], num_classes: int, where: str = "y", column: str = "") -> NDArray[np.int32]:
    """Labels [N] of new data as int32, held to the `num_classes` of the training set; none need occur."""
    _check_integral(y, where, column)
    beyond = np.flatnonzero(y >= num_classes)
    if beyond.size:
        row = int(beyond[0])
        raise UsageError(
            f"{_label_place(where, row, column)}: label {int(y[row])}{and_more(beyond.size - 1)}, "
            f"but the model knows the {num_classes} classes 0..{num_classes - 1}; "
            "drop the row or train with that class"
        )
    return y.astype(np.int32)


def _label_place(where: str, row: int, column: str) -> str:
    """Where a label stands; `row` counts from 0."""
    return f"{where}: row {row + 1}, column {column}" if column else f"{where}: row {row + 1}"


def _check_integral(y: NDArray[Any], where: str, column: str) -> None:
    """Each label of y [N] is a whole number of at least 0, small enough for int32."""
    if y.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            fractional = np.flatnonzero(~(np.isfinite(y) & (y == np.floor(y))))
        if fractional.size:
            row = int(fractional[0])
            value = float(y[row])
            raise UsageError(
                f"{_label_place(where, row, column)}: label {value!r} is not an integer"
                f"{and_more(fractional.size - 1)}; labels must be 0, 1, ..., C-1, "
                "or ask for --task regression"
            )
    if y.dtype.kind in "if":
        negative = np.flatnonzero(y < 0)
        if negative.size:
            row = int(negative[0])
            raise UsageError(
                f"{_label_place(where, row, column)}: label {int(y[row])} is negative"
                f"{and_more(negative.size - 1)}; renumber the classes 0, 1, ..., C-1, "
                "or ask for --task regression"
            )
    large = np.flatnonzero(y > np.iinfo(np.int32).max)
    if large.size:
        row = int(large[0])
        raise UsageError(
            f"{_label_place(where, row, column)}: label {int(y[row])} is too large; "
            "renumber the classes 0, 1, ..., C-1, or ask for --task regression"
        )
