"""Types of raw table columns: numbers, booleans, dates, times of day, or text with levels.

docs/data.md states the rules by which the cells of a column determine its type. The rules are the same for CSV files,
Parquet files and data frames.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from bnnzoo.data.columns.cells import Cells, Kind, as_text
from bnnzoo.data.columns.faults import Fault, Faults
from bnnzoo.data.columns.forms import Style
from bnnzoo.data.columns.text_column import TextColumn, coded_days, days_since_1970, refuse_merged, text_cells

_PLAIN = Style()
_CELLS = (str, numbers.Real, decimal.Decimal, np.bool_, datetime.date, datetime.time)
"""Supported types of single cells."""


def interpret(
    name: str,
    series: Any,
    faults: Faults,
    *,
    kind: str = "",
    style: Style = _PLAIN,
) -> Cells:
    """Convert a column of a pandas frame to `Cells`, and record invalid cells in `faults`.

    Args:
        name: the name of the column.
        series: the column.
        faults: the faults of the table.
        kind: the required type; by default the cells determine the type. The kind `label` is text in which words such
            as `none` do not mean a missing cell.
        style: the notation of the cells.
    """
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        category_column = series.cat.remove_unused_categories()
        codes, values = np.asarray(category_column.cat.codes), list(category_column.cat.categories)
        if kind in ("", "text", "label"):
            return text_cells(name, codes, [as_text(value) for value in values], style.is_missing, ordered=True)
        return TextColumn(name, codes, [as_text(value) for value in values], faults, style).read(kind)
    dtype_kind = _kind_of_dtype(dtype)
    # A column of booleans is accepted as numbers, because the training table may have contained 0 and 1 instead.
    if dtype_kind and kind in ("", dtype_kind, "number" if dtype_kind == "boolean" else dtype_kind):
        if dtype_kind == "date":
            days = days_since_1970(series)
            days = np.where(np.isin(days, coded_days(style)), np.nan, days)
            return Cells(name, "date", days, zoned=getattr(dtype, "tz", None) is not None)
        refuse_merged(name, _as_integers(series), faults)
        values = _without_codes(_floats(series), dtype, style)
        bounds = np.stack([values, values], -1) if style.censored else None
        return Cells(name, kind or dtype_kind, values, bounds=bounds)  # type: ignore[arg-type]
    try:
        codes, uniques = pd.factorize(series)
        unknown_types = {type(value).__name__ for value in uniques if not isinstance(value, _CELLS)}
    except (TypeError, NotImplementedError):  # the cells cannot be compared: lists, dictionaries
        codes, uniques, unknown_types = np.zeros(0, int), [], {str(dtype)}
    if unknown_types:
        description = "that hold neither numbers, text, booleans nor dates"
        problem = f"neither numbers, text, booleans nor dates ({', '.join(sorted(unknown_types))})"
        faults.add(name, Fault(description, problem, "convert the cells to one of these types, or use [[drop=NAME]]"))
        return Cells(name, "number", np.zeros(len(series)))
    return TextColumn(name, codes, [as_text(value) for value in uniques], faults, style).read(kind)


def _kind_of_dtype(dtype: Any) -> Kind | Literal[""]:
    import pandas as pd

    if pd.api.types.is_bool_dtype(dtype):
        return "boolean"
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return "date"
    return "number" if pd.api.types.is_any_real_numeric_dtype(dtype) else ""


def _floats(series: Any) -> Float[np.ndarray, " row"]:
    if isinstance(series.dtype, np.dtype):
        return series.to_numpy(dtype=np.float64)
    return series.to_numpy(dtype=np.float64, na_value=np.nan)


def _without_codes(values: Float[np.ndarray, " row"], dtype: Any, style: Style) -> Float[np.ndarray, " row"]:
    """Return the numbers, with nan in place of the codes for missing cells.

    In a float32 column, numbers are compared with the codes rounded to float32.
    """
    code_values = np.array(style.code_numbers)
    is_float32 = getattr(dtype, "itemsize", 8) == 4 and getattr(dtype, "kind", "f") == "f"
    code_values = code_values.astype(np.float32).astype(np.float64) if is_float32 else code_values
    return np.where(np.isin(values, code_values), np.nan, values) if code_values.size else values


def _as_integers(series: Any) -> NDArray[Any]:
    """Return the numbers of an integer column, with 0 for missing cells. The result is empty for another type.

    The numbers are not converted to float64, because float64 cannot represent all integers exactly.
    """
    import pandas as pd

    if not pd.api.types.is_integer_dtype(series.dtype):
        return np.zeros(0, np.int64)
    return series.fillna(0).to_numpy(np.uint64 if "u" in str(series.dtype).casefold() else np.int64)
