"""Metrics of predictive distributions in original units, with standard errors over rows and Monte Carlo errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scoringrules
from jaxtyping import Float, Shaped

from bnnzoo.data import Scaler
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.predictions.predictive import Moments, Sums

LEVELS = (50, 80, 90, 95)
"""Probabilities of the tested central intervals, in percent."""

QUANTILES = tuple(sorted({(1 + sign * level / 100) / 2 for level in LEVELS for sign in (-1, 1)}))
"""Probabilities of the quantiles at the ends of the central intervals in `LEVELS`."""


class SampledScores(NamedTuple):
    """Quantiles, CRPS and PIT of regression rows, from samples of their predictive distribution, in original units.

    The probabilities of the quantiles are `QUANTILES`. `crps` is the continuous ranked probability score. `below` is
    P(Y < y) and `up_to` is P(Y <= y), where Y has the predictive distribution and y is the target. `uniform` contains
    random numbers between 0 and 1.
    """

    quantiles: Float[np.ndarray, "quantile row target"]
    crps: Float[np.ndarray, "row target"]
    below: Float[np.ndarray, "row target"]
    up_to: Float[np.ndarray, "row target"]
    uniform: Float[np.ndarray, "row target"]

    @property
    def pit(self) -> Float[np.ndarray, "row target"]:
        """Randomised probability integral transform; if the prediction is correct, it is uniform on (0, 1)."""
        return self.below + self.uniform * (self.up_to - self.below)

    def coverage(self, level: float, targets: slice = slice(None)) -> Estimate:
        """Return the fraction of targets inside the central interval with the probability `level`."""
        return metrics.coverage(self.below[:, targets], self.up_to[:, targets], level)


def sampled_scores(
    samples: Float[np.ndarray, "sample row target"],
    y: Float[np.ndarray, "row target"],
    uniform: Float[np.ndarray, "row target"],
) -> SampledScores:
    """Return quantiles, CRPS and PIT of rows from samples of the predictive distribution of each row."""
    ordered = np.sort(samples, 0)
    crps = scoringrules.crps_ensemble(
        y, np.moveaxis(ordered, 0, -1), estimator="qd", sorted_ensemble=True, backend="numpy"
    )
    below, up_to = (ordered < y).mean(0), (ordered <= y).mean(0)
    return SampledScores(metrics.quantiles(ordered, QUANTILES), np.asarray(crps), below, up_to, uniform)


def sampled_scores_of_equal_rows(
    samples: Float[np.ndarray, "sample target"],
    y: Float[np.ndarray, "row target"],
    uniform: Float[np.ndarray, "row target"],
) -> SampledScores:
    """Return quantiles, CRPS and PIT of rows that all have the same predictive distribution, as in a density run."""
    ordered, count = np.sort(samples, 0), len(samples)
    quantiles = metrics.quantiles(ordered[:, None], QUANTILES)
    crps, below, up_to = np.empty(y.shape), np.empty(y.shape), np.empty(y.shape)
    for target, values in enumerate(ordered.T.astype(np.float64)):
        column = y[:, target].astype(np.float64)
        num_below, num_up_to = np.searchsorted(values, column, "left"), np.searchsorted(values, column, "right")
        below[:, target], up_to[:, target] = num_below / count, num_up_to / count
        sums = np.concatenate([[0.0], np.cumsum(values)])
        distance = ((2 * num_below - count) * column + sums[-1] - 2 * sums[num_below]) / count
        # Half of the mean distance between two samples, computed from the sorted samples.
        spread = np.sum((2 * np.arange(1, count + 1) - count - 1) * values) / count**2
        crps[:, target] = distance - spread
    quantiles_of_rows = np.broadcast_to(quantiles, (len(QUANTILES), *y.shape))
    return SampledScores(quantiles_of_rows, crps, below, up_to, uniform)


def classification(labels: Shaped[np.ndarray, " row"], moments: Moments) -> dict[str, Estimate]:
    """Return the metrics of predicted class probabilities."""
    return {
        "nll": metrics.negative_log_likelihood(moments.log_density),
        "accuracy": metrics.accuracy(labels, moments.mean),
        "confidence": metrics.mean(moments.mean.max(1)),
        "brier": metrics.brier(labels, moments.mean),
        "ece": metrics.expected_calibration_error(labels, moments.mean),
        "ece_adaptive": metrics.expected_calibration_error(labels, moments.mean, adaptive=True),
        "auroc": metrics.auroc_of_classes(labels, moments.mean),
        "entropy": metrics.mean(metrics.entropy(moments.mean)),
        "aleatoric": metrics.mean(moments.aleatoric[:, 0]),
        "epistemic": metrics.mean(moments.epistemic[:, 0]),
    }


def regression(
    y: Float[np.ndarray, "row target"],
    moments: Moments,
    scaler: Scaler,
    names: Sequence[str],
    target_sd: Float[np.ndarray, " target"],
) -> dict[str, Estimate]:
    """Return the metrics of a regression; `_standardised` marks metrics that are not in original units.

    The `_standardised` log densities and, with one target, the `_standardised` RMSE are in the units of the network.
    With several targets, a mean over targets of different units has no meaning. RMSE and MAE are therefore given for
    each target in original units. The means of RMSE and MAE over all targets, and the predictive sds, are in units of
    the sd of each target.

    Args:
        y: targets in original units.
        moments: predictive moments in the units of the network.
        scaler: conversion between the units.
        names: names of the targets.
        target_sd: standard deviations of the training targets.
    """
    scale = scaler.y_sd.astype(np.float64)
    scaled_targets = scaler.scale_targets(y)
    variance = np.maximum(moments.aleatoric + moments.epistemic, np.finfo(np.float64).tiny)
    jacobian = float(np.sum(np.log(scale)))
    nll = metrics.negative_log_likelihood(moments.log_density)
    gaussian = metrics.gaussian_negative_log_likelihood(scaled_targets, moments.mean, variance)
    centre = scaler.unscale_targets(moments.mean)
    densities = {
        "nll": nll._replace(value=nll.value + jacobian),
        "nll_moment": gaussian._replace(value=gaussian.value + jacobian),
        "nll_standardised": nll,
        "nll_moment_standardised": gaussian,
    }
    if len(names) == 1:
        return {
            **densities,
            **_errors(y, centre, moments, scale),
            "rmse_standardised": metrics.rmse(scaled_targets, moments.mean),
        }
    y, centre = np.asarray(y, np.float64), np.asarray(centre, np.float64)
    scaled_y, scaled_centre = y / target_sd, centre / target_sd
    scaled_errors = _errors(scaled_y, scaled_centre, moments, scale / target_sd)
    return {
        **densities,
        **{f"{name}_standardised": estimate for name, estimate in scaled_errors.items()},
        **_by_target(names, "rmse", lambda target: metrics.rmse(y[:, target], centre[:, target])),
        **_by_target(
            names, "rmse_standardised", lambda target: metrics.rmse(scaled_y[:, target], scaled_centre[:, target])
        ),
        **_by_target(names, "mae", lambda target: metrics.mae(y[:, target], centre[:, target])),
    }


def _errors(
    y: Float[np.ndarray, "row target"],
    centre: Float[np.ndarray, "row target"],
    moments: Moments,
    scale: Float[np.ndarray, " target"],
) -> dict[str, Estimate]:
    """Return RMSE and MAE of the predictive mean, and the two parts of the predictive sd, over rows and targets.

    Args:
        scale: factors that convert `moments` to the units of `y`.
    """
    return {
        "rmse": metrics.rmse(y, centre),
        "mae": metrics.mae(y, centre),
        "aleatoric_sd": metrics.root_mean(np.mean(moments.aleatoric * scale**2, 1)),
        "epistemic_sd": metrics.root_mean(np.mean(moments.epistemic * scale**2, 1)),
    }


def density(moments: Moments, scaler: Scaler) -> dict[str, Estimate]:
    """Return the negative log-likelihood of a density of whole rows, in original units and in units of the network."""
    nll = metrics.negative_log_likelihood(moments.log_density)
    jacobian = float(np.sum(np.log(scaler.y_sd.astype(np.float64))))
    return {"nll": nll._replace(value=nll.value + jacobian), "nll_standardised": nll}


def interval_estimates(
    scores_of_rows: SampledScores, names: Sequence[str], target_sd: Float[np.ndarray, " target"]
) -> dict[str, Estimate]:
    """Return the CRPS, and the coverage and the width of the central intervals.

    For several targets, the means of CRPS and width over the targets are in units of each target's sd. In addition, the
    result has the CRPS (in original units) and the coverage of the 90 % interval of each target.
    """
    quantiles_by_level = dict(zip(QUANTILES, scores_of_rows.quantiles, strict=True))
    has_several_targets = len(names) > 1
    unit, suffix = (target_sd, "_standardised") if has_several_targets else (np.ones(1), "")
    scores = {f"crps{suffix}": metrics.mean((scores_of_rows.crps / unit).mean(1))}
    for level in LEVELS:
        low, high = quantiles_by_level[(1 - level / 100) / 2], quantiles_by_level[(1 + level / 100) / 2]
        scores[f"coverage_{level}"] = scores_of_rows.coverage(level / 100)
        scores[f"width_{level}{suffix}"] = metrics.mean(np.mean((high - low) / unit, 1, dtype=np.float64))
    scores |= _by_target(names, "crps", lambda columns: metrics.mean(scores_of_rows.crps[:, columns].mean(1)))
    return scores | _by_target(names, "coverage_90", lambda columns: scores_of_rows.coverage(0.9, columns))


def _by_target(names: Sequence[str], metric: str, score: Callable[[slice], Estimate]) -> dict[str, Estimate]:
    """Return one metric for each target, under the name `<target>_<metric>`; empty for a single target.

    Args:
        names: names of the targets.
        metric: name of the metric.
        score: computes the metric of a slice of target columns.
    """
    target_names = names if len(names) > 1 else ()
    return {f"{name}_{metric}": score(slice(i, i + 1)) for i, name in enumerate(target_names)}


def monte_carlo_errors(sums: Sums, chains: int, score: Callable[[Moments], dict[str, Estimate]]) -> dict[str, float]:
    """Return the Monte Carlo error of each metric, by a jackknife over batches of draws and one over chains.

    The larger of the two errors is returned. The error over batches is too small if a chain stays in one region for
    longer than a batch, or never leaves its mode. The error over chains is correct in both cases.
    """
    count = len(sums.weight)
    chain = np.arange(count) * chains // count
    errors: dict[str, list[float]] = {}
    for groups in (np.arange(count), chain):
        labels = np.unique(groups)
        if len(labels) < 2:
            continue
        if min(sums.weight[groups != label].sum() for label in labels) <= 0:
            # One batch has all the weight, so the metrics cannot be computed without this batch.
            return dict.fromkeys(score(sums.moments()), math.nan)
        leave_one_out = [
            {metric: estimate.value for metric, estimate in score(sums.moments(groups != label)).items()}
            for label in labels
        ]
        for name in leave_one_out[0]:
            values = np.array([metrics_without[name] for metrics_without in leave_one_out])
            errors.setdefault(name, []).append(math.sqrt((len(labels) - 1) * float(np.var(values))))
        if len(labels) == chains:
            break
    return {name: max(values) for name, values in errors.items()}


def errors_of_batches(batches: Sequence[Mapping[str, Estimate]], chains: int) -> dict[str, float]:
    """Return the Monte Carlo error of each metric, from its values in batches of draws.

    The error is the standard error of the mean over batches, or over chains if that error is larger. With fewer than
    two batches, the result is empty.

    Args:
        batches: metrics of each batch, one chain after the other; each chain has the same number of batches.
        chains: number of chains.
    """
    if len(batches) < 2:
        return {}
    errors = {}
    for name in batches[0]:
        values = np.array([batch[name].value for batch in batches], float)
        by_chain = values.reshape(chains, -1).mean(1)
        standard_errors = [
            groups.std(ddof=1) / math.sqrt(len(groups)) for groups in (values, by_chain) if len(groups) > 1
        ]
        errors[name] = float(max(standard_errors))
    return errors
