"""Checks of data. Each error message is one line that names the place, the problem and the remedy.

All messages of `bnnzoo.data` name places in the same way. `row K` is the K-th data row, counted from 1 without the
header line of a table. `column` is followed by the name of a column, or by its number in an array, counted from 1.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from bnnzoo.errors import UsageError
from bnnzoo.finding import setting
from bnnzoo.suggestions import near_names

PREDICTED_COLUMNS = ("mean", "sd", "aleatoric_sd", "epistemic_sd", "q05", "q50", "q95", "lower", "upper")
"""Columns of predictions. With several targets, each target has its own columns, `<target>_<name>`."""


def plain_name(name: Any) -> str:
    """Return the name of a column as text, without spaces around it, and with composed letters (NFC)."""
    return unicodedata.normalize("NFC", str(name).strip())


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: advice on which name to use.

    The advice lists the known names that are similar to `name`, or the first eight known names if none is similar.

    Args:
        name: the unknown name.
        names: the known names.
    """
    names = list(names)
    similar_names = near_names(name, names)
    if similar_names:
        return f"did you mean {' or '.join(similar_names)}?"
    if not names:
        return "no names are available"
    name_list = ", ".join(names[:8])
    return f"use one of {name_list}, ..." if len(names) > 8 else f"use one of {name_list}"


def check_column_names(
    names: Sequence[str], where: str, checked: Iterable[str] | None = None, *, remedy: str = "rename one of them"
) -> None:
    """Check that every column has a unique name of one line.

    Args:
        names: the names of all columns.
        where: the name of the table in error messages.
        checked: the names of the columns to check; by default all columns.
        remedy: the advice for two columns with the same name.

    Raises:
        UsageError: if a name is empty, is repeated, or contains a control character.
    """
    column_by_name: dict[str, int] = {}
    checked_names = set(names if checked is None else checked)
    for number, name in enumerate(names, start=1):
        if name not in checked_names:
            continue
        if not name:
            if checked is None:
                raise UsageError(f"{where}: column {number} has no name; name it")
            other_names = ",".join(name for name in names if name)
            raise UsageError(
                f"{where}: column {number} has no name; name it, or leave it out with "
                f"{setting('columns', other_names)}; if it is the row index of pandas in a CSV file, write the file "
                "with to_csv(..., index=False)"
            )
        if any(unicodedata.category(character) in {"Cc", "Zl", "Zp"} for character in name):
            raise UsageError(f"{where}: the name of column {number} contains a control character ({name!r}); rename it")
        if name in column_by_name:
            raise UsageError(f"{where}: columns {column_by_name[name]} and {number} are both named {name}; {remedy}")
        column_by_name[name] = number


def finite_float32(values: NDArray[Any], where: str, columns: Sequence[str] = ()) -> NDArray[np.float32]:
    """Return `values` [N, ...] as float32 after checking that every element is finite.

    Args:
        values: columns [N, D], or an array of another shape whose first axis counts the rows.
        where: the name of the array in error messages.
        columns: the names of the D columns; by default, messages count the columns from 1.

    Raises:
        UsageError: if an element is nan, or infinite in float32. The message names the first such element.
    """
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(values, dtype=np.float32)
    finite = np.isfinite(cast)
    if finite.all():
        return cast
    first_index = tuple(int(i) for i in np.unravel_index(np.argmin(finite), finite.shape))
    num_others = int(finite.size - np.count_nonzero(finite)) - 1
    place = f"{where}: row {first_index[0] + 1}"
    if len(first_index) == 2:
        place += f", column {columns[first_index[1]] if columns else first_index[1] + 1}"
    elif len(first_index) > 2:
        place += f", pixel {','.join(str(i + 1) for i in first_index[1:])}"
    value = float(values[first_index])
    if np.isnan(value):
        problem = "not a number (nan)"
    elif np.isinf(value):
        problem = f"not finite ({value})"
    else:
        problem = f"{value!r} is too large for float32"
    remedy = "rescale the column" if np.isfinite(value) else "replace it by a finite number, or leave the row out"
    raise UsageError(f"{place}: {problem}{and_more(num_others)}; {remedy}")


def is_coarse(values: NDArray[Any], *, fraction: float = 0.05, origin: Literal["zero", "smallest"] = "zero") -> bool:
    """Whether rounding to float32 changes a number by more than a fraction of the standard deviation of all numbers.

    This is the case if the numbers differ little compared with their distance from 0, such as times in seconds since
    1970.

    Args:
        values: the numbers [N].
        fraction: the largest acceptable rounding error, as a fraction of the standard deviation.
        origin: "zero" rounds the numbers as they are; "smallest" subtracts the smallest number before rounding.
    """
    exact = values[np.isfinite(values)].astype(np.float64)
    if not exact.size or exact.max() == exact.min():
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        exact = exact - exact.min() if origin == "smallest" else exact
        rounding_errors = np.abs(exact - exact.astype(np.float32))
        # Numbers that are infinite in float32 are ignored here, because `finite_float32` reports them.
        return bool(np.max(rounding_errors, initial=0.0, where=np.isfinite(rounding_errors)) > fraction * exact.std())


def merged_positions(values: NDArray[Any]) -> Int[np.ndarray, " some"]:
    """Return the positions of the integers in `values` that have the same float64 value as a different integer.

    Only integers beyond 2^53 can share a float64 value.
    """
    if values.dtype.kind not in "iuO" or not values.size or max(-int(values.min()), int(values.max())) <= 2**53:
        return np.zeros(0, np.int64)
    distinct, place = np.unique(values, return_inverse=True)
    is_equal_to_next = np.diff(distinct.astype(np.float64)) == 0
    is_merged = np.append(is_equal_to_next, False) | np.append(False, is_equal_to_next)
    return np.flatnonzero(is_merged[place.reshape(-1)])


def lost_digits(number: Any) -> str:
    """Return the text about a whole number that has the same float64 value as another whole number."""
    return f"{number} and another whole number cannot be distinguished in float64"


def refuse_merged(values: NDArray[Any], where: str, columns: Sequence[str] = ()) -> None:
    """Check that conversion to float64 keeps the distinct integers of every column distinct.

    Args:
        values: [N, D] for D columns, or [N] for one column without a name. Arrays with more axes are not checked.
        where: the name of the array in error messages.
        columns: the names of the columns; by default, messages count the columns from 1.

    Raises:
        UsageError: if two distinct integers of a column would become equal. The message names the first such number.
    """
    for number, column in enumerate({1: [values], 2: values.T}.get(values.ndim, ())):
        rows = merged_positions(column)
        if rows.size:
            row, and_others = int(rows[0]), and_more(rows.size - 1)
            name = f", column {columns[number] if columns else number + 1}" if values.ndim == 2 else ""
            problem = f"{where}: row {row + 1}{name}: {lost_digits(column[row])}{and_others}"
            raise UsageError(f"{problem}; subtract a constant from the column, or leave it out")


def refuse_coarse(values: NDArray[Any], where: str) -> None:
    """Check that conversion to float32 keeps the differences between numbers.

    Args:
        values: the numbers [N].
        where: the name of the numbers in error messages.

    Raises:
        UsageError: if rounding to float32 changes the numbers too much (see `is_coarse`), or if distinct integers have
            the same float64 value.
    """
    refuse_merged(values, where)
    if is_coarse(values):
        raise UsageError(
            f"{where}: float32 cannot represent these numbers (mean {np.mean(values):.6g}, sd "
            f"{np.std(values.astype(np.float64)):.3g}) precisely enough; subtract a constant from them, or rescale them"
        )


def and_more(count: int) -> str:
    """Return a text such as ` (and 3 more)`, or an empty text if `count` is 0."""
    return f" (and {count} more)" if count else ""


def refuse_equal_columns(targets: Sequence[str], columns: Collection[str] = PREDICTED_COLUMNS) -> None:
    """Check that no column `<target>_<name>` of a table of predictions would belong to two targets.

    For example, `y_aleatoric_sd` would be the aleatoric sd of `y` and the sd of `y_aleatoric`.

    Raises:
        UsageError: if two of several targets would share a column. The message names both targets.
    """
    owners: dict[str, str] = {}
    for target in targets if len(targets) > 1 else ():
        for column in (f"{target}_{name}" for name in columns):
            if column in owners:
                raise UsageError(
                    f"targets {owners[column]} and {target}: both would have the column {column} in predictions; "
                    "rename one of these targets"
                )
            owners[column] = target
