"""How good a run's predictions are: every metric of some rows, and what a file keeps of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from bnnzoo.evaluation import calibration, metrics, scores
from bnnzoo.evaluation.calibration import Calibration
from bnnzoo.evaluation.metrics import Estimate
from bnnzoo.evaluation.predictive import Moments
from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.store import schema


class Evaluation(NamedTuple):
    """Every metric of some rows, and their calibration curve's largest gap."""

    estimates: dict[str, Estimate]
    calibration: Calibration


def of_rows(predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."]) -> Evaluation:
    """The metrics of the predictions at `x` of the targets `y`, with their errors over rows and over draws."""

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


def drawn(predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."]) -> scores.Drawn:
    """Quantiles, CRPS and PIT of regression rows, from samples of their predictive distribution."""
    uniform = np.random.default_rng(0).uniform(size=y.shape)
    parts = [scores.drawn(values, y[rows], uniform[rows]) for rows, values in predictor.samples(x)]
    quantiles, crps, pit = zip(*parts, strict=True)
    return scores.Drawn(np.concatenate(quantiles, 1), np.concatenate(crps), np.concatenate(pit))


def groups(
    predictor: Predictor, x_test: Shaped[np.ndarray, "row ..."], y_test: Shaped[np.ndarray, "row ..."]
) -> Mapping[str, Mapping[str, np.ndarray]]:
    """What ArviZ's schema has of predictions, in original units, of every k-th draw of each chain.

    `posterior_predictive` and `log_likelihood` of all training rows, where there are any; `predictions`, their inputs
    and targets, and their log likelihood, of the test rows.
    """
    record = predictor.record
    x, y = record.training_rows(None if record.has_training_rows else 0)
    kept = record.kept(max(len(x), len(x_test)) * max(1, len(predictor.signature.target_names)))
    seed = int(record.attributes["seed"])

    def sampled(x: Shaped[np.ndarray, "row ..."]) -> dict[str, np.ndarray]:
        return {"y": schema.observed(predictor.sample_each(x, kept, seed=seed)), "draw": kept}

    def densities(x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."]) -> dict[str, np.ndarray]:
        return {"y": predictor.log_likelihoods(x, y, kept), "draw": kept}

    found = {
        schema.PREDICTIONS: sampled(x_test),
        schema.PREDICTIONS_LOG_LIKELIHOOD: densities(x_test, y_test),
        schema.PREDICTIONS_CONSTANT_DATA: {"x": x_test, "y": schema.observed(y_test)},
    }
    if len(x):
        found |= {schema.POSTERIOR_PREDICTIVE: sampled(x), schema.LOG_LIKELIHOOD: densities(x, y)}
    return found
