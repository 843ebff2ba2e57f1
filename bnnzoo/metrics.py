"""How good predictions are: one number each, in the data's original units. NumPy only."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int


def negative_log_likelihood(log_density: Float[np.ndarray, " row"]) -> float:
    """-mean_i log p(y_i | x_i, data): minus the log pointwise predictive density a row (of the mixture over draws)."""
    return float(-np.mean(log_density, dtype=np.float64))


def rmse(y: Float[np.ndarray, "row target"], mean: Float[np.ndarray, "row target"]) -> float:
    """Root of the mean squared error of the predictive mean, over rows and targets."""
    return float(np.sqrt(np.mean((np.asarray(y, np.float64) - mean) ** 2)))


def coverage(
    y: Float[np.ndarray, "row target"],
    low: Float[np.ndarray, "row target"],
    high: Float[np.ndarray, "row target"],
) -> float:
    """Share of targets inside their interval."""
    return float(np.mean((y >= low) & (y <= high)))


def accuracy(labels: Int[np.ndarray, " row"], probabilities: Float[np.ndarray, "row class"]) -> float:
    """Share of rows whose most probable class is the label."""
    return float(np.mean(probabilities.argmax(1) == labels))


def brier(labels: Int[np.ndarray, " row"], probabilities: Float[np.ndarray, "row class"]) -> float:
    """Mean squared distance of the probabilities from the one-hot label, summed over classes (Brier 1950): 0 to 2."""
    one_hot = np.eye(probabilities.shape[1])[labels]
    return float(np.mean(np.sum((probabilities - one_hot) ** 2, 1)))


def expected_calibration_error(
    labels: Int[np.ndarray, " row"], probabilities: Float[np.ndarray, "row class"], bins: int = 15
) -> float:
    """Mean gap between confidence and accuracy over equal-width bins of confidence (Guo et al. 2017)."""
    confidence = probabilities.max(1)
    correct = probabilities.argmax(1) == labels
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    weight = np.bincount(index, minlength=bins)
    gaps = np.bincount(index, correct - confidence, minlength=bins)
    return float(np.sum(np.abs(gaps)) / np.maximum(weight.sum(), 1))


def entropy(probabilities: Float[np.ndarray, "row class"]) -> Float[np.ndarray, " row"]:
    """-sum_c p_c log p_c, in nats."""
    return -np.sum(probabilities * np.log(np.maximum(probabilities, np.finfo(np.float64).tiny)), 1)
