"""Checks of the type and the shape of arrays of inputs and targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnnzoo.data.checks.check import check_column_names, finite_float32, refuse_merged
from bnnzoo.data.encoding.targets import Task
from bnnzoo.errors import UsageError


def as_inputs(x: ArrayLike, where: str = "x", feature_names: Sequence[str] = ()) -> NDArray[Any]:
    """Return x as checked inputs [N, ...].

    Images of the type uint8 keep this type. All other inputs become finite float32 numbers.

    Args:
        x: features [N] or [N, D], or images [N, H, W] or [N, C, H, W].
        where: the name of the array in error messages.
        feature_names: the names of the D features. They are checked, and used in error messages.

    Raises:
        UsageError: if the type, the shape, a name or a value is invalid.
    """
    array = numeric_array(x, where)
    if array.ndim == 1:
        array = array.reshape(-1, 1)
    if array.ndim > 4 or 0 in array.shape:
        raise UsageError(
            f"{where}: must be features [N, D] or images [N, H, W] or [N, C, H, W] (got shape {list(array.shape)})"
        )
    if feature_names and array.ndim == 2:
        if len(feature_names) != array.shape[1]:
            raise UsageError(f"{where} has {array.shape[1]} columns but {len(feature_names)} names")
        check_column_names(feature_names, where)
    if array.dtype == np.uint8 and array.ndim > 2:
        return np.ascontiguousarray(array)
    refuse_merged(array, where, feature_names)
    return finite_float32(array, where, feature_names if array.ndim == 2 else ())


def label_array(values: ArrayLike, where: str) -> NDArray[Any]:
    """Return `values` as an array [N, ...] of numbers or of text, with N >= 1.

    Raises:
        UsageError: if the values are neither numbers nor text, or if there are no rows.
    """
    array = None if np.ma.is_masked(values) else np.asarray(values)
    if array is not None and array.ndim and array.size and all(isinstance(value, str) for value in array.flat):
        return array
    return numeric_array(values, where)


def numeric_array(values: ArrayLike, where: str) -> NDArray[Any]:
    """Return `values` as an array [N, ...] of booleans, integers or floats, with N >= 1.

    Raises:
        UsageError: if the values have another type, if they are masked, sparse or a single number, or if there are no
            rows.
    """
    if hasattr(values, "toarray"):
        raise UsageError(f"{where} is a sparse matrix; convert it to an array with .toarray()")
    if np.ma.is_masked(values):
        raise UsageError(f"{where} is a masked array; fill in or drop the masked entries")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{where} is not an array of numbers; its rows must have equal lengths") from error
    if array.dtype.kind in "mM":
        raise UsageError(f"{where} holds dates; give them as a column of a data frame, or as numbers")
    if array.dtype.kind not in "biuf":
        remedy = "give it as a data frame" if array.dtype.names else "convert it with .astype('float32')"
        raise UsageError(f"{where} has dtype {array.dtype}, not numbers; {remedy}")
    if array.ndim == 0:
        raise UsageError(f"{where} is a single number; it must have one row per datum")
    if array.shape[0] == 0:
        raise UsageError(f"{where} is empty; it must have at least one row")
    return array


def default_input_names(count: int) -> tuple[str, ...]:
    """Return the names of the columns of an array of inputs: x0, x1, ..."""
    return tuple(f"x{i}" for i in range(count))


def default_target_names(count: int) -> tuple[str, ...]:
    """Return the names of the columns of an array of targets: y for one column, otherwise y0, y1, ..."""
    return ("y",) if count == 1 else tuple(f"y{i}" for i in range(count))


def are_default_names(names: Sequence[str]) -> bool:
    """Whether all names are default names of columns: of inputs, of targets, or of inputs and then targets."""
    num_inputs = sum(name.startswith("x") for name in names)
    return tuple(names) == default_input_names(num_inputs) + default_target_names(len(names) - num_inputs)


def check_task(task: str | None) -> Task | None:
    """Return `task` unchanged after checking that it is a known task or None.

    Raises:
        UsageError: if the task is unknown.
    """
    if task not in (None, "regression", "classification", "density"):
        raise UsageError(f"unknown task {task!r}; use regression, classification or density")
    return cast("Task | None", task)
