"""Detection of rounded targets.

The values of a rounded target differ by multiples of a step, such as 1, 0.1 or 5. The step is not small compared with
the standard deviation of the values.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

_DECIMALS = 3
"""Maximal number of decimals of a step, so that the smallest detected step is 0.001."""
_LARGEST = 2**22
"""Maximal value in units of the last decimal. Any larger float32 number is nearly a whole number of these units."""
_COARSE = 0.02
"""Minimal step, in standard deviations of the target, at which rounding changes the fit of a density."""
_FEWEST = 10
"""Minimal number of rows. Fewer values may be multiples of a step by chance."""
_PRECISION = 1e-6
"""Largest relative error of decimals in float32."""


def rounding_step(values: Float[np.ndarray, " row"]) -> float:
    """Return the step of rounded values, in the units of the values, or 0 if the values are not rounded.

    All differences between the values are multiples of the step. The values count as rounded only if three conditions
    hold. There are at least 10 values. The step is at least 0.02 standard deviations and has at most three decimals. At
    least half of the rows share their value with another row: most exact measurements are unique, but rounded numbers
    rarely are.
    """
    numbers = np.asarray(values, np.float64)
    distinct, counts = np.unique(numbers, return_counts=True)
    if numbers.size < _FEWEST or distinct.size < 2 or 2 * counts[counts > 1].sum() < numbers.size:
        return 0.0
    for decimals in range(_DECIMALS + 1):
        scaled = distinct * 10.0**decimals
        if np.abs(scaled).max() >= _LARGEST:
            return 0.0
        if np.all(np.abs(scaled - np.round(scaled)) <= _PRECISION * np.maximum(np.abs(scaled), 1)):
            integers = np.round(scaled).astype(np.int64)
            step = float(np.gcd.reduce(integers - integers[0])) / 10**decimals
            return step if step >= _COARSE * numbers.std() else 0.0
    return 0.0


def is_on_grid(values: Float[np.ndarray, " row"], step: float, origin: float) -> bool:
    """Whether all values differ from the origin by a whole number of steps."""
    numbers = np.asarray(values, np.float64)
    steps = (numbers - origin) / step
    tolerance = 1e-3 + _PRECISION * np.maximum(np.abs(numbers), abs(origin)) / step
    return bool(np.all(np.abs(steps - np.round(steps)) <= tolerance))
