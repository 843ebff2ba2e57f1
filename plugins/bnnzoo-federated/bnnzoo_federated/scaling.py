"""The scaling of rows that nobody sees together: parties send sums and sums of squares of their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bnnzoo.data import Dataset, Scaler, Signature

_POWERS = {"sum": 1, "square": 2}


def moments(rows: Dataset) -> dict[str, Any]:
    """Sums and sums of squares: of each input column, of all pixels together; and of targets that are no labels."""
    inputs = rows.x if rows.x.ndim == 2 else rows.x.reshape(-1)
    columns = {"x": inputs} | ({"y": rows.y} if rows.task != "classification" else {})
    return {
        f"{name}_{what}": np.sum(values.astype(np.float64) ** power, 0).tolist()
        for name, values in columns.items()
        for what, power in _POWERS.items()
    }


def moment_shapes(like: Signature) -> dict[str, tuple[int, ...]]:
    """Of the moments of such rows, by their names."""
    columns = {"x": () if len(like.shape) > 1 else like.shape}
    if like.task != "classification":
        columns["y"] = (len(like.target_names),)
    return {f"{name}_{what}": shape for name, shape in columns.items() for what in _POWERS}


def scaler_of(
    offers: Sequence[Mapping[str, Any]], like: Signature, *, standardise: bool, scales_targets: bool
) -> Scaler:
    """The scaler of all parties' rows, which `Scaler.fit` would find of them together, to rounding.

    Args:
        scales_targets: whether the likelihood's targets are scaled with the rest.
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
    """A data set of such columns without a row: what is known of data that nobody sees."""
    labelled = like.task == "classification"
    targets = () if labelled else (len(like.target_names),)
    y = np.zeros((0, *targets), np.int32 if labelled else np.float32)
    return like.rows(np.zeros((0, *like.shape), like.dtype), y, "parties")


def _moments(offers: Sequence[Mapping[str, Any]], name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd; sd 1 where all values are equal, as far as their sums can say."""
    first, second = (np.sum([offer[f"{name}_{what}"] for offer in offers], 0) / count for what in _POWERS)
    variance = second - first**2
    is_constant = variance <= 1e-12 * second
    return np.asarray(first), np.asarray(np.sqrt(np.where(is_constant, 1.0, variance)))
