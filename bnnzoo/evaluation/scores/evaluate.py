"""Evaluation of predictions: all metrics of a set of rows, and the predictions that are stored in the run file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped, UInt32

from bnnzoo.data.columns.bounds import uncensored_rows, uncensored_targets
from bnnzoo.data.rows import rounding
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.formulas import calibration_distance, metrics
from bnnzoo.evaluation.formulas.calibration_distance import Calibration
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.predictions import noise_scale, per_draw, predictive, predictive_samples
from bnnzoo.evaluation.predictions.predictive import Moments
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.scores import count_tests, row_scores
from bnnzoo.finding import spell_settings, spelling
from bnnzoo.store import schema

_UNEVEN = 0.1
"""Largest difference, in nats per row, at which a density of rounded targets counts as smooth.

The difference is the absolute value of the mean over rows of log(density * rounding step) - log(probability of the
rounding interval).
"""


class Evaluation(NamedTuple):
    """All metrics of a set of rows, and the largest gap of the calibration curve of these rows."""

    estimates: dict[str, Estimate]
    calibration: Calibration


def of_rows(predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."]) -> Evaluation:
    """Compute the metrics of the predictions at `x` for the targets `y`.

    Each metric has a standard error over the rows and a Monte Carlo error over the draws, unless these errors are
    unknown.

    If some targets are censored, `nll` uses the density of the known values and the probability of the censored
    intervals. All other metrics, except `nll_standardised`, use only the rows without censored targets. The metric
    `censored` is the fraction of the rows that have a censored target.

    Raises:
        UsageError: if every row has a censored target.
    """
    if y.ndim == 3:
        return _of_censored(predictor, x, y)
    names = predictor.signature.target_names
    target_sd = noise_scale.target_sd(predictor)

    def score(moments: Moments) -> dict[str, Estimate]:
        if predictor.classifies:
            return row_scores.classification(y, moments)
        if predictor.is_density:
            return row_scores.density(moments, predictor.scaler)
        return row_scores.regression(y, moments, predictor.scaler, names, target_sd)

    moments, estimates = _scores_of_moments(predictor, x, y, score)
    if predictor.classifies:
        curve = calibration_distance.of_classes(y, moments.mean, predictor.signature.class_names)
    else:
        rows, *batches = _sampled_scores_in_batches(predictor, x, y)
        batch_scores = [row_scores.interval_estimates(batch, names, target_sd) for batch in batches]
        errors = row_scores.errors_of_batches(batch_scores, predictor.record.shape[0])
        sampled = {
            name: estimate._replace(mcse=errors.get(name))
            for name, estimate in row_scores.interval_estimates(rows, names, target_sd).items()
        }
        estimates |= count_tests.of_rows(predictor, x, y, moments)
        estimates |= _rounded_likelihood(predictor, x, y, estimates["nll"])
        estimates |= sampled | {"pit_ks": Estimate(metrics.pit_distance(rows.pit))}
        curve = calibration_distance.of_intervals(rows.pit, names)
    gaps = {"calibration_gap": curve.gap, "calibration_gap_low": curve.low, "calibration_gap_high": curve.high}
    return Evaluation(estimates | {name: Estimate(value) for name, value in gaps.items()}, curve)


def _scores_of_moments(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    y: Shaped[np.ndarray, "row ..."],
    score: Callable[[Moments], dict[str, Estimate]],
) -> tuple[Moments, dict[str, Estimate]]:
    """Return the predictive moments of the rows, and the metrics that `score` computes, with Monte Carlo errors."""
    sums = predictor.sums(x, y)
    moments, errors = sums.moments(), row_scores.monte_carlo_errors(sums, predictor.record.shape[0], score)
    return moments, {name: estimate._replace(mcse=errors.get(name)) for name, estimate in score(moments).items()}


def _rounded_likelihood(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."], nll: Estimate
) -> dict[str, Estimate]:
    """Return `nll_rounded`, minus the mean log probability of the rounding interval, if all targets are rounded.

    The rounding interval of a target contains all numbers that are rounded to this target. For counts, `nll_rounded`
    equals `nll`, because their distribution is discrete. The result is empty for a density, if a target is not rounded,
    or if the distribution of the targets has no interval probabilities.
    """
    steps = predictor.rounding_steps
    if predictor.is_density or not steps.all():
        return {}
    origin = uncensored_targets(predictor.record.array("observed_data", "y"))
    if not all(rounding.is_on_grid(y[:, i], float(step), float(origin[0, i])) for i, step in enumerate(steps)):
        return {}
    if predictor.has_continuous_targets:
        try:
            log_probabilities = np.concatenate(predictor.row_map(_log_rounded, predictor, x, y))
            return {"nll_rounded": metrics.negative_log_likelihood(log_probabilities)}
        except UsageError:  # a plugin's distribution that cannot give the probability of an interval
            return {}
    return {"nll_rounded": nll} if predictor.has_counts and (steps == 1).all() else {}


def _log_rounded(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Float[np.ndarray, "row target"]
) -> Float[np.ndarray, " row"]:
    """Return, for each row, the log predictive probability of the numbers that are rounded to the targets."""
    half_step = predictor.rounding_steps / 2
    inputs = predictor.inputs(x)
    low, high = (predictor.scaler.scale_targets(end) for end in (y - half_step, y + half_step))
    weights, count = predictor.record.weights, len(predictor.thetas)
    log_weights = np.full(count, -np.log(count)) if weights is None else np.log(np.maximum(weights, 1e-300))

    def log_sum(thetas: Float[np.ndarray, "piece both"], first: int) -> Float[np.ndarray, "1 row"]:
        piece_weights = log_weights[first : first + len(thetas)]
        return np.asarray(per_draw.log_intervals(predictor.posterior, thetas, piece_weights, inputs, low, high))[None]

    return np.logaddexp.reduce(predictor.in_pieces(np.arange(count), log_sum).astype(np.float64), 0)


def rounding_caveat(predictor: Predictor, estimates: Mapping[str, Estimate]) -> str:
    """Explain why `nll` is meaningless for rounded targets; return an empty text if `nll` has a meaning.

    The metric has a meaning if the targets are not rounded, or if the density is smooth. If the density is smooth, the
    probability of a rounding interval is about the density times the rounding step.
    """
    if "nll_rounded" not in estimates or not predictor.has_continuous_targets:
        return ""
    smooth = estimates["nll"].value - float(np.sum(np.log(predictor.rounding_steps)))
    if abs(smooth - estimates["nll_rounded"].value) <= _UNEVEN:
        return ""
    names = ", ".join(predictor.signature.target_names)
    steps = ", ".join(f"{step:g}" for step in predictor.rounding_steps)
    return spell_settings(f"nll: the values of {names} are multiples of {steps}: {noise_scale.NO_SCORE}", spelling())


def _of_censored(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Float[np.ndarray, "row target bound"]
) -> Evaluation:
    """Compute the metrics of rows, some of which have censored targets.

    Raises:
        UsageError: if every row has a censored target.
    """
    is_known = _known_rows(y)
    estimates, curve = of_rows(predictor, x[is_known], y[is_known][..., 0])
    estimates = {name: value for name, value in estimates.items() if name != "nll_rounded"}  # of the known rows only
    units = predictor.scaler.log_units(y)

    def score(moments: Moments) -> dict[str, Estimate]:
        return {
            "nll": metrics.negative_log_likelihood(moments.log_density - units),
            "nll_standardised": metrics.negative_log_likelihood(moments.log_density),
        }

    _, all_rows = _scores_of_moments(predictor, x, y, score)
    return Evaluation(estimates | all_rows | {"censored": Estimate(float(np.mean(~is_known)))}, curve)


def _known_rows(y: Float[np.ndarray, "row target bound"]) -> Bool[np.ndarray, " row"]:
    """Return the mask of the rows without censored targets.

    Raises:
        UsageError: if every row has a censored target.
    """
    is_known = uncensored_rows(y)
    if not is_known.any():
        raise UsageError(
            "every row has a censored target, so no error or coverage can be computed; give other rows with [[data]]"
        )
    return is_known


def sampled_scores(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."]
) -> row_scores.SampledScores:
    """Return quantiles, CRPS and PIT of regression rows, from samples of their predictive distribution.

    Rows with censored targets are left out.

    Raises:
        UsageError: if every row has a censored target.
    """
    return _sampled_scores_in_batches(predictor, x, y, apart=False)[0]


def _sampled_scores_in_batches(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."], *, apart: bool = True
) -> list[row_scores.SampledScores]:
    """Return the result of `sampled_scores` for all draws, followed by the results for about twenty batches of draws.

    The batches are left out if the draws have weights, or if `apart` is false.
    """
    if y.ndim == 3:
        is_known = _known_rows(y)
        x, y = x[is_known], y[is_known][..., 0]
    uniform = np.random.default_rng(0).uniform(size=y.shape)
    apart = apart and predictor.record.weights is None
    batches = [slice(None), *(predictive.batches(*predictor.record.shape) if apart else ())]
    if predictor.is_density:
        values = predictive_samples.density_samples(predictor)
        num_draws = len(predictor.thetas)
        return [
            row_scores.sampled_scores_of_equal_rows(_batch_samples(values, num_draws, batch), y, uniform)
            for batch in batches
        ]
    numbers = np.arange(len(x), dtype=np.uint32)
    shards = predictor.row_map(functools.partial(_score_rows, batches=batches), predictor, x, y, uniform, numbers)
    return [_join_rows(parts) for parts in zip(*shards, strict=True)]


def _score_rows(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    y: Float[np.ndarray, "row target"],
    uniform: Float[np.ndarray, "row target"],
    numbers: UInt32[np.ndarray, " row"],
    *,
    batches: Sequence[slice],
) -> list[row_scores.SampledScores]:
    """Return quantiles, CRPS and PIT of rows, for each batch of draws.

    Args:
        predictor: the predictor of a run.
        x: inputs.
        y: targets.
        uniform: random numbers for the PIT of discrete distributions.
        numbers: seeds of the rows.
        batches: the batches of draws.
    """
    parts: list[list[row_scores.SampledScores]] = [[] for _ in batches]
    for rows, values in predictive_samples.samples(predictor, x, numbers):
        for batch, part in zip(batches, parts, strict=True):
            samples = _batch_samples(values, len(predictor.thetas), batch)
            part.append(row_scores.sampled_scores(samples, y[rows], uniform[rows]))
    return [_join_rows(part) for part in parts]


def _batch_samples(values: np.ndarray, num_draws: int, batch: slice) -> np.ndarray:
    """Return the samples of a batch of draws. The samples of one draw are consecutive."""
    samples_per_draw = len(values) // num_draws
    return values[slice(*(None if end is None else end * samples_per_draw for end in (batch.start, batch.stop)))]


def _join_rows(parts: Sequence[row_scores.SampledScores]) -> row_scores.SampledScores:
    """Return the scores of all rows, given the scores of blocks of rows."""
    quantiles, *rest = zip(*parts, strict=True)
    return row_scores.SampledScores(np.concatenate(quantiles, 1), *map(np.concatenate, rest))


def groups(
    predictor: Predictor, x_test: Shaped[np.ndarray, "row ..."], y_test: Shaped[np.ndarray, "row ..."]
) -> Mapping[str, Mapping[str, np.ndarray]]:
    """Return the predictive groups of ArviZ's schema, in original units.

    The test rows have the groups `predictions`, `predictions_constant_data` (inputs and targets) and
    `predictions_log_likelihood`. If the file has training rows, they have the groups `posterior_predictive` and
    `log_likelihood`. If a group would exceed 32 MB, all groups use only every k-th draw of each chain.
    """
    record = predictor.record
    x, y = record.training_rows(None if record.has_training_rows else 0)
    kept_draws = record.kept_draws(max(len(x), len(x_test)) * max(1, len(predictor.signature.target_names)))
    seed = int(record.attributes["seed"])

    def sampled(x: Shaped[np.ndarray, "row ..."]) -> dict[str, np.ndarray]:
        return {
            "y": schema.observed(predictive_samples.sample_each(predictor, x, kept_draws, seed=seed)),
            "draw": kept_draws,
        }

    def densities(x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."]) -> dict[str, np.ndarray]:
        return {"y": predictor.log_likelihoods(x, y, kept_draws), "draw": kept_draws}

    groups_by_name = {
        schema.PREDICTIONS: sampled(x_test),
        schema.PREDICTIONS_LOG_LIKELIHOOD: densities(x_test, y_test),
        schema.PREDICTIONS_CONSTANT_DATA: {"x": x_test, "y": schema.observed(y_test)},
    }
    if len(x):
        groups_by_name |= {schema.POSTERIOR_PREDICTIVE: sampled(x), schema.LOG_LIKELIHOOD: densities(x, y)}
    return groups_by_name
