"""Calibration gap: the largest difference between predicted and observed frequencies, with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special

LEVEL = 0.99
"""Confidence level of the interval of the calibration gap.

All predictions at test rows come from the same training rows, and the interval ignores this dependence. At the level
0.95, one in thirty correct runs would be rejected. At 0.99, less than one in a hundred is rejected
(`tests/evaluation/test_calibration.py`).
"""
MARGIN = 0.02
"""Tolerance: a run is reported as not calibrated if the lower end of the interval of the gap exceeds this number."""
COARSEST = 0.15
"""A run is reported as calibrated only if the upper end of the interval of its gap is at most this number."""


def half_width(rows: int, targets: int) -> float:
    """Return half of the width of the interval of a gap, by the inequality of Dvoretzky, Kiefer and Wolfowitz.

    Each target has two calibration curves (see `of_intervals`). The error probability 1 - `LEVEL` is divided equally
    among all curves.
    """
    return math.sqrt(math.log(4 * targets / (1 - LEVEL)) / (2 * rows))


class Calibration(NamedTuple):
    """Calibration gap: largest difference between predicted and observed frequencies, as a fraction of the rows."""

    gap: float
    """Calibration gap in the given rows."""
    low: float
    high: float
    """The interval from `low` to `high` is a 99 % confidence interval of the gap for new rows."""
    direction: str
    """Description of the deviation, such as "intervals too narrow"."""


def of_intervals(pit: Float[np.ndarray, "row target"], names: Sequence[str] = ()) -> Calibration:
    """Measure the calibration of a regression from the randomised probability integral transforms (PIT) of its targets.

    If the predictions are calibrated, the transforms are uniform on (0, 1), also for counts. Each target has two
    curves. The first curve shows the fraction of rows inside each central interval against the probability of the
    interval; it detects intervals of wrong width. The second curve is the distribution function of the transforms; it
    detects predictions that are too high or too low. Targets are not pooled, because too wide intervals of one target
    would hide too narrow intervals of another. The worst target is reported. The confidence interval follows from the
    inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant (1990). The error probability 1 - `LEVEL` is
    divided among all curves.

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
                f": {100 * width_position:.0f} % intervals contain {100 * (width_position + width):.0f} % of the "
                "targets"
            )
        else:
            direction = f"predictions{target_suffix} too {'high' if shift > 0 else 'low'}"
            direction += (
                f": {100 * (shift_position + shift):.0f} % of the targets lie below the predicted "
                f"{100 * shift_position:.0f} % quantile"
            )
        curves.append(_with_interval(max(abs(width), abs(shift)), interval_half_width, direction))
    return _combine_curves(curves)


def of_classes(
    labels: Int[np.ndarray, " row"], probabilities: Float[np.ndarray, "row class"], names: Sequence[str] = ()
) -> Calibration:
    """Measure the calibration of class probabilities as the largest cumulative difference from the outcomes.

    A claim is a predicted probability, and its outcome is 1 if the predicted event happened, else 0. The rows are
    ordered by claim. A curve is the cumulative sum of outcome - claim over the rows. Its gap is

        G = max_k |sum_{i <= k} (outcome_i - claim_i)| / rows.

    This gap needs no bins (Arrieta-Ibarra, Gujral, Tannen, Tygert and Xu 2022, J. Mach. Learn. Res. 23(351)).

    In one curve, the claim is the probability of the likeliest class, and the event is that this class is the label. In
    addition, each class has a curve, in which the claim is the probability of this class. The first curve alone is not
    enough: if a class is predicted too often, predictions of this class are overconfident, and predictions of other
    classes are underconfident. The two errors may cancel.

    If the predictions are calibrated, each sum is a martingale whose supremum is distributed about as the supremum of
    Brownian motion. The error probability 1 - LEVEL is divided among all curves.

    Args:
        labels: indices of the observed classes.
        probabilities: predicted probabilities.
        names: names of the classes.
    """
    count = probabilities.shape[1]
    # With two classes, the curves of the classes are mirror images of each other, so one of them is enough.
    classes = range(1, 2) if count == 2 else range(count)
    quantile_of_supremum = float(special.ndtri(1 - (1 - LEVEL) / (4 * (1 + len(classes)))))
    confidence = _Cumulative.from_claims(probabilities.max(1), probabilities.argmax(1) == labels)
    description = confidence.direction(
        "underconfident", "overconfident", "its confidence", "{:.1%} confident on average, correct in {:.1%}"
    )

    def with_interval(curve: _Cumulative, description: str) -> Calibration:
        # If an outcome is almost never expected and never observed, the estimated spread is near 0. The second term of
        # Bernstein's inequality, similar to a rule of three, then bounds the error.
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
    """One curve: cumulative sums of outcome minus claim over the rows, in the order of the claims."""

    claimed: Float[np.ndarray, " row"]
    """Claims (predicted probabilities) in ascending order."""
    happened: Float[np.ndarray, " row"]
    """Outcome of each claim: 1 if the predicted event happened, else 0."""
    ends: Int[np.ndarray, " step"]
    """Last row of each group of equal claims; sums inside a group are ignored, because its order is arbitrary."""
    sums: Float[np.ndarray, " step"]
    """Sum of outcome minus claim up to the end of each group, divided by the number of rows."""

    @classmethod
    def from_claims(cls, claimed: Float[np.ndarray, " row"], happened: Bool[np.ndarray, " row"]) -> _Cumulative:
        """Order the rows by claim, and compute the cumulative sums of outcome minus claim."""
        order = np.argsort(claimed, kind="stable")
        ordered_claims, outcomes = np.asarray(claimed, np.float64)[order], np.asarray(happened, np.float64)[order]
        last_rows = np.append(np.flatnonzero(np.diff(ordered_claims)), len(ordered_claims) - 1)
        sums = np.cumsum(outcomes - ordered_claims)[last_rows] / len(ordered_claims)
        return cls(ordered_claims, outcomes, last_rows, sums)

    @property
    def gap(self) -> float:
        """Largest absolute value of the cumulative sums."""
        return float(np.max(np.abs(self.sums)))

    @property
    def spread(self) -> float:
        """Standard deviation of the sum over all rows: the larger of two estimates.

        One estimate comes from the outcomes, the other from the claims. For probabilities near 0 or 1, the estimate
        from the outcomes alone may be too small.
        """
        observed_variance = float(np.sum((self.happened - self.claimed) ** 2))
        claimed_variance = float(np.sum(self.claimed * (1 - self.claimed)))
        return math.sqrt(max(observed_variance, claimed_variance)) / len(self.claimed)

    def direction(self, under: str, over: str, claim: str, means: str) -> str:
        """Describe the deviation of the outcomes from the claims in words.

        Args:
            under: words for outcomes that are more frequent than claimed.
            over: words for outcomes that are less frequent than claimed.
            claim: name of the claim, for a deviation whose direction changes at some value of the claim.
            means: format of the mean claim and the mean outcome, for a deviation with one direction.
        """
        largest = int(np.argmax(np.abs(self.sums)))
        sum_below, sum_above = self.sums[largest], self.sums[-1] - self.sums[largest]
        name = {True: under, False: over}
        if abs(sum_above) <= abs(sum_below) / 2:
            return f"{name[bool(sum_below > 0)]}: {means.format(self.claimed.mean(), self.happened.mean())}"
        turning_claim = self.claimed[self.ends[largest]]
        return (
            f"{name[bool(sum_below > 0)]} where {claim} is at most {turning_claim:.2f}, {name[bool(sum_above > 0)]} "
            "where it is larger"
        )


def _largest_deviation(values: Float[np.ndarray, " value"]) -> tuple[float, float]:
    """Return the largest difference between the empirical and the uniform distribution function, and its position.

    The difference has a sign: it is positive if the empirical distribution function is larger.
    """
    ordered, count = np.sort(values), len(values)
    distance_above, distance_below = np.arange(1, count + 1) / count - ordered, ordered - np.arange(count) / count
    if distance_above.max() >= distance_below.max():
        return float(distance_above.max()), float(ordered[distance_above.argmax()])
    return -float(distance_below.max()), float(ordered[distance_below.argmax()])


def _combine_curves(curves: Sequence[Calibration]) -> Calibration:
    """Combine all curves: largest gap, its confidence interval, and direction of the most significant curve."""
    gap, low, high = (max(getattr(curve, name) for curve in curves) for name in ("gap", "low", "high"))
    return Calibration(gap, low, high, max(curves, key=lambda curve: (curve.low, curve.gap)).direction)


def _with_interval(gap: float, half: float, direction: str) -> Calibration:
    return Calibration(gap, max(gap - half, 0.0), min(gap + half, 1.0), direction)
