"""Targets that are rounded: whole numbers, or decimals in steps that are coarse beside their spread."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

_DECIMALS = 3
"""Steps down to 0.001 are looked for."""
_LARGEST = 2**22
"""From here on float32 rounds so coarsely that any number is nearly a multiple."""
_COARSE = 0.02
"""The step, in standard deviations, from which rounding matters to a density."""
_FEWEST = 10
"""Rows of which fewer may lie on a grid by chance."""


def step_of(values: Float[np.ndarray, " row"]) -> float:
    """Return the step of the grid that all values lie on, in their units; 0 where there is none, or a fine one.

    A value that no other row has is the rule in measurements and the exception in rounded ones: at least half of the
    rows must share theirs.
    """
    numbers = np.asarray(values, np.float64)
    distinct, counts = np.unique(numbers, return_counts=True)
    if numbers.size < _FEWEST or distinct.size < 2 or 2 * counts[counts > 1].sum() < numbers.size:
        return 0.0
    for decimals in range(_DECIMALS + 1):
        scaled = distinct * 10.0**decimals
        if np.abs(scaled).max() >= _LARGEST:
            return 0.0
        # Decimals are known to float32 alone.
        if np.all(np.abs(scaled - np.round(scaled)) <= 1e-6 * np.maximum(np.abs(scaled), 1)):
            whole = np.round(scaled).astype(np.int64)
            step = float(np.gcd.reduce(whole - whole[0])) / 10**decimals
            return step if step >= _COARSE * numbers.std() else 0.0
    return 0.0


def is_on_grid(values: Float[np.ndarray, " row"], step: float, origin: float) -> bool:
    """Whether all values are whole steps from the origin."""
    steps = (np.asarray(values, np.float64) - origin) / step
    return bool(np.all(np.abs(steps - np.round(steps)) <= 1e-3))
