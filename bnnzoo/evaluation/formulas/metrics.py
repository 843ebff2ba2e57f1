"""Metrics of predictions with standard errors over the rows. This module uses only NumPy and SciPy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

Rows = Float[np.ndarray, " row"]
Table = Float[np.ndarray, "row target"]
Probabilities = Float[np.ndarray, "row class"]
Labels = Int[np.ndarray, " row"]


class Estimate(NamedTuple):
    """Value of a metric, with its standard error over rows and its Monte Carlo error over draws.

    Attributes:
        value: the value.
        influence: empirical influence of each row on the value, with mean zero; None if it is unknown. The standard
            deviation of the influences divided by sqrt(rows) is the standard error over rows. The standard error of the
            difference of two metrics on the same rows follows from the difference of their influences.
        mcse: Monte Carlo standard error; None if it is unknown.
        is_fraction: whether the value is a fraction of rows. The standard error is then half of the width of Wilson's
            one-sigma interval. This width is not 0 even if all rows agree.
    """

    value: int | float
    influence: Rows | None = None
    mcse: float | None = None
    is_fraction: bool = False

    @property
    def se(self) -> float | None:
        """Standard error over rows; None if it is unknown, for a single row, or if the value is not finite."""
        if self.influence is None or len(self.influence) < 2 or not math.isfinite(self.value):
            return None
        count = len(self.influence)
        if self.is_fraction:
            # Wilson 1927 with z = 1; p (1 - p) is the variance of a variable that is 0 or 1.
            return math.sqrt(float(np.var(self.influence)) / count + 1 / (4 * count**2)) / (1 + 1 / count)
        return float(np.std(self.influence, ddof=1) / math.sqrt(count))


def flat(estimates: Mapping[str, Estimate]) -> dict[str, int | float]:
    """Return a flat dictionary with the entries NAME, NAME_se and NAME_mcse of each metric NAME.

    Errors that are unknown are left out.
    """
    numbers: dict[str, int | float] = {}
    for name, estimate in estimates.items():
        parts = {name: estimate.value, f"{name}_se": estimate.se, f"{name}_mcse": estimate.mcse}
        numbers |= {key: value for key, value in parts.items() if value is not None}
    return numbers


def quantiles(
    ordered: Float[np.ndarray, "sample row target"], levels: Sequence[float]
) -> Float[np.ndarray, "quantile row target"]:
    """Return interpolated quantiles of samples in ascending order; quantiles of equal samples are exact."""
    last = len(ordered) - 1
    interpolated = []
    for level in levels:
        lower_index = math.floor(level * last)
        fraction = np.float32(level * last - lower_index)
        low, high = ordered[lower_index], ordered[min(lower_index + 1, last)]
        interpolated.append(low + fraction * (high - low))
    return np.stack(interpolated)


def mean(values: Float[Any, " row"]) -> Estimate:
    """Return the mean of one value per row."""
    values = np.asarray(values, np.float64)
    value = float(np.mean(values))
    return Estimate(value, values - value if math.isfinite(value) else np.full(len(values), np.nan))


def root_mean(squares: Float[Any, " row"]) -> Estimate:
    """Return the square root of a mean over rows, with its standard error by the delta method."""
    mean_square = mean(squares)
    value = math.sqrt(max(mean_square.value, 0.0))
    assert mean_square.influence is not None
    return mean_square._replace(
        value=value, influence=mean_square.influence / (2 * value) if value else mean_square.influence
    )


def negative_log_likelihood(log_density: Rows) -> Estimate:
    """Return the negative log-likelihood -mean_i log p(y_i | x_i, data), the mean over the rows i.

    Args:
        log_density: log density of each row under the predictive distribution, the mixture over all draws.
    """
    return mean(-np.asarray(log_density, np.float64))


def gaussian_negative_log_likelihood(y: Table, centre: Table, variance: Table) -> Estimate:
    """Return the mean negative log density of the rows under a Gaussian with the predictive mean and variance.

    The log density of a row is the sum over its targets.
    """
    variance = np.asarray(variance, np.float64)
    terms = np.log(2 * np.pi * variance) + (np.asarray(y, np.float64) - centre) ** 2 / variance
    return mean(0.5 * terms.sum(1))


def rmse(y: Table, centre: Table) -> Estimate:
    """Return the root mean squared error of the predictive mean, over rows and targets."""
    return root_mean(np.mean((np.asarray(y, np.float64) - centre) ** 2, 1))


def mae(y: Table, centre: Table) -> Estimate:
    """Return the mean absolute error of the predictive mean, over rows and targets."""
    return mean(np.mean(np.abs(np.asarray(y, np.float64) - centre), 1))


def coverage(below: Table, up_to: Table, level: float) -> Estimate:
    """Return the fraction of targets inside their central interval.

    An interval of counts that includes both ends contains more than its nominal probability even for a correct
    prediction. A target at an end is therefore inside with the probability that its randomised probability integral
    transform, uniform between `below` and `up_to`, is inside (Czado, Gneiting and Held 2009, Biometrics 65). The result
    uses these probabilities and no random numbers.

    Args:
        below: predictive probability of values below each target, P(Y < y).
        up_to: predictive probability of values up to each target, P(Y <= y); equal to `below` for densities.
        level: probability of the interval.
    """
    tie = up_to - below
    overlap = np.minimum(up_to, (1 + level) / 2) - np.maximum(below, (1 - level) / 2)
    part_inside = np.clip(overlap, 0, None) / np.where(tie > 0, tie, 1)
    inside = np.where(tie > 0, part_inside, np.abs(2 * below - 1) <= level)
    return mean(np.mean(inside, 1))._replace(is_fraction=True)


def pit_distance(pit: Table) -> float:
    """Return the Kolmogorov-Smirnov distance of the PIT of a target from uniform; the largest of all targets."""
    return max(float(stats.kstest(pit[:, i], "uniform").statistic) for i in range(pit.shape[1]))


def accuracy(labels: Labels, probabilities: Probabilities) -> Estimate:
    """Return the fraction of rows whose most probable class is the label."""
    return mean((probabilities.argmax(1) == labels).astype(np.float64))._replace(is_fraction=True)


def brier(labels: Labels, probabilities: Probabilities) -> Estimate:
    """Return the mean squared distance of the probabilities from the one-hot label, from 0 to 2 (Brier 1950)."""
    one_hot = np.eye(probabilities.shape[1])[labels]
    return mean(np.sum((probabilities - one_hot) ** 2, 1))


def expected_calibration_error(
    labels: Labels, probabilities: Probabilities, bins: int = 15, *, adaptive: bool = False
) -> Estimate:
    """Return the mean over rows of the absolute difference between confidence and accuracy in the bin of the row.

    The rows are divided into bins by their confidence. The bins have equal width (Guo et al. 2017) or, if `adaptive`,
    equally many rows (Nixon et al. 2019). Even for a calibrated model, the expected value is not 0, but of the order of
    sqrt(bins / rows).
    """
    confidence = np.asarray(probabilities.max(1), np.float64)
    gap = (probabilities.argmax(1) == labels) - confidence
    if adaptive:
        index = np.empty(len(gap), int)
        order = np.argsort(confidence, kind="stable")
        index[order] = np.arange(len(gap)) * bins // len(gap)
    else:
        index = np.minimum((confidence * bins).astype(int), bins - 1)
    sign = np.sign(np.bincount(index, gap, minlength=bins))
    return mean(sign[index] * gap)


def auroc(scores: Rows, positive: Bool[np.ndarray, " row"]) -> Estimate:
    """Return the area under the ROC curve (AUROC).

    The AUROC is the probability that a random positive row has a higher score than a random negative row. Equal scores
    count one half. The standard error uses the placement values of DeLong, DeLong and Clarke-Pearson (1988). The value
    is NaN if there are no positive or no negative rows.
    """
    scores = np.asarray(scores, np.float64)
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        return Estimate(math.nan, np.full(len(scores), np.nan))
    placement = np.empty(len(scores))
    ranks = stats.rankdata(scores)
    placement[positive] = (ranks[positive] - stats.rankdata(scores[positive])) / num_negative
    placement[~positive] = 1 - (ranks[~positive] - stats.rankdata(scores[~positive])) / num_positive
    value = float(np.mean(placement[positive]))
    class_fraction = np.where(positive, num_positive, num_negative) / len(scores)
    return Estimate(value, (placement - value) / class_fraction)


def auroc_of_classes(labels: Labels, probabilities: Probabilities) -> Estimate:
    """Return the AUROC of class probabilities.

    With two classes, the result is the AUROC of the second class. With more classes, each observed class is compared
    with all other classes, and the result is the mean of these AUROCs.
    """
    classes = [1] if probabilities.shape[1] == 2 else list(np.unique(labels))
    class_estimates = [auroc(probabilities[:, label], labels == label) for label in classes]
    influences: Any = [estimate.influence for estimate in class_estimates]
    return Estimate(float(np.mean([estimate.value for estimate in class_estimates])), np.mean(influences, 0))


def false_positive_rate(
    inside: Float[np.ndarray, " inside"], outside: Float[np.ndarray, " outside"], sensitivity: float = 0.95
) -> float:
    """Return the fraction of unfamiliar rows (`outside`) that pass as familiar at a given sensitivity.

    Scores increase with unfamiliarity. The threshold is the `sensitivity` quantile of the scores of the familiar rows
    (`inside`), and rows with a score at or below the threshold pass as familiar. This is the FPR at 95 % TPR of Liang,
    Li and Srikant 2018.
    """
    limit = np.quantile(inside, sensitivity, method="inverted_cdf")
    return float(np.mean(outside <= limit))


def entropy(probabilities: Probabilities) -> Rows:
    """Return the entropy -sum_c p_c log p_c of the class probabilities p_c of each row, in nats."""
    probabilities = np.asarray(probabilities, np.float64)
    return -np.sum(probabilities * np.log(np.maximum(probabilities, np.finfo(np.float64).tiny)), 1)
