"""Distance of a prediction from calibration over the whole curve: its size, an interval, and its direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special

LEVEL = 0.99
"""Confidence level of the interval of the gap.

All test rows share the same training rows, and an interval over test rows ignores that dependence. At 0.95, one in
thirty correct runs would be rejected; at 0.99, less than one in a hundred (`tests/evaluation/test_calibration.py`).
"""
MARGIN = 0.02
"""Tolerance: a prediction is not calibrated if the lower end of the gap's interval exceeds it."""
COARSEST = 0.15
"""Largest upper end of the gap's interval in a prediction that is reported as calibrated."""


def half_width(rows: int, targets: int) -> float:
    """Return half of the width of a gap's interval (Dvoretzky, Kiefer and Wolfowitz), with two curves per target."""
    return math.sqrt(math.log(4 * targets / (1 - LEVEL)) / (2 * rows))


class Calibration(NamedTuple):
    """Largest distance between claimed and observed frequencies along the whole curve, as a fraction of rows."""

    gap: float
    low: float
    high: float
    """`low` to `high` holds the gap in the population of rows, with at least 99 % probability."""
    direction: str
    """Direction of the deviation, where it is largest."""


def of_intervals(pit: Float[np.ndarray, "row target"], names: Sequence[str] = ()) -> Calibration:
    """Measure calibration from randomised probability integral transforms, which are uniform if it is exact.

    Counts are supported too. There are two curves per target. One is the fraction of rows inside central intervals
    against their probability (the width). The other is the distribution function of the transform (the location).
    Targets are not pooled, because an interval too wide for one target would hide one too narrow for another. The worst
    target is reported. The interval is that of Dvoretzky, Kiefer and Wolfowitz with Massart's constant (1990), with the
    error probability shared by all curves.

    Args:
        pit: probability integral transforms.
        names: names of the targets.
    """
    rows, targets = pit.shape
    interval_half_width = half_width(rows, targets)
    curves = []
    for number, values in enumerate(pit.T):
        width, width_position = _largest_deviation(np.abs(2 * values - 1))
        shift, shift_position = _largest_deviation(values)
        target_suffix = f" of {names[number] if names else f'target {number + 1}'}" if targets > 1 else ""
        if abs(width) >= abs(shift):
            direction = f"intervals{target_suffix} too {'wide' if width > 0 else 'narrow'}"
            direction += (
                f": those of {100 * width_position:.0f} % contain {100 * (width_position + width):.0f} % of the targets"
            )
        else:
            direction = f"predictions{target_suffix} too {'high' if shift > 0 else 'low'}"
            direction += (
                f": {100 * (shift_position + shift):.0f} % of targets lie below their {100 * shift_position:.0f} "
                "% quantile"
            )
        curves.append(_with_interval(max(abs(width), abs(shift)), interval_half_width, direction))
    return _combine_curves(curves)


def of_classes(
    labels: Int[np.ndarray, " row"], probabilities: Float[np.ndarray, "row class"], names: Sequence[str] = ()
) -> Calibration:
    """Measure calibration as the largest cumulative difference between claims and outcomes.

    G = max_k |sum_{i <= k} (happened_i - claimed_i)| / rows, without bins (Arrieta-Ibarra, Gujral, Tannen, Tygert and
    Xu 2022, J. Mach. Learn. Res. 23(351)). Rows are ordered by the claimed probability.

    One curve is for the claim that the likeliest class is the label, and one for each class. Confidence alone is not
    enough: a class that is claimed too often is overconfident where it is the likeliest, and underconfident elsewhere.

    If the prediction is calibrated, each sum is a martingale, whose supremum is about that of
    Brownian motion. The error probability is shared by all curves.

    Args:
        labels: indices of the observed classes.
        probabilities: predicted probabilities.
        names: names of the classes.
    """
    count = probabilities.shape[1]
    # With two classes, both curves are mirror images of each other.
    classes = range(1, 2) if count == 2 else range(count)
    quantile_of_supremum = float(special.ndtri(1 - (1 - LEVEL) / (4 * (1 + len(classes)))))
    confidence = _Cumulative.from_claims(probabilities.max(1), probabilities.argmax(1) == labels)
    description = confidence.direction(
        "underconfident", "overconfident", "its confidence", "{:.1%} confident on average, correct in {:.1%}"
    )

    def with_interval(curve: _Cumulative, description: str) -> Calibration:
        # If an outcome is almost never expected and never observed, the estimated spread is near 0. Bernstein's second
        # term, a rule of three, then bounds the error.
        rare_outcome_bound = quantile_of_supremum**2 / (2 * len(labels))
        return _with_interval(curve.gap, quantile_of_supremum * curve.spread + rare_outcome_bound, description)

    curves = [with_interval(confidence, description)]
    for number in classes:
        class_curve = _Cumulative.from_claims(probabilities[:, number], labels == number)
        description = class_curve.direction(
            "predicted too rarely", "predicted too often", "its probability", "{:.1%} on average, observed in {:.1%}"
        )
        curves.append(with_interval(class_curve, f"class {names[number] if names else number} {description}"))
    combined = _combine_curves(curves)
    # A deviation in confidence takes precedence, because it concerns all classes.
    return combined._replace(direction=curves[0].direction) if curves[0].low > MARGIN else combined


class _Cumulative(NamedTuple):
    """Sums of outcomes minus claims, over the rows up to each claim."""

    claimed: Float[np.ndarray, " row"]
    """Claimed probabilities in ascending order."""
    happened: Float[np.ndarray, " row"]
    ends: Int[np.ndarray, " step"]
    """Last row of each distinct claim; the order of rows within equal claims is arbitrary."""
    sums: Float[np.ndarray, " step"]

    @classmethod
    def from_claims(cls, claimed: Float[np.ndarray, " row"], happened: Bool[np.ndarray, " row"]) -> _Cumulative:
        """Order the rows by claim and sum up the differences."""
        order = np.argsort(claimed, kind="stable")
        ordered_claims, outcomes = np.asarray(claimed, np.float64)[order], np.asarray(happened, np.float64)[order]
        last_rows = np.append(np.flatnonzero(np.diff(ordered_claims)), len(ordered_claims) - 1)
        sums = np.cumsum(outcomes - ordered_claims)[last_rows] / len(ordered_claims)
        return cls(ordered_claims, outcomes, last_rows, sums)

    @property
    def gap(self) -> float:
        """Largest absolute value of the sums."""
        return float(np.max(np.abs(self.sums)))

    @property
    def spread(self) -> float:
        """Standard deviation of the sum: the larger of the observed and the claimed one.

        A frequency near 0 or 1 has a smaller estimated spread than it should.
        """
        observed_variance = float(np.sum((self.happened - self.claimed) ** 2))
        claimed_variance = float(np.sum(self.claimed * (1 - self.claimed)))
        return math.sqrt(max(observed_variance, claimed_variance)) / len(self.claimed)

    def direction(self, under: str, over: str, claim: str, means: str) -> str:
        """Describe the deviation: `under` if more was observed than claimed, `over` if less, and where it turns."""
        largest = int(np.argmax(np.abs(self.sums)))
        sum_below, sum_above = self.sums[largest], self.sums[-1] - self.sums[largest]
        name = {True: under, False: over}
        if abs(sum_above) <= abs(sum_below) / 2:
            return f"{name[bool(sum_below > 0)]}: {means.format(self.claimed.mean(), self.happened.mean())}"
        turning_claim = self.claimed[self.ends[largest]]
        return (
            f"{name[bool(sum_below > 0)]} where {claim} is up to {turning_claim:.2f}, {name[bool(sum_above > 0)]} above"
        )


def _largest_deviation(values: Float[np.ndarray, " value"]) -> tuple[float, float]:
    """Return the largest signed distance of the empirical distribution function from uniform, and its position."""
    ordered, count = np.sort(values), len(values)
    distance_above, distance_below = np.arange(1, count + 1) / count - ordered, ordered - np.arange(count) / count
    if distance_above.max() >= distance_below.max():
        return float(distance_above.max()), float(ordered[distance_above.argmax()])
    return -float(distance_below.max()), float(ordered[distance_below.argmax()])


def _combine_curves(curves: Sequence[Calibration]) -> Calibration:
    """Combine all curves: the largest gap, an interval that holds it, the direction of the most significant curve."""
    gap, low, high = (max(getattr(curve, name) for curve in curves) for name in ("gap", "low", "high"))
    return Calibration(gap, low, high, max(curves, key=lambda curve: (curve.low, curve.gap)).direction)


def _with_interval(gap: float, half: float, direction: str) -> Calibration:
    return Calibration(gap, max(gap - half, 0.0), min(gap + half, 1.0), direction)
