"""Standardisation: conversion between the units of the data and the units of the network."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnnzoo.data.checks.check import finite_float32
from bnnzoo.data.columns.bounds import uncensored_targets
from bnnzoo.data.rows.dataset import Dataset
from bnnzoo.data.rows.signature import Signature
from bnnzoo.errors import UsageError
from bnnzoo.files import mapped


@dataclass(frozen=True, eq=False)
class Scaler:
    """Standardisation (x - x_mean) / x_sd and (y - y_mean) / y_sd; all four arrays are float32.

    `scale_inputs` returns uint8 images unchanged, because the device stores images as uint8. The device standardises
    them with the same `x_mean` and `x_sd` when the network is evaluated.

    Attributes:
        x_mean: means of the inputs, [D] for features, [] for images.
        x_sd: standard deviations of the inputs, [D] for features, [] for images.
        y_mean: means of the targets [T]; zeros for targets that are not standardised, such as labels and counts.
        y_sd: standard deviations of the targets [T]; ones for targets that are not standardised.
    """

    x_mean: NDArray[np.float32]
    x_sd: NDArray[np.float32]
    y_mean: NDArray[np.float32]
    y_sd: NDArray[np.float32]

    @classmethod
    def fit(cls, train: Dataset, standardise: bool) -> Scaler:
        """Return the scaler with the means and population standard deviations (sds) of the training rows.

        Images have one mean and one sd, over all pixels of all images. A censored target is represented by its finite
        end, or by the midpoint of its interval. A constant column gets the sd 1, and an exposure is not scaled. If
        `standardise` is False, all means are 0, and all sds are 1, except 255 for uint8 images.

        Raises:
            UsageError: if the sd of a column that is not constant is too small for float32.
        """
        is_bytes = train.x.dtype == np.uint8
        x_shape = train.x.shape[1:] if train.x.ndim == 2 else ()
        y_shape = (len(train.target_names),)
        x_mean, x_sd = np.zeros(x_shape), np.full(x_shape, 255.0 if is_bytes else 1.0)
        y_mean, y_sd = np.zeros(y_shape), np.ones(y_shape)
        if standardise and is_bytes:
            x_mean, x_sd = _byte_moments(train.x)
        elif standardise:
            x_mean, x_sd = _moments(train.x if train.x.ndim == 2 else train.x.reshape(-1), f"{train.name}: inputs")
        if train.signature.exposure:
            x_mean[-1], x_sd[-1] = 0.0, 1.0
        if standardise and train.task != "classification":
            y_mean, y_sd = _moments(uncensored_targets(train.y), f"{train.name}: targets")
        return cls(*(np.asarray(values, dtype=np.float32) for values in (x_mean, x_sd, y_mean, y_sd)))

    def check(self, signature: Signature) -> None:
        """Check a scaler that was read from a file against the signature of the data.

        Raises:
            ValueError: if a shape is wrong, if a number is not finite, or if a standard deviation is not positive or is
                denormal.
        """
        inputs = signature.shape if len(signature.shape) == 1 else ()
        shapes = [inputs, inputs, (len(signature.target_names),), (len(signature.target_names),)]
        arrays = [self.x_mean, self.x_sd, self.y_mean, self.y_sd]
        if [array.shape for array in arrays] != shapes or not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("its scaling does not match its data")
        if not (np.all(_is_valid_divisor(self.x_sd)) and np.all(_is_valid_divisor(self.y_sd))):
            raise ValueError("a standard deviation of its scaling is zero, negative or too small")

    def scale_inputs(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return x [N, ...] in the network's units, float32. Images in uint8 are returned unchanged."""
        if x.dtype == np.uint8:
            return x
        return _scale(x, self.x_mean, self.x_sd, "standardised x")

    def scale_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return regression targets [N, T] in the network's units, float32; labels [N] are unchanged."""
        if y.dtype.kind == "i":
            return y
        if y.ndim == 3:  # bounds of censored targets may be infinite
            return ((y.astype(np.float64) - self.y_mean[:, None]) / self.y_sd[:, None]).astype(np.float32)
        return _scale(y, self.y_mean, self.y_sd, "standardised y")

    def log_units(self, y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the log density of each row [N] in the network's units, minus the one in original units.

        The difference is the sum of log y_sd over the targets that are not censored. The likelihood of a censored
        target is a probability, which has no units.
        """
        sds = np.log(self.y_sd.astype(np.float64))
        return (y[..., 0] == y[..., 1]) @ sds if y.ndim == 3 else np.full(len(y), sds.sum())

    def refuse_far(self, x: NDArray[Any], y: NDArray[Any] | None, signature: Signature, where: str) -> None:
        """Check that float32 can represent rows in the network's units. The rows are given in original units.

        Raises:
            UsageError: if a cell is too far from the training rows. The message names the first such cell of a column.
        """
        if x.ndim == 2:
            _refuse_far(x, self.x_mean, self.x_sd, where, signature.feature_names)
        if y is not None and signature.task == "regression":
            _refuse_far(uncensored_targets(y), self.y_mean, self.y_sd, where, signature.target_names)

    def unscale_targets(self, y: ArrayLike) -> NDArray[np.float32]:
        """Return targets or predictions [..., T] in the original units."""
        values = np.asarray(y, dtype=np.float64)
        return (values * self.y_sd.astype(np.float64) + self.y_mean).astype(np.float32)

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the rows of `dataset`, without its test set, in the network's units.

        If the rows are in temporary files, the last result for each data set is kept for later calls.
        """
        scaler, scaled = _SCALED.get(dataset, (None, dataset))
        if scaler is self:
            return scaled
        scaled = replace(dataset, x=self.scale_inputs(dataset.x), y=self.scale_targets(dataset.y), test=None)
        if mapped.is_mapped(dataset.x):
            _SCALED[dataset] = (self, scaled)
        return scaled


_SCALED: weakref.WeakKeyDictionary[Dataset, tuple[Scaler, Dataset]] = weakref.WeakKeyDictionary()
"""The last scaler and the scaled rows of each data set whose rows are in temporary files."""


def _scale(values: NDArray[Any], mean: NDArray[np.float32], sd: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    def scale_block(block: NDArray[Any]) -> NDArray[np.float32]:
        return finite_float32((block.astype(np.float64) - mean) / sd, where)

    return mapped.map_blocks(scale_block, values) if mapped.is_mapped(values) else scale_block(values)


def _refuse_far(
    values: NDArray[Any], mean: NDArray[np.float32], sd: NDArray[np.float32], where: str, names: Sequence[str]
) -> None:
    ends = _ends(values)
    is_too_far = np.isfinite(ends).all(0) & (
        np.abs((ends - mean.astype(np.float64)) / sd) > np.finfo(np.float32).max
    ).any(0)
    for column in np.flatnonzero(is_too_far)[:1]:
        distances = np.abs((values[:, column].astype(np.float64) - mean[column]) / sd[column])
        row = int(np.argmax(distances > np.finfo(np.float32).max))
        raise UsageError(
            f"{where}: row {row + 1}, column {names[column]}: {values[row, column]!s} is too far from the "
            f"training rows (mean {mean[column]:.3g}, sd {sd[column]:.3g}) for float32; correct it, or leave "
            "the row out"
        )


def _is_valid_divisor(sd: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether each sd is a valid divisor: a positive float32 number that is not denormal."""
    return np.asarray(sd >= np.finfo(np.float32).tiny)


def _moments(values: NDArray[Any], values_name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the sd over the first axis, in float64. The sd is 1 if all values are equal."""
    if mapped.is_mapped(values):
        mean, sd = _moments_of_blocks(values)
    else:
        mean, sd = (np.asarray(moment(axis=0, dtype=np.float64)) for moment in (values.mean, values.std))
    least, largest = _ends(values)
    is_constant = largest == least
    if np.any(~is_constant & ~_is_valid_divisor(sd.astype(np.float32))):
        raise UsageError(f"{values_name}: the numbers differ by too little to be standardised in float32; rescale them")
    return mean, np.where(is_constant, 1.0, sd)


def _moments_of_blocks(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the sd over the first axis of an array in a temporary file, in float64, block by block."""

    def sum_of(function: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> NDArray[np.float64]:
        total = np.zeros(values.shape[1:])
        for rows in mapped.row_blocks(values):
            # The total so far is the first row, so that the rows are added in the same order as without blocks.
            total = np.concatenate([total[None], function(values[rows].astype(np.float64))]).sum(0)
        return total

    mean = sum_of(lambda block: block) / len(values)
    return mean, np.sqrt(sum_of(lambda block: (block - mean) ** 2) / len(values))


def _ends(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the smallest and the largest values over the first axis; infinite if there are no rows."""
    least, largest = np.full(values.shape[1:], np.inf), np.full(values.shape[1:], -np.inf)
    for rows in mapped.row_blocks(values):
        least, largest = np.minimum(least, values[rows].min(0)), np.maximum(largest, values[rows].max(0))
    return np.stack([least, largest])


def _byte_moments(images: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the sd of all pixels. The counts of the 256 values are used, to save memory."""
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, len(images), 1024):
        counts += np.bincount(images[start : start + 1024].reshape(-1), minlength=256)
    levels = np.arange(256.0)
    mean = np.average(levels, weights=counts)
    sd = np.sqrt(np.average((levels - mean) ** 2, weights=counts))
    return np.asarray(mean), np.asarray(sd if sd > 0 else 1.0)
