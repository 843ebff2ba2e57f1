"""How good a run's predictions are: every metric of some rows, and what a file keeps of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo.data.bounds import known_rows
from bnnzoo.errors import UsageError
from bnnzoo.evaluation import calibration, metrics, scores
from bnnzoo.evaluation.calibration import Calibration
from bnnzoo.evaluation.metrics import Estimate
from bnnzoo.evaluation.predictive import Moments
from bnnzoo.evaluation.predictor import Predictor


class Evaluation(NamedTuple):
    """Every metric of some rows, and their calibration curve's largest gap."""

    estimates: dict[str, Estimate]
    calibration: Calibration


def of_rows(predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."]) -> Evaluation:
    """The metrics of the predictions at `x` of the targets `y`, with their errors over rows and over draws.

    Of censored targets `nll` takes the density of known values and the probability of the others; all else is of rows
    whose values are known, and `censored` is the fraction of the others.
    """
    if y.ndim == 3:
        return _of_censored(predictor, x, y)
    names = predictor.signature.target_names

    def score(moments: Moments) -> dict[str, Estimate]:
        if predictor.classifies:
            return scores.classification(y, moments)
        if predictor.is_density:
            return scores.density(moments, predictor.scaler)
        return scores.regression(y, moments, predictor.scaler, names)

    sums = predictor.sums(x, y)
    moments = sums.moments()
    errors = scores.monte_carlo_errors(sums, predictor.record.shape[0], score)
    found = {name: one._replace(mcse=errors.get(name)) for name, one in score(moments).items()}
    if predictor.classifies:
        curve = calibration.of_classes(y, moments.mean, predictor.signature.class_names)
    else:
        rows = drawn(predictor, x, y)
        distance, p = metrics.pit_uniformity(rows.pit)
        found |= scores.sampled(rows, names) | {"pit_ks": Estimate(distance), "pit_p": Estimate(p)}
        curve = calibration.of_intervals(rows.pit, names)
    gaps = {"calibration_gap": curve.gap, "calibration_gap_low": curve.low, "calibration_gap_high": curve.high}
    return Evaluation(found | {name: Estimate(value) for name, value in gaps.items()}, curve)


def _of_censored(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Float[np.ndarray, "row target bound"]
) -> Evaluation:
    """The metrics of rows of which some targets are censored.

    Raises:
        UsageError: where no row's values are known.
    """
    known = known_rows(y)
    if not known.any():
        raise UsageError(
            "every row has a censored target: no error or coverage can be computed; give others with --data"
        )
    found, curve = of_rows(predictor, x[known], y[known][..., 0])
    units = predictor.scaler.log_units(y)

    def score(moments: Moments) -> dict[str, Estimate]:
        return {
            "nll": metrics.negative_log_likelihood(moments.log_density - units),
            "nll_standardised": metrics.negative_log_likelihood(moments.log_density),
        }

    sums = predictor.sums(x, y)
    errors = scores.monte_carlo_errors(sums, predictor.record.shape[0], score)
    all_rows = {name: one._replace(mcse=errors.get(name)) for name, one in score(sums.moments()).items()}
    return Evaluation(found | all_rows | {"censored": Estimate(float(np.mean(~known)))}, curve)


def drawn(predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."]) -> scores.Drawn:
    """Quantiles, CRPS and PIT of regression rows whose values are known, from samples of their predictions."""
    if y.ndim == 3:
        known = known_rows(y)
        x, y = x[known], y[known][..., 0]
    uniform = np.random.default_rng(0).uniform(size=y.shape)
    parts = [scores.drawn(values, y[rows], uniform[rows]) for rows, values in predictor.samples(x)]
    quantiles, crps, pit = zip(*parts, strict=True)
    return scores.Drawn(np.concatenate(quantiles, 1), np.concatenate(crps), np.concatenate(pit))


def groups(predictor: Predictor, x_test: Shaped[np.ndarray, "row ..."]) -> Mapping[str, Mapping[str, np.ndarray]]:
    """posterior_predictive and log_likelihood, in original units, of every k-th draw of each chain."""
    record = predictor.record
    x, y = record.training_rows(None if record.has_training_rows else 0)
    kept = record.kept(max(len(x), len(x_test) * len(predictor.signature.target_names)))
    seed = int(record.attributes["seed"])
    found = {"posterior_predictive": {"y": predictor.sample_each(x_test, kept, seed=seed), "draw": kept}}
    if len(x):
        found["log_likelihood"] = {"y": predictor.log_likelihoods(x, y, kept), "draw": kept}
    return found
