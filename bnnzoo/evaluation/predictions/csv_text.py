"""Predictions as CSV text, with one number format for each column."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

_PLAIN_FROM, _PLAIN_TO = 1e-9, 1e15
"""Smallest and largest absolute value for which a column is written without exponents."""


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV text.

    Each real number is written with the fewest digits (at most nine) from which the same float32 can be read back. All
    numbers of a column have the same notation: plain (`0.00125`), or scientific (`1.25e-03`) if some numbers of the
    column are outside the range for the plain notation.
    """
    columns = {
        name: _numbers(values.to_numpy(np.float32)) if values.dtype.kind == "f" else values
        for name, values in frame.items()
    }
    return pd.DataFrame(columns).to_csv(index=False)


def _numbers(values: Float[np.ndarray, " row"]) -> list[str]:
    """Format the numbers of a column; NaN becomes an empty cell."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    smallest, largest = (sizes.min(), sizes.max()) if len(sizes) else (1.0, 1.0)
    is_plain = smallest >= _PLAIN_FROM and largest < _PLAIN_TO
    write = np.format_float_positional if is_plain else np.format_float_scientific
    texts = [write(value, trim="-") for value in values]
    return ["" if text == "nan" else text for text in texts]
