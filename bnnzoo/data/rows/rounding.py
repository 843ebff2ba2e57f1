"""Detection of rounded targets: whole numbers, or decimals whose steps are coarse compared with their spread."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

_DECIMALS = 3
"""Steps down to 0.001 are detected."""
_LARGEST = 2**22
"""Beyond this, float32 rounds so coarsely that any number is nearly a multiple of the step."""
_COARSE = 0.02
"""Minimal step, in standard deviations, at which rounding matters to a density."""
_FEWEST = 10
"""Minimal number of rows. Fewer values may lie on a grid by chance."""


def rounding_step(values: Float[np.ndarray, " row"]) -> float:
    """Return the step of the grid on which all values lie, in their units; 0 if there is no grid, or a fine one.

    The result is also 0 if less than half of the rows share their value with another row. Measurements are mostly
    unique, but rounded numbers rarely are.
    """
    numbers = np.asarray(values, np.float64)
    distinct, counts = np.unique(numbers, return_counts=True)
    if numbers.size < _FEWEST or distinct.size < 2 or 2 * counts[counts > 1].sum() < numbers.size:
        return 0.0
    for decimals in range(_DECIMALS + 1):
        scaled = distinct * 10.0**decimals
        if np.abs(scaled).max() >= _LARGEST:
            return 0.0
        # Decimals have the accuracy of float32 only.
        if np.all(np.abs(scaled - np.round(scaled)) <= 1e-6 * np.maximum(np.abs(scaled), 1)):
            integers = np.round(scaled).astype(np.int64)
            step = float(np.gcd.reduce(integers - integers[0])) / 10**decimals
            return step if step >= _COARSE * numbers.std() else 0.0
    return 0.0


def is_on_grid(values: Float[np.ndarray, " row"], step: float, origin: float) -> bool:
    """Whether all values differ from the origin by a whole number of steps."""
    steps = (np.asarray(values, np.float64) - origin) / step
    return bool(np.all(np.abs(steps - np.round(steps)) <= 1e-3))
