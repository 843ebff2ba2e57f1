"""How good a run's predictions are: every metric of some rows, and what a file keeps of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from bnnzoo.evaluation import calibration, metrics, predictive, scores
from bnnzoo.evaluation.calibration import Calibration
from bnnzoo.evaluation.metrics import Estimate
from bnnzoo.evaluation.predictive import Moments
from bnnzoo.evaluation.predictor import Predictor


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
        rows, *batches = _drawn_in_batches(predictor, x, y)
        errors = scores.errors_of_batches([scores.sampled(one, names) for one in batches], predictor.record.shape[0])
        sampled = {k: one._replace(mcse=errors.get(k)) for k, one in scores.sampled(rows, names).items()}
        found |= sampled | {"pit_ks": Estimate(metrics.pit_distance(rows.pit))}
        curve = calibration.of_intervals(rows.pit, names)
    gaps = {"calibration_gap": curve.gap, "calibration_gap_low": curve.low, "calibration_gap_high": curve.high}
    return Evaluation(found | {name: Estimate(value) for name, value in gaps.items()}, curve)


def drawn(predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."]) -> scores.Drawn:
    """Quantiles, CRPS and PIT of regression rows, from samples of their predictive distribution."""
    return _drawn_in_batches(predictor, x, y, apart=False)[0]


def _drawn_in_batches(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."], *, apart: bool = True
) -> list[scores.Drawn]:
    """The same from all samples; then from about twenty batches of consecutive draws, of draws without weights."""
    uniform = np.random.default_rng(0).uniform(size=y.shape)
    apart = apart and predictor.record.weights is None
    batches = [slice(None), *(predictive.batches(*predictor.record.shape) if apart else ())]
    parts: list[list[scores.Drawn]] = [[] for _ in batches]
    for rows, values in predictor.samples(x):
        each = len(values) // len(predictor.thetas)
        for batch, found in zip(batches, parts, strict=True):
            some = slice(*(None if end is None else end * each for end in (batch.start, batch.stop)))
            found.append(scores.drawn(values[some], y[rows], uniform[rows]))
    joined = []
    for found in parts:
        quantiles, crps, pit = zip(*found, strict=True)
        joined.append(scores.Drawn(np.concatenate(quantiles, 1), np.concatenate(crps), np.concatenate(pit)))
    return joined


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
