"""Metrics of predictions, one number each, with standard errors over the rows. NumPy and SciPy only."""

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
    """A number with its error over rows and its error over draws; an unknown error is None.

    `influence` is the contribution of each row, with mean zero. The standard error over rows is its standard deviation
    divided by sqrt(rows). The error of the difference of two metrics on the same rows follows from the difference of
    their influences. For a fraction of rows (`share`), the error is half of Wilson's one-sigma interval, which is not 0
    if all rows agree. `mcse` is the Monte Carlo standard error.
    """

    value: int | float
    influence: Rows | None = None
    mcse: float | None = None
    is_fraction: bool = False

    @property
    def se(self) -> float | None:
        """Standard error over rows; None for a single row or an infinite value."""
        if self.influence is None or len(self.influence) < 2 or not math.isfinite(self.value):
            return None
        count = len(self.influence)
        if self.is_fraction:
            # Wilson 1927 with z = 1; p (1 - p) is the variance of a variable that is 0 or 1.
            return math.sqrt(float(np.var(self.influence)) / count + 1 / (4 * count**2)) / (1 + 1 / count)
        return float(np.std(self.influence, ddof=1) / math.sqrt(count))


def flat(estimates: Mapping[str, Estimate]) -> dict[str, int | float]:
    """Return a flat dictionary, where NAME is followed by NAME_se and NAME_mcse if they are known."""
    numbers: dict[str, int | float] = {}
    for name, estimate in estimates.items():
        parts = {name: estimate.value, f"{name}_se": estimate.se, f"{name}_mcse": estimate.mcse}
        numbers |= {key: value for key, value in parts.items() if value is not None}
    return numbers


def quantiles(
    ordered: Float[np.ndarray, "sample row target"], levels: Sequence[float]
) -> Float[np.ndarray, "quantile row target"]:
    """Return interpolated quantiles of ascending samples; the quantile of equal samples is exactly that sample."""
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
    """Return the root of a mean, with its error by the delta method."""
    mean_square = mean(squares)
    value = math.sqrt(max(mean_square.value, 0.0))
    assert mean_square.influence is not None
    return mean_square._replace(
        value=value, influence=mean_square.influence / (2 * value) if value else mean_square.influence
    )


def negative_log_likelihood(log_density: Rows) -> Estimate:
    """Return -mean_i log p(y_i | x_i, data), with the pointwise predictive density of the mixture over draws."""
    return mean(-np.asarray(log_density, np.float64))


def gaussian_negative_log_likelihood(y: Table, centre: Table, variance: Table) -> Estimate:
    """Return the negative log-likelihood of a Gaussian with the predictive mean and variance, summed over targets."""
    variance = np.asarray(variance, np.float64)
    terms = np.log(2 * np.pi * variance) + (np.asarray(y, np.float64) - centre) ** 2 / variance
    return mean(0.5 * terms.sum(1))


def rmse(y: Table, centre: Table) -> Estimate:
    """Return the root mean squared error of the predictive mean, over rows and targets."""
    return root_mean(np.mean((np.asarray(y, np.float64) - centre) ** 2, 1))


def mae(y: Table, centre: Table) -> Estimate:
    """Return the mean absolute error, over rows and targets."""
    return mean(np.mean(np.abs(np.asarray(y, np.float64) - centre), 1))


def coverage(pit: Table, level: float) -> Estimate:
    """Return the fraction of targets inside their central interval, from their probability integral transforms.

    The transforms are randomised at ties, because a closed interval of counts holds more than its nominal probability
    even for a correct prediction.
    """
    return mean(np.mean(np.abs(2 * pit - 1) <= level, 1))._replace(is_fraction=True)


def pit_distance(pit: Table) -> float:
    """Return the Kolmogorov-Smirnov distance of probability integral transforms from uniform, of the worst target."""
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
    """Return the mean gap between confidence and accuracy over bins of confidence.

    Bins have equal width (Guo et al. 2017) or, if `adaptive`, equally many rows (Nixon et al. 2019). Both values are
    positive even for a calibrated model, by about sqrt(bins / rows).
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
    """Return the area under the ROC curve: P(a positive row scores higher than a negative one), ties count one half.

    The error uses the placement values of DeLong, DeLong and Clarke-Pearson (1988). The value is NaN unless both kinds
    of rows exist.
    """
    scores = np.asarray(scores, np.float64)
    count, negative = int(positive.sum()), int((~positive).sum())
    if not count or not negative:
        return Estimate(math.nan, np.full(len(scores), np.nan))
    placement = np.empty(len(scores))
    ranks = stats.rankdata(scores)
    placement[positive] = (ranks[positive] - stats.rankdata(scores[positive])) / negative
    placement[~positive] = 1 - (ranks[~positive] - stats.rankdata(scores[~positive])) / count
    value = float(np.mean(placement[positive]))
    class_fraction = np.where(positive, count, negative) / len(scores)
    return Estimate(value, (placement - value) / class_fraction)


def auroc_of_classes(labels: Labels, probabilities: Probabilities) -> Estimate:
    """Return the AUROC of the second of two classes, or with more classes their mean AUROC (one against the others)."""
    classes = [1] if probabilities.shape[1] == 2 else list(np.unique(labels))
    class_estimates = [auroc(probabilities[:, label], labels == label) for label in classes]
    influences: Any = [estimate.influence for estimate in class_estimates]
    return Estimate(float(np.mean([estimate.value for estimate in class_estimates])), np.mean(influences, 0))


def false_positive_rate(
    inside: Float[np.ndarray, " inside"], outside: Float[np.ndarray, " outside"], sensitivity: float = 0.95
) -> float:
    """Return the fraction of `outside` scores at or below the `sensitivity` quantile of `inside` scores.

    Scores increase with unfamiliarity, so these outside rows pass as familiar. Liang, Li and Srikant 2018: FPR at 95 %
    TPR.
    """
    limit = np.quantile(inside, sensitivity, method="inverted_cdf")
    return float(np.mean(outside <= limit))


def entropy(probabilities: Probabilities) -> Rows:
    """Return -sum_c p_c log p_c of each row, in nats."""
    probabilities = np.asarray(probabilities, np.float64)
    return -np.sum(probabilities * np.log(np.maximum(probabilities, np.finfo(np.float64).tiny)), 1)
