"""The exact distribution of a one-dimensional penalty kernel, on a grid, for tests of approximate kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import log_ndtr, ndtr

Penalty = Callable[[np.ndarray], np.ndarray]
_NODES = 40


class Law(NamedTuple):
    """The distribution of a chain on the target N(0, 1) after some steps."""

    mean: float
    variance: float
    acceptance: float
    """Mean acceptance over the steps."""


def series(dof: float, terms: int) -> Penalty:
    """Return the first terms of -log 0F1(; dof/2; -dof chi2 / 4), Ceperley and Dewing 1999, equation 42."""
    m = dof + 1

    def penalty(chi2: np.ndarray) -> np.ndarray:
        every = [chi2 / 2, chi2**2 / (4 * (m + 1)), chi2**3 / (3 * (m + 1) * (m + 3))]
        return sum(every[:terms], np.zeros_like(chi2))

    return penalty


@functools.cache
def law(ratio: float, dof: int, terms: int, *, steps: int = 30, start: float | None = None) -> Law:
    """Return the distribution after `steps` steps of theta' = theta + N(0, 1) on N(0, 1), by the transition matrix.

    The noise of delta is normal with variance `ratio` (theta' - theta)^2, which is estimated with `dof` degrees of
    freedom. Chains start at exact draws, or at `start`.
    """
    return _propagate(ratio, dof, series(dof, terms), steps, start)


def _propagate(ratio: float, dof: int, penalty: Penalty, steps: int, start: float | None) -> Law:
    grid = np.linspace(-8, 8, 401)
    move = grid[None] - grid[:, None]
    proposal = stats.norm.pdf(move) * (grid[1] - grid[0])
    change = (grid[None] ** 2 - grid[:, None] ** 2) / 2
    variance = ratio * move**2 + 1e-300
    sd = np.sqrt(variance)
    accept = np.zeros_like(change)
    for quantile in stats.chi2.ppf((np.arange(_NODES) + 0.5) / _NODES, dof) / dof:
        u = penalty(variance * quantile)
        # E min(1, exp(-x - u)) over x ~ N(change, variance).
        low = (-u - change) / sd
        accept += ndtr(low) + np.exp(np.minimum(-change - u + variance / 2 + log_ndtr(-low - sd), 50))
    kernel = proposal * accept / _NODES
    moves = kernel.sum(1)
    kernel[np.diag_indices_from(kernel)] += 1 - moves

    weights = np.exp(-(grid**2) / 2) if start is None else (np.abs(grid - start) < 1e-9).astype(float)
    weights /= weights.sum()
    acceptance = 0.0
    for _ in range(steps):
        acceptance += float(weights @ moves) / steps
        weights = weights @ kernel
    mean = float(weights @ grid)
    return Law(mean, float(weights @ (grid - mean) ** 2), acceptance)
