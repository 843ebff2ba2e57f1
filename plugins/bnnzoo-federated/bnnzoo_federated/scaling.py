"""Scaling of rows that several parties hold, from the sums and sums of squares of each party's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bnnzoo.data import Dataset, Scaler, Signature

_POWERS = {"sum": 1, "square": 2}


def moments(rows: Dataset, count: int | None = None) -> dict[str, Any]:
    """Return sums and sums of squares of each input column and numeric target; all pixels together are one column.

    Args:
        rows: the rows.
        count: number of rows that the sums represent; by default the number of rows in `rows`. The sums are multiplied
            by `count` / (number of rows in `rows`). A private party sends the sums of public rows, with the number of
            its confidential rows as `count`.
    """
    factor = 1.0 if count is None else count / rows.num_data
    inputs = rows.x if rows.x.ndim == 2 else rows.x.reshape(-1)
    columns = {"x": inputs} | ({"y": rows.y} if rows.task != "classification" else {})
    return {
        f"{name}_{power_name}": (np.sum(values.astype(np.float64) ** power, 0) * factor).tolist()
        for name, values in columns.items()
        for power_name, power in _POWERS.items()
    }


def moment_shapes(signature: Signature) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the values in `moments(rows)`, by name, for rows with this signature."""
    columns = {"x": () if len(signature.shape) > 1 else signature.shape}
    if signature.task != "classification":
        columns["y"] = (len(signature.target_names),)
    return {f"{name}_{power_name}": shape for name, shape in columns.items() for power_name in _POWERS}


def fit_scaler(
    offers: Sequence[Mapping[str, Any]], signature: Signature, *, standardise: bool, scales_targets: bool
) -> Scaler:
    """Return the scaler of all parties' rows, equal to `Scaler.fit` on the combined rows up to rounding.

    Args:
        offers: offers of the parties, with their moments.
        signature: columns and task of the rows.
        standardise: whether to standardise inputs and targets.
        scales_targets: whether the likelihood allows scaled targets.
    """
    rows = sum(offer["rows"] for offer in offers)
    are_images = len(signature.shape) > 1
    x_shape = () if are_images else signature.shape
    x = np.zeros(x_shape), np.full(x_shape, 255.0 if signature.dtype == "uint8" else 1.0)
    y = np.zeros(len(signature.target_names)), np.ones(len(signature.target_names))
    if standardise:
        x = _moments(offers, "x", rows * (int(np.prod(signature.shape)) if are_images else 1))
        if signature.task != "classification" and scales_targets:
            y = _moments(offers, "y", rows)
    return Scaler(*(np.asarray(values, np.float32) for values in (*x, *y)))


def empty_dataset(signature: Signature) -> Dataset:
    """Return a data set with the columns of the signature and no rows."""
    is_classification = signature.task == "classification"
    targets = () if is_classification else (len(signature.target_names),)
    y = np.zeros((0, *targets), np.int32 if is_classification else np.float32)
    x = np.zeros((0, *signature.shape), signature.dtype)
    return Dataset.from_signature(signature, x, y, "parties")


def _moments(offers: Sequence[Mapping[str, Any]], name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the standard deviation of each column of x or y, over `count` values of all parties.

    If all values of a column are equal within the precision of the sums, the standard deviation is set to 1.
    """
    first, second = (np.sum([offer[f"{name}_{power_name}"] for offer in offers], 0) / count for power_name in _POWERS)
    variance = second - first**2
    is_constant = variance <= 1e-12 * second
    return np.asarray(first), np.asarray(np.sqrt(np.where(is_constant, 1.0, variance)))
