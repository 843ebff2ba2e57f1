"""Split conformal intervals and sets: Bayesian intervals that are widened or narrowed according to calibration rows.

Regression uses conformalised quantile regression in units of the predictive sd (Romano, Patterson and Candes 2019;
Sesia and Candes 2020). The score of a calibration row is max(lower - y, y - upper) / sd, with the Bayesian interval
from lower to upper. Both ends of a new interval move outwards by a quantile of the scores times the sd of the new row.
For classes, the score is 1 - p(label | x) (Sadinle, Lei and Wasserman 2019). If the calibration rows are exchangeable
with the new rows, an interval or set contains the target with probability at least the level, for any model.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.evaluation.predictions import mixture
from bnnzoo.evaluation.predictions.predictive_distribution import PredictiveDistribution
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.finding import setting


def intervals(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    calibration: tuple[Shaped[np.ndarray, "calibration ..."], Float[np.ndarray, "calibration target"]],
    level: float,
) -> tuple[Float[np.ndarray, "row target"], Float[np.ndarray, "row target"]]:
    """Return the lower and the upper ends of each target's interval, in original units.

    The level holds for each target separately. If the targets are whole numbers, the ends are whole numbers too. If the
    lower end would exceed the upper end, both ends are set to their midpoint. The midpoint need not be a whole number.

    Raises:
        UsageError: if there are too few calibration rows for the level.
    """
    rank = _rank(len(calibration[1]), level)
    low, high, sd = _bayesian(predictor, calibration[0], level)
    y = np.asarray(calibration[1], np.float64)
    threshold = np.sort(np.maximum(low - y, y - high) / sd, 0)[rank - 1]
    low, high, sd = _bayesian(predictor, x, level)
    lower, upper = low - threshold * sd, high + threshold * sd
    if mixture.is_discrete(predictor, x):
        lower, upper = np.ceil(lower - 1e-6), np.floor(upper + 1e-6)
        lower = np.where(low >= 0, np.maximum(lower, 0.0), lower)
    middle = (lower + upper) / 2
    crossed = lower > upper  # the Bayesian interval had to be narrowed by more than its width
    return np.where(crossed, middle, lower), np.where(crossed, middle, upper)


def sets(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    calibration: tuple[Shaped[np.ndarray, "calibration ..."], Shaped[np.ndarray, " calibration"]],
    level: float,
) -> Bool[np.ndarray, "row class"]:
    """Return whether each class is in the conformal set of each row; the likeliest class is always in the set.

    Raises:
        UsageError: if there are too few calibration rows for the level.
    """
    rank = _rank(len(calibration[1]), level)
    label_probabilities = predictor.moments(calibration[0]).mean[np.arange(len(calibration[1])), calibration[1]]
    probabilities = predictor.moments(x).mean
    members = probabilities >= np.sort(label_probabilities)[::-1][rank - 1]
    members[np.arange(len(x)), probabilities.argmax(1)] = True
    return members


def least_rows(level: float) -> int:
    """Return the smallest number of calibration rows for the level."""
    return math.ceil(round(level / (1 - level), 6))


def _bayesian(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], level: float
) -> tuple[Float[np.ndarray, "row target"], ...]:
    """Return the lower ends, the upper ends and the predictive sds of the central Bayesian intervals."""
    distribution, shape = PredictiveDistribution(predictor, x), (len(x), len(predictor.signature.target_names))
    low, high = distribution.interval(level).reshape(2, *shape)
    return low, high, np.maximum(distribution.sd.reshape(shape), np.finfo(np.float32).tiny)


def _rank(count: int, level: float) -> int:
    """Return the rank of the score that is used as the threshold; the lowest score has rank 1.

    Raises:
        UsageError: if the rank exceeds the number of calibration rows.
    """
    rank = math.ceil((count + 1) * level - 1e-9)
    if rank > count:
        raise UsageError(
            f"{setting('level', f'{level:g}')}: needs at least {least_rows(level)} calibration rows (got {count}); "
            "use a lower level, or give more calibration rows"
        )
    return rank
