"""Censored targets as arrays. The last axis holds the smallest and the largest possible value of each target."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from bnnzoo.errors import UsageError

_SMALLEST = np.finfo(np.float32).tiny
"""Smallest positive float32 number that is not denormal. XLA replaces smaller positive numbers by 0."""


def adjacent(numbers: Any, *, up: bool) -> Any:
    """Return the float32 number next to each number, as float64: the next larger one if `up`, else the next smaller.

    Denormal numbers are skipped. The likelihood uses open intervals. An inclusive end of an interval is therefore moved
    outwards to the adjacent number, so that the open interval contains the end. The move changes the likelihood
    noticeably only for counts, because only a count equals the end with a positive probability.
    """
    moved = np.nextafter(np.asarray(numbers, np.float32), np.float32(np.inf if up else -np.inf))
    is_denormal = (moved != 0) & (abs(moved) < _SMALLEST)
    return np.where(is_denormal, np.copysign(_SMALLEST, moved), moved).astype(np.float64)[()]


def single_numbers(bounds: Float[np.ndarray, "*row 2"]) -> Float[np.ndarray, "*row"]:
    """Return one number per cell: the known value, the end of a one-sided bound, or the midpoint of an interval."""
    low, high = bounds[..., 0], bounds[..., 1]
    with np.errstate(invalid="ignore"):
        middle = np.where(low == high, low, low / 2 + high / 2)
    return np.where(np.isinf(low), high, np.where(np.isinf(high), low, middle))


def is_bounds_array(y: Any) -> bool:
    """Whether targets have the type and the shape of bounds: a numeric array [N, 2] or [N, T, 2]."""
    array = None if hasattr(y, "columns") else np.asarray(y)
    return array is not None and array.dtype.kind in "iuf" and array.ndim in (2, 3) and array.shape[-1] == 2


def as_cells(bounds: Float[np.ndarray, "row target 2"]) -> Shaped[np.ndarray, "row *target"]:
    """Return bounds as the texts that table cells would contain: <0.5, >100, (1.0,2.0), or a number.

    The shape of the result is [N] for one target, and [N, T] for T targets.
    """
    low, high = bounds[..., 0].astype(float), bounds[..., 1].astype(float)
    cells = np.empty(low.shape, object)
    for index in np.ndindex(low.shape):
        a, b = low[index], high[index]
        bound_text = f"<{float(b)}" if np.isinf(a) else f">{float(a)}" if np.isinf(b) else f"({float(a)},{float(b)})"
        cells[index] = str(float(a)) if a == b else bound_text
    return cells[:, 0] if bounds.shape[1] == 1 else cells


def uncensored_targets(y: Shaped[np.ndarray, "row ..."]) -> Shaped[np.ndarray, "row ..."]:
    """Return the targets, with bounds [N, T, 2] of censored targets replaced by `single_numbers` [N, T]."""
    return single_numbers(y) if y.ndim == 3 else y


def uncensored_rows(y: Shaped[np.ndarray, "row ..."]) -> Bool[np.ndarray, " row"]:
    """Return a mask of the rows [N] without censored targets."""
    return (y[..., 0] == y[..., 1]).all(1) if y.ndim == 3 else np.ones(len(y), bool)


def are_bounds(y: Float[np.ndarray, "*row target bound"]) -> bool:
    """Whether every target is a number, or an interval with at least one finite end."""
    low, high = y[..., 0], y[..., 1]
    return bool(np.all((low <= high) & (np.isfinite(low) | np.isfinite(high)) & (low < np.inf) & (high > -np.inf)))


def bounds_of(y: Any, num_rows: int, where: str) -> Float[np.ndarray, "row target bound"]:
    """Convert the bounds of censored targets to float32 [N, T, 2].

    The likelihood uses open intervals. Therefore the two ends of an interval are moved outwards to the adjacent float32
    numbers.

    Args:
        y: the bounds, [N, 2] for one target or [N, T, 2] for T targets. The last axis holds the smallest and the
            largest possible value of a target.
        num_rows: the required number of rows N.
        where: the name of the targets in error messages.

    Raises:
        UsageError: if `y` is not numeric or has another shape, or if the bounds of a row are not an interval. The
            message names the first such row.
    """
    try:
        bounds: Any = np.asarray(y, np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: censored targets must be numbers of shape [N, 2] or [N, T, 2]") from error
    bounds = bounds[:, None] if bounds.ndim == 2 else bounds
    if bounds.ndim != 3 or bounds.shape[2] != 2 or len(bounds) != num_rows:
        raise UsageError(
            f"{where} has shape {list(np.shape(y))} for {num_rows} rows; censored targets must be [N, 2] or [N, "
            "T, 2]: the lower and the upper bound of each target (equal for a known value; -inf or inf for no "
            "bound)"
        )
    with np.errstate(over="ignore"):
        single = bounds.astype(np.float32)
    if not are_bounds(single):
        row = next(row for row, row_bounds in enumerate(single) if not are_bounds(row_bounds))
        raise UsageError(
            f"{where}: row {row + 1}: expected a lower and an upper bound of each target, with the lower bound first "
            f"(got {bounds[row].tolist()})"
        )
    is_interval = single[..., 0] < single[..., 1]
    single[..., 0] = np.where(is_interval, adjacent(single[..., 0], up=False), single[..., 0])
    single[..., 1] = np.where(is_interval, adjacent(single[..., 1], up=True), single[..., 1])
    return single
