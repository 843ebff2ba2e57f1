"""Pairs of a data frame of inputs and targets, joined into one data frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bnnzoo.data.checks.check import check_column_names
from bnnzoo.data.columns.bounds import as_cells, bounds_of, is_bounds_array
from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.data.formats.frames import FrameTable, is_frame
from bnnzoo.errors import UsageError


def join_frame(spec: Any, reading: Reading, task: str | None) -> tuple[Any, tuple[str, ...], str]:
    """Join a data frame x and targets y (an array, a series or a data frame) into one data frame.

    Args:
        spec: the pair (x, y), or data of another type.
        reading: the options for the notation of cells.
        task: the task of the targets; None if the targets determine it.

    Returns:
        The joined frame, the names of the targets, and the kind of the targets. The kind is "label" if y is an array or
        a series of text, and the task may be classification. Such text is a class label even if it looks like a number
        or like a word for a missing cell. Otherwise the kind is "". If `spec` is not a pair whose x is a data frame,
        `spec` is returned unchanged, with empty names and kind.

    Raises:
        UsageError: if the numbers of rows of x and y differ, if their row labels have different orders, if a name of y
            is also a name in x, or if names or bounds are invalid.
    """
    if not (isinstance(spec, tuple) and len(spec) == 2 and is_frame(spec[0])):
        return spec, (), ""
    import pandas as pd

    x, y = spec
    if reading.censored and is_bounds_array(y):
        y = as_cells(bounds_of(y, len(y), "y"))
    _check_labels_of_rows(x, y)
    inputs = FrameTable(x, "x")
    check_column_names(inputs.names, "x")
    frame = inputs.frame(inputs.names).copy()
    columns: dict[str, Any]
    kind = ""
    if is_frame(y):
        targets = FrameTable(y, "y")
        check_column_names(targets.names, "y")
        columns = {str(name): series.array for name, series in targets.frame(targets.names).items()}
    else:
        array, given_name = getattr(y, "array", np.asarray(y)), getattr(y, "name", None)
        given_name = None if given_name == "" else given_name  # a series of polars without a name
        target_arrays = array.T if array.ndim == 2 else [array]
        name = "y" if given_name is None else str(given_name)
        while given_name is None and _clashes(name, len(target_arrays), inputs.names):
            name += "_"  # a target without a name gets the first unused name of y, y_, y__, ...
        columns = {name if len(target_arrays) == 1 else f"{name}{i}": column for i, column in enumerate(target_arrays)}
        if task in (None, "classification") and pd.api.types.infer_dtype(array, skipna=True) == "string":
            kind = "label"
    for name, column in columns.items():
        if name in frame:
            raise UsageError(f"y: its name, {name}, is also the name of a column of x; rename it")
        if column.shape != (len(frame),):
            raise UsageError(
                f"y: must have one row for each row of x (got shape {list(column.shape)} for {len(frame)} rows)"
            )
    for name, column in columns.items():
        frame[name] = column
    return frame, tuple(columns), kind


def _clashes(name: str, count: int, taken_names: Sequence[str]) -> bool:
    return bool({name if count == 1 else f"{name}{i}" for i in range(count)} & set(taken_names))


def _check_labels_of_rows(x: Any, y: Any) -> None:
    """Check that x and y do not have the same pandas row labels in different orders.

    The rows of x and y are paired by position, so different orders would pair wrong rows.

    Raises:
        UsageError: if the orders differ.
    """
    import pandas as pd

    if not (isinstance(x, pd.DataFrame) and isinstance(y, pd.Series | pd.DataFrame)) or len(x) != len(y):
        return
    x_index, y_index = x.index, y.index
    if x_index.is_unique and y_index.is_unique and not x_index.equals(y_index) and x_index.isin(y_index).all():
        raise UsageError("x and y: their rows have the same labels (index) in a different order; give y.loc[x.index]")
