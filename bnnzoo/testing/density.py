"""Tests that a density integrates to 1 on a grid, and that draws have this density."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy import stats

from bnnzoo.testing.check_report import NOT_APPLICABLE, attempt

POINTS = {1: 20_001, 2: 601}
"""Number of grid points on each axis; the keys are the numbers of axes."""
LEVEL = 1e-6
"""Probability that one test rejects correct draws."""
_TOLERANCE = 5e-3
"""Tolerance of integrals.

For a density without narrow peaks, the error due to the grid is less than a tenth of this tolerance.
"""
_MAX_COUNTS = 2_000


class Grid(NamedTuple):
    """A grid of points over the support of a distribution of one or two numbers, with integration weights."""

    axes: tuple[Float[np.ndarray, " point"], ...]
    steps: tuple[Float[np.ndarray, " point"], ...]
    """Integration weight of each point on its axis; 1 for integers."""
    is_discrete: bool

    @classmethod
    def around(cls, draws: Float[np.ndarray, "draw number"]) -> Grid:
        """Return a grid for the distribution of these draws. Its points are integers if all draws are integers."""
        is_discrete = bool(np.all(draws == np.round(draws)))
        axes, steps = zip(*(_axis(column, is_discrete, draws.shape[1]) for column in draws.T), strict=True)
        return cls(axes, steps, is_discrete)

    @property
    def points(self) -> Float[np.ndarray, "all number"]:
        """All points of the grid; the coordinate of the last axis varies fastest."""
        return np.stack([axis.ravel() for axis in np.meshgrid(*self.axes, indexing="ij")], 1).astype(np.float32)

    def masses(self, log_density: Float[np.ndarray, " all"]) -> Float[np.ndarray, "..."]:
        """Return the probability of each grid cell, as an array with one axis per number (coordinate)."""
        shape = tuple(map(len, self.axes))
        with np.errstate(over="ignore"):
            density = np.exp(log_density.astype(np.float64)).reshape(shape)
        for number, step in enumerate(self.steps):
            density = density * step.reshape([-1 if axis == number else 1 for axis in range(len(shape))])
        return density

    def marginals(self, log_density: Float[np.ndarray, " all"]) -> list[Float[np.ndarray, " point"]]:
        """Return, for each number, the marginal probabilities of the points on its axis."""
        masses = self.masses(log_density)
        masses = masses / masses.sum()
        return [masses.sum(tuple(i for i in range(masses.ndim) if i != axis)) for axis in range(masses.ndim)]


def _axis(
    values: Float[np.ndarray, " draw"], is_discrete: bool, num_axes: int
) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]:
    if is_discrete:
        low, high = values.min(), values.max()
        spread = 2 * (high - low) + 30
        points = np.arange(0.0 if low >= 0 else low - spread, min(high + spread, low + _MAX_COUNTS / num_axes))
        return points, np.ones_like(points)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    scale = 2 * (high - low)
    count = POINTS[num_axes]
    t = (np.arange(count) + 0.5) * 2 / count - 1
    # The map from (-1, 1) covers the whole real line, so that heavy tails are included.
    return middle + scale * t / (1 - t**2), scale * (1 + t**2) / (1 - t**2) ** 2 * 2 / count


def why_no_grid(draws: Float[np.ndarray, "draw number"]) -> str:
    """Return the reason why these draws cannot be tested on a grid; empty if they can be tested."""
    if not np.isfinite(draws).all():
        return "a draw is not finite"
    repeated = any(len(np.unique(column)) < 0.9 * len(column) for column in draws.T)
    if repeated and not np.all(draws == np.round(draws)):
        return (
            f"{NOT_APPLICABLE}the draws contain equal values that are not integers, so their distribution is "
            "neither continuous nor on the integers"
        )
    return ""


def compare(
    draws: Float[np.ndarray, "draw number"],
    log_prob: Callable[[Any], Any],
    claimed: tuple[Any, Any] | None = None,
) -> Iterator[tuple[str, str]]:
    """Compare a density with draws. Yield the name and the fault of each check; the fault is empty if it passed.

    Args:
        draws: draws from the distribution.
        log_prob: a function that returns the log density of each row of numbers.
        claimed: the mean and the variance that the distribution reports; None if they are not tested.
    """
    if reason := why_no_grid(draws):
        yield "normalised", reason
        return
    grid = Grid.around(draws)
    log_density = np.asarray(log_prob(jnp.asarray(grid.points)))
    fault = normalisation(grid, log_density)
    yield "normalised", fault
    if fault:
        return
    log_densities = np.asarray(log_prob(jnp.asarray(draws, jnp.float32)))
    yield "draws", attempt(lambda: agreement(grid, log_density, draws, log_densities))
    if claimed is not None:
        mean, variance = (np.asarray(value, np.float64).reshape(-1) for value in claimed)
        yield "moments", attempt(lambda: moments(grid, log_density, mean, variance))


def normalisation(grid: Grid, log_density: Float[np.ndarray, " all"]) -> str:
    """Return a sentence if the density does not integrate to 1; otherwise an empty string."""
    if np.isnan(log_density).any():
        return f"log_prob is NaN at {grid.points[np.isnan(log_density)][0].tolist()}"
    total = float(grid.masses(log_density).sum())
    description = "probabilities sum to" if grid.is_discrete else "the density integrates to"
    return "" if abs(total - 1) < _TOLERANCE else f"{description} {total:.4g}, not to 1"


def moments(
    grid: Grid, log_density: Float[np.ndarray, " all"], mean: Float[np.ndarray, " number"], variance: np.ndarray
) -> str:
    """Return a sentence if a reported mean or variance differs from that of the density; otherwise an empty string.

    A reported value that is infinite is not compared.
    """
    for axis, (points, marginal) in enumerate(zip(grid.axes, grid.marginals(log_density), strict=True)):
        grid_mean = float(marginal @ points)
        grid_variance = float(marginal @ (points - grid_mean) ** 2)
        for name, claimed, value, scale in (
            ("mean", mean[axis], grid_mean, grid_variance**0.5),
            ("variance", variance[axis], grid_variance, grid_variance),
        ):
            if np.isfinite(claimed) and not abs(claimed - value) <= 10 * _TOLERANCE * scale + 1e-6:
                return f"the {name} of the distribution is {claimed:.4g}, but exp(log_prob) has the {name} {value:.4g}"
    return ""


def agreement(
    grid: Grid,
    log_density: Float[np.ndarray, " all"],
    draws: Float[np.ndarray, "draw number"],
    log_densities: Float[np.ndarray, " draw"],
) -> str:
    """Return a sentence if the draws do not have the density; otherwise an empty string.

    The tests use the marginal distribution of each number, and the mean and the variance of the log density of the
    draws.

    Args:
        grid: the grid of the density.
        log_density: log density at each grid point.
        draws: the draws to test.
        log_densities: log density of each draw.
    """
    masses = grid.masses(log_density)
    masses = masses / masses.sum()
    for axis, points in enumerate(grid.axes):
        marginal = masses.sum(tuple(i for i in range(masses.ndim) if i != axis))
        p_value = _fit_p_value(points, marginal, draws[:, axis], is_discrete=grid.is_discrete)
        if not p_value > LEVEL:
            expected_mean, sample_mean = float(marginal @ points), float(draws[:, axis].mean())
            return (
                f"draws do not have the density exp(log_prob) (p = {p_value:.1g}): their mean is {sample_mean:.4g}, "
                f"expected {expected_mean:.4g}"
            )
    is_possible = masses > 0
    probabilities, values = masses[is_possible], log_density.reshape(masses.shape)[is_possible].astype(np.float64)
    mean = float(probabilities @ values)
    sampled = np.asarray(log_densities, np.float64)
    # The marginal distributions and the mean log density cannot show that numbers depend on each other. The variance of
    # the log density can.
    for name, expected, observed in (
        ("mean log_prob", mean, sampled),
        ("variance of log_prob", float(probabilities @ (values - mean) ** 2), (sampled - mean) ** 2),
    ):
        error = float(observed.std() / len(observed) ** 0.5)
        difference = float(observed.mean()) - expected
        if abs(difference) > 6 * error + _TOLERANCE:
            return (
                f"the {name} of the draws differs from its expected value by {difference:.3g}, which is "
                f"{abs(difference) / max(error, 1e-12):.0f} standard errors"
            )
    return ""


def _fit_p_value(
    points: Float[np.ndarray, " point"],
    masses: Float[np.ndarray, " point"],
    values: Float[np.ndarray, " draw"],
    *,
    is_discrete: bool,
) -> float:
    """Return the p value of a goodness-of-fit test: Kolmogorov-Smirnov, or Pearson's chi-squared for integers."""
    if not is_discrete:
        ends = (points[1:] + points[:-1]) / 2
        return float(stats.kstest(np.interp(values, ends, np.cumsum(masses)[:-1]), "uniform").pvalue)
    counts = np.array([np.sum(values == point) for point in points], float)
    expected = masses * len(values)
    order = np.argsort(-expected)
    large_cells = order[expected[order] >= 10]
    small_cells = np.setdiff1d(order, large_cells)
    observed_counts = np.append(counts[large_cells], counts[small_cells].sum())
    expected_counts = np.append(expected[large_cells], max(expected[small_cells].sum(), 1e-9))
    statistic = float(np.sum((observed_counts - expected_counts) ** 2 / np.maximum(expected_counts, 1.0)))
    return float(stats.chi2.sf(statistic, max(1, len(observed_counts) - 1)))
