"""Scaling of distributed rows, from sums and sums of squares of the parties' columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bnnzoo.data import Dataset, Scaler, Signature

_POWERS = {"sum": 1, "square": 2}


def moments(rows: Dataset) -> dict[str, Any]:
    """Return sums and sums of squares of each input column (of all pixels together), and of numeric targets."""
    inputs = rows.x if rows.x.ndim == 2 else rows.x.reshape(-1)
    columns = {"x": inputs} | ({"y": rows.y} if rows.task != "classification" else {})
    return {
        f"{name}_{what}": np.sum(values.astype(np.float64) ** power, 0).tolist()
        for name, values in columns.items()
        for what, power in _POWERS.items()
    }


def moment_shapes(like: Signature) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the moments of such rows, by name."""
    columns = {"x": () if len(like.shape) > 1 else like.shape}
    if like.task != "classification":
        columns["y"] = (len(like.target_names),)
    return {f"{name}_{what}": shape for name, shape in columns.items() for what in _POWERS}


def scaler_of(
    offers: Sequence[Mapping[str, Any]], like: Signature, *, standardise: bool, scales_targets: bool
) -> Scaler:
    """Return the scaler of all parties' rows, equal to `Scaler.fit` on the combined rows up to rounding.

    Args:
        offers: offers of the parties, with their moments.
        like: signature of the rows.
        standardise: whether to standardise at all.
        scales_targets: whether the likelihood's targets are also scaled.
    """
    rows = sum(offer["rows"] for offer in offers)
    images = len(like.shape) > 1
    x_shape = () if images else like.shape
    x = np.zeros(x_shape), np.full(x_shape, 255.0 if like.dtype == "uint8" else 1.0)
    y = np.zeros(len(like.target_names)), np.ones(len(like.target_names))
    if standardise:
        x = _moments(offers, "x", rows * (int(np.prod(like.shape)) if images else 1))
        if like.task != "classification" and scales_targets:
            y = _moments(offers, "y", rows)
    return Scaler(*(np.asarray(values, np.float32) for values in (*x, *y)))


def no_rows(like: Signature) -> Dataset:
    """Return a data set with these columns and no rows."""
    labelled = like.task == "classification"
    targets = () if labelled else (len(like.target_names),)
    y = np.zeros((0, *targets), np.int32 if labelled else np.float32)
    return like.rows(np.zeros((0, *like.shape), like.dtype), y, "parties")


def _moments(offers: Sequence[Mapping[str, Any]], name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation; the latter is 1 if all values are equal, to the precision of the sums."""
    first, second = (np.sum([offer[f"{name}_{what}"] for offer in offers], 0) / count for what in _POWERS)
    variance = second - first**2
    is_constant = variance <= 1e-12 * second
    return np.asarray(first), np.asarray(np.sqrt(np.where(is_constant, 1.0, variance)))
