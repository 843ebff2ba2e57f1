"""HTML tables that show objects in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np


def record_table(values: Mapping[str, Any]) -> str:
    """Return a table with a key and its value in each row; values that are None are omitted."""
    rows = (
        f"<tr><th>{escape(key)}</th><td>{_cell(value)}</td></tr>" for key, value in values.items() if value is not None
    )
    return f"<table>{''.join(rows)}</table>"


def rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of records; a missing key gives an empty cell."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{escape(key)}</th>" for key in header)
    body = ("".join(f"<td>{_cell(row.get(key))}</td>" for key in header) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{cells}</tr>' for cells in body)}</table>"


def _cell(value: Any) -> str:
    """Return a value as text, with four significant digits for numbers; empty for None."""
    if value is None:
        return ""
    return escape(f"{value:.4g}" if isinstance(value, float | np.floating) else str(value))
