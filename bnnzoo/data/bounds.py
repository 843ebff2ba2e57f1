"""Censored targets as arrays: the smallest and the largest value of each, on the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from bnnzoo.errors import UsageError


def stand_in(bounds: Float[np.ndarray, "*row 2"]) -> Float[np.ndarray, "*row"]:
    """A number for each cell: itself, the finite end of a bound, or the middle of an interval."""
    low, high = bounds[..., 0], bounds[..., 1]
    with np.errstate(invalid="ignore"):
        middle = np.where(low == high, low, low / 2 + high / 2)
    return np.where(np.isinf(low), high, np.where(np.isinf(high), low, middle))


def are_bounds(y: Float[np.ndarray, "row target bound"]) -> bool:
    """Whether each target is a number or a range of numbers, infinite at one end at most."""
    low, high = y[..., 0], y[..., 1]
    return bool(np.all((low <= high) & (np.isfinite(low) | np.isfinite(high)) & (low < np.inf) & (high > -np.inf)))


def bounds_of(y: Any, num_rows: int, where: str) -> Float[np.ndarray, "row target bound"]:
    """An array of censored targets, [N, 2] for one target or [N, T, 2]: the smallest and the largest value of each.

    Raises:
        UsageError: naming the first row that is no range.
    """
    try:
        bounds = np.asarray(y, np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: censored targets must be numbers, [N, 2] or [N, T, 2]") from error
    bounds = bounds[:, None] if bounds.ndim == 2 else bounds
    if bounds.ndim != 3 or bounds.shape[2] != 2 or len(bounds) != num_rows:
        raise UsageError(
            f"{where} has shape {list(np.shape(y))} for {num_rows} rows; censored targets must be [N, 2] or [N, T, 2], "
            "a smallest and a largest value each: equal where it is known, -inf or inf where there is no limit"
        )
    with np.errstate(over="ignore"):
        single = bounds.astype(np.float32)
    if not are_bounds(single):
        row = next(row for row, each in enumerate(single) if not are_bounds(each))
        raise UsageError(f"{where}: row {row + 1}: no smallest and largest value (got {bounds[row].tolist()})")
    return single
