"""How far a prediction is from calibrated, over the whole curve: one size, its interval, and which way it is off."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

LEVEL = 0.99
"""How sure it is that the true gap lies in its interval.

All test rows share what the training rows happened to be, which no interval over test rows knows: at 0.95 one in thirty
right runs would be called wrong, at 0.99 less than one in a hundred (`tests/test_calibration.py`)."""
_SUPREMUM = 2.807
"""What the largest absolute value of Brownian motion on the unit interval stays below with that probability."""
MARGIN = 0.02
"""A gap that no one acts on."""
COARSEST = 0.25
"""A gap that would matter and may still hide in the interval: too few rows to tell."""


class Calibration(NamedTuple):
    """The largest distance between what was claimed and what happened, along the whole curve, as a share of rows."""

    gap: float
    low: float
    high: float
    """`low` to `high` holds the gap of all rows there could be, with 99 % probability or more."""
    direction: str
    """Which way it is off, where it is off most."""


def of_intervals(pit: Float[np.ndarray, "row target"]) -> Calibration:
    """From randomised probability integral transforms, which are uniform if the prediction is right; counts too.

    Two curves: the share of targets inside central intervals against their probability (the width), and the
    distribution function of the transform (the place). The interval is that of Dvoretzky, Kiefer and Wolfowitz with
    Massart's constant (1990), half of the error for each curve. Several targets of a row count as one observation.
    """
    half = math.sqrt(math.log(4 / (1 - LEVEL)) / (2 * len(pit)))
    width, wide_at = _largest(np.abs(2 * pit - 1).ravel())
    place, above = _largest(pit.ravel())
    if abs(width) >= abs(place):
        direction = "intervals too wide" if width > 0 else "intervals too narrow"
        direction += f": those of {100 * wide_at:.0f} % hold {100 * (wide_at + width):.0f} %"
    else:
        direction = f"predictions too {'high' if place > 0 else 'low'}"
        direction += f": {100 * (above + place):.0f} % of targets lie below their {100 * above:.0f} % quantile"
    return _with_interval(max(abs(width), abs(place)), half, direction)


def of_classes(labels: Int[np.ndarray, " row"], probabilities: Float[np.ndarray, "row class"]) -> Calibration:
    """From confidence and accuracy: the largest cumulative difference, rows in order of their confidence.

    G = max_k |sum_{i <= k} (correct_i - confidence_i)| / rows, without bins (Arrieta-Ibarra, Gujral, Tannen, Tygert and
    Xu 2022, J. Mach. Learn. Res. 23(351)). Where the prediction is right the sum is a martingale: its supremum is
    about that of Brownian motion.
    """
    confidence = np.asarray(probabilities.max(1), np.float64)
    order = np.argsort(confidence, kind="stable")
    confidence, correct = confidence[order], (probabilities.argmax(1) == labels)[order]
    count, residual = len(confidence), correct - confidence
    # Equal confidences are one step: within them the order of rows means nothing.
    ends = np.append(np.flatnonzero(np.diff(confidence)), count - 1)
    sums = np.cumsum(residual)[ends] / count
    worst = int(np.argmax(np.abs(sums)))
    # Whichever is larger of what was seen and what was claimed: a share near 0 or 1 looks surer than it is.
    spread = math.sqrt(max(float(np.sum(residual**2)), float(np.sum(confidence * (1 - confidence))))) / count
    below, above = sums[worst], sums[-1] - sums[worst]
    name = {True: "not sure enough", False: "too sure"}
    if abs(above) <= abs(below) / 2 or below * above > 0:
        direction = f"{name[bool(below > 0)]}: {confidence.mean():.1%} sure on average, right in {correct.mean():.1%}"
    else:
        at = confidence[ends[worst]]
        direction = f"{name[bool(below > 0)]} where its confidence is up to {at:.2f}, {name[bool(above > 0)]} above"
    return _with_interval(abs(below), _SUPREMUM * spread, direction)


def _largest(values: Float[np.ndarray, " value"]) -> tuple[float, float]:
    """Where the empirical distribution function is farthest from the uniform one: by how much, with sign, and where."""
    ordered, count = np.sort(values), len(values)
    over, under = np.arange(1, count + 1) / count - ordered, ordered - np.arange(count) / count
    if over.max() >= under.max():
        return float(over.max()), float(ordered[over.argmax()])
    return -float(under.max()), float(ordered[under.argmax()])


def _with_interval(gap: float, half: float, direction: str) -> Calibration:
    return Calibration(gap, max(gap - half, 0.0), min(gap + half, 1.0), direction)
