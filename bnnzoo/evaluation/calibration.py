"""How far a prediction is from calibrated, over the whole curve: one size, its interval, and which way it is off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special

LEVEL = 0.99
"""How sure it is that the true gap lies in its interval.

All test rows share what the training rows happened to be, which no interval over test rows knows: at 0.95 one in thirty
right runs would be called wrong, at 0.99 less than one in a hundred (`tests/test_calibration.py`)."""
MARGIN = 0.02
"""Tolerance: a prediction is not calibrated if its gap certainly, by its interval, exceeds this."""
COARSEST = 0.15
"""The largest gap that the interval may leave open in a prediction that is called calibrated."""


def half_width(rows: int, targets: int) -> float:
    """Half of the interval of a gap, by Dvoretzky, Kiefer and Wolfowitz: shared by two curves of each target."""
    return math.sqrt(math.log(4 * targets / (1 - LEVEL)) / (2 * rows))


class Calibration(NamedTuple):
    """The largest distance between what was claimed and what happened, along the whole curve, as a share of rows."""

    gap: float
    low: float
    high: float
    """`low` to `high` holds the gap of all rows there could be, with 99 % probability or more."""
    direction: str
    """Which way it is off, where it is off most."""


def of_intervals(pit: Float[np.ndarray, "row target"], names: Sequence[str] = ()) -> Calibration:
    """From randomised probability integral transforms, which are uniform if the prediction is right; counts too.

    Two curves a target: the share of rows inside central intervals against their probability (the width), and the
    distribution function of the transform (the place). Targets are not pooled, where one too wide would make up for one
    too narrow: the worst is told. The interval is that of Dvoretzky, Kiefer and Wolfowitz with Massart's constant
    (1990), the error shared by all curves.

    Args:
        names: of the targets.
    """
    rows, targets = pit.shape
    half = half_width(rows, targets)
    curves = []
    for number, values in enumerate(pit.T):
        width, wide_at = _largest(np.abs(2 * values - 1))
        place, above = _largest(values)
        of = f" of {names[number] if names else f'target {number + 1}'}" if targets > 1 else ""
        if abs(width) >= abs(place):
            direction = f"intervals{of} too {'wide' if width > 0 else 'narrow'}"
            direction += f": those of {100 * wide_at:.0f} % hold {100 * (wide_at + width):.0f} %"
        else:
            direction = f"predictions{of} too {'high' if place > 0 else 'low'}"
            direction += f": {100 * (above + place):.0f} % of targets lie below their {100 * above:.0f} % quantile"
        curves.append(_with_interval(max(abs(width), abs(place)), half, direction))
    return _worst(curves)


def of_classes(
    labels: Int[np.ndarray, " row"], probabilities: Float[np.ndarray, "row class"], names: Sequence[str] = ()
) -> Calibration:
    """From confidence and accuracy, and from each class's probability and share: the largest cumulative difference.

    G = max_k |sum_{i <= k} (happened_i - claimed_i)| / rows, without bins (Arrieta-Ibarra, Gujral, Tannen, Tygert and
    Xu 2022, J. Mach. Learn. Res. 23(351)), rows in order of what was claimed: that the likeliest class is the label,
    and that each class is. A class claimed too often everywhere is too sure where it is the likeliest and not sure
    enough elsewhere, which confidence alone takes for one another. Where the prediction is right each sum is a
    martingale: its supremum is about that of Brownian motion. The error is shared by all curves.

    Args:
        names: of the classes.
    """
    count = probabilities.shape[1]
    # Of two classes one's curve is the other's, upside down.
    classes = range(1, 2) if count == 2 else range(count)
    supremum = float(special.ndtri(1 - (1 - LEVEL) / (4 * (1 + len(classes)))))
    sure = _Cumulative.of(probabilities.max(1), probabilities.argmax(1) == labels)
    words = sure.direction("not sure enough", "too sure", "its confidence", "{:.1%} sure on average, right in {:.1%}")
    # Where next to nothing should happen and nothing did, there is no spread to tell how far off it may be: Bernstein's
    # second term, a rule of three.
    unseen = supremum**2 / (2 * len(labels))
    curves = [_with_interval(sure.gap, supremum * sure.spread + unseen, words)]
    for number in classes:
        one = _Cumulative.of(probabilities[:, number], labels == number)
        words = one.direction(
            "claimed too seldom", "claimed too often", "its probability", "{:.1%} on average, seen in {:.1%}"
        )
        name = names[number] if names else str(number)
        curves.append(_with_interval(one.gap, supremum * one.spread + unseen, f"class {name} {words}"))
    worst = _worst(curves)
    # What is off in confidence is told so, for it speaks of all classes.
    return worst._replace(direction=curves[0].direction) if curves[0].low > MARGIN else worst


class _Cumulative(NamedTuple):
    """Sums of what happened less what was claimed, over the rows up to each claim."""

    claimed: Float[np.ndarray, " row"]
    """In order."""
    happened: Float[np.ndarray, " row"]
    ends: Int[np.ndarray, " step"]
    """The last row of each claim: within equal ones the order of rows means nothing."""
    sums: Float[np.ndarray, " step"]

    @classmethod
    def of(cls, claimed: Float[np.ndarray, " row"], happened: Bool[np.ndarray, " row"]) -> _Cumulative:
        order = np.argsort(claimed, kind="stable")
        ordered, seen = np.asarray(claimed, np.float64)[order], np.asarray(happened, np.float64)[order]
        ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
        return cls(ordered, seen, ends, np.cumsum(seen - ordered)[ends] / len(ordered))

    @property
    def gap(self) -> float:
        return float(np.max(np.abs(self.sums)))

    @property
    def spread(self) -> float:
        """The larger of what was seen and what was claimed: a share near 0 or 1 looks surer than it is."""
        seen, said = np.sum((self.happened - self.claimed) ** 2), np.sum(self.claimed * (1 - self.claimed))
        return math.sqrt(max(float(seen), float(said))) / len(self.claimed)

    def direction(self, under: str, over: str, claim: str, means: str) -> str:
        """`under` where more happened than was claimed, `over` where less did; where both, up to which claim."""
        worst = int(np.argmax(np.abs(self.sums)))
        below, above = self.sums[worst], self.sums[-1] - self.sums[worst]
        name = {True: under, False: over}
        if abs(above) <= abs(below) / 2:
            return f"{name[bool(below > 0)]}: {means.format(self.claimed.mean(), self.happened.mean())}"
        at = self.claimed[self.ends[worst]]
        return f"{name[bool(below > 0)]} where {claim} is up to {at:.2f}, {name[bool(above > 0)]} above"


def _largest(values: Float[np.ndarray, " value"]) -> tuple[float, float]:
    """Where the empirical distribution function is farthest from the uniform one: by how much, with sign, and where."""
    ordered, count = np.sort(values), len(values)
    over, under = np.arange(1, count + 1) / count - ordered, ordered - np.arange(count) / count
    if over.max() >= under.max():
        return float(over.max()), float(ordered[over.argmax()])
    return -float(under.max()), float(ordered[under.argmax()])


def _worst(curves: Sequence[Calibration]) -> Calibration:
    """One for all curves: the largest gap, an interval that holds it, the direction of the curve surest to be off."""
    gap, low, high = (max(getattr(curve, name) for curve in curves) for name in ("gap", "low", "high"))
    return Calibration(gap, low, high, max(curves, key=lambda one: (one.low, one.gap)).direction)


def _with_interval(gap: float, half: float, direction: str) -> Calibration:
    return Calibration(gap, max(gap - half, 0.0), min(gap + half, 1.0), direction)
