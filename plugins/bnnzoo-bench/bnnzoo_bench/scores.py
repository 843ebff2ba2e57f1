"""Scores of predictive distributions on test rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnnzoo.errors import UsageError
from bnnzoo_bench.distributions import Distribution

METRICS = ("crps", "nll", "rmse", "interval_score_90", "coverage_90")
"""Names of the metrics. Lower is better, except for the coverage, which should be 0.9."""

_LEVEL = 0.9
# Ends of the panels of integration, in half-widths of the 90 % interval. Beyond 12 half-widths (20 standard deviations
# of a normal distribution) the integrand is below 1e-5 even for Student's t with 2 degrees of freedom.
_PANELS = np.array([-12, -5, -2.5, -1.5, -0.9, -0.4, 0, 0.4, 0.9, 1.5, 2.5, 5, 12])
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


def score(distribution: Distribution, y: np.ndarray, unit: float = 1.0, method: str = "method") -> dict[str, float]:
    """Return each score as a mean over the rows.

    CRPS, RMSE and interval score are divided by `unit`. The negative log-likelihood (NLL) is that of y / unit.

    Args:
        distribution: the predictive distribution of each row.
        y: the observed targets [row], in the units of the distribution.
        unit: the standard deviation of the training targets, in the same units.
        method: the name of the method, for error messages.

    Raises:
        ValueError: if a score is not finite, or if the distribution returns arrays of other shapes than expected.
    """
    y = np.asarray(y, np.float64)
    checked = _Checked(distribution, method)
    mean, _ = checked("mean", y.shape), checked("sd", y.shape)
    low, high = checked("quantile", (2, *y.shape), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    outside = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    scores = {
        "crps": _crps(checked, y, low, high).mean() / unit,
        "nll": -np.log(unit) - checked("log_prob", y.shape, y).mean(),
        "rmse": np.sqrt(np.mean((y - mean) ** 2)) / unit,
        "interval_score_90": np.mean(high - low + 2 / (1 - _LEVEL) * outside) / unit,
        "coverage_90": np.mean((low <= y) & (y <= high)),
    }
    numbers = {name: float(value) for name, value in scores.items()}
    if wrong := [name for name, value in numbers.items() if not np.isfinite(value)]:
        raise ValueError(f"not finite on the test rows: {', '.join(wrong)}")
    return numbers


class _Checked:
    """Attributes and methods of a predictive distribution as arrays with checked shapes."""

    def __init__(self, distribution: Distribution, method: str):
        self.distribution, self.method = distribution, method

    def __call__(self, name: str, shape: tuple[int, ...], *arguments: Any) -> np.ndarray:
        """Return the attribute `name`, or the result of the method `name` for the arguments.

        Raises:
            UsageError: if the value cannot be computed, or if it does not have the given shape.
        """
        place = f"{self.method}: {name} of the result of predict"
        try:
            value = getattr(self.distribution, name)
            array = np.asarray(value(*arguments) if arguments else value, np.float64)
        except Exception as error:
            raise UsageError(
                f"{place}: expected an array of shape {shape}, got {type(error).__name__}: {error}"
            ) from error
        if array.shape != shape:
            raise UsageError(f"{place}: expected an array of shape {shape}, got shape {array.shape}")
        return array


def _crps(distribution: _Checked, y: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the continuous ranked probability score (CRPS) of each row.

    The score is the integral of (F(t) - 1{t >= y})^2, where F is the predictive distribution function. The integral is
    computed by Gauss-Legendre quadrature on intervals (panels). Two panels meet at y, so that the integrand is smooth
    on each panel. For a normal distribution the relative error is below 1e-6.

    Args:
        distribution: the predictive distribution of each row.
        y: the observed targets [row].
        low: the lower ends of the 90 % intervals [row].
        high: the upper ends of the 90 % intervals [row].
    """
    half = np.maximum(high - low, 1e-12) / 2
    ends = (low + high) / 2 + _PANELS[:, None] * half
    edges = np.sort(np.concatenate([ends, y[None]]), axis=0)
    middles, halves = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    points = middles[:, None] + halves[:, None] * _NODES[:, None]  # [panel, node, row]
    flat = points.reshape(-1, len(y))
    values = distribution("cdf", flat.shape, flat).reshape(points.shape)
    heights = (values - (middles >= y)[:, None]) ** 2
    return np.einsum("pnr,n,pr->r", heights, _WEIGHTS, halves)
