"""Codes for missing cells that the user gave and that no cell holds."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bnnzoo.data.columns.cells import as_text
from bnnzoo.data.columns.forms import Style
from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.errors import BnnzooWarning
from bnnzoo.finding import setting

if TYPE_CHECKING:
    import pandas as pd


def notes_of_unused_codes(frame: pd.DataFrame, reading: Reading, decimal: Any, where: str) -> list[str]:
    """Return a note for each missing code that no cell of its columns holds, and warn of those that are lists.

    The others get no warning, because a part of a table need not hold every code of the whole.

    Args:
        frame: the columns in use, as the reader of the format returns them.
        reading: the options with the codes.
        decimal: the decimal mark of cells of text.
        where: the name of the table in messages.
    """
    notes = []
    for code in reading.missing_code:
        alone = replace(reading, missing_code=(code,))
        styles = {str(name): Style(decimal, alone.codes_of(str(name))) for name in frame.columns}
        columns = [name for name, style in styles.items() if style.codes]
        if not columns or any(_holds(frame[name], styles[name]) for name in columns):
            continue
        value = styles[columns[0]].codes[0]
        prefix = code[: len(code) - len(value)] if code.endswith(value) else ""
        pieces = [piece.strip() for piece in value.split(",")]
        text = f"missing_code {code!r}: no cell holds it"
        if len(pieces) > 1 and all(pieces):
            options = " ".join(setting("missing_code", prefix + piece) for piece in pieces)
            warnings.warn(f"{where}: {text}; if it is a list, use {options}", BnnzooWarning, stacklevel=4)
        else:
            notes.append(f"{text}; check how the cells are written")
    return notes


def _holds(series: Any, style: Style) -> bool:
    """Whether a cell of a column is a code. Columns of dates are not tested."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return True
    if pd.api.types.is_any_real_numeric_dtype(series.dtype):
        codes = np.array(style.code_numbers, np.float64)
        values = series.to_numpy(np.float64, na_value=np.nan)
        return bool(np.isin(values, [*codes, *codes.astype(np.float32)]).any())
    texts = {as_text(value) for value in series.dropna().unique()}
    plain = style._replace(codes=())
    return any(style.is_missing(text) and not plain.is_missing(text) for text in texts)
