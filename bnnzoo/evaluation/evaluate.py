"""How good a run's predictions are: every metric of some rows, and what a file keeps of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from bnnzoo.data import rounding
from bnnzoo.evaluation import calibration, counts, metrics, noise_scale, scores
from bnnzoo.evaluation.calibration import Calibration
from bnnzoo.evaluation.metrics import Estimate
from bnnzoo.evaluation.predictive import Moments
from bnnzoo.evaluation.predictor import Predictor

_UNEVEN = 0.1
"""Nats a row by which a density may differ from the probability of a step, divided by the step."""


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
        found |= counts.of_rows(predictor, x, y, moments)
        found |= _rounded(predictor, x, y, found["nll"])
        found |= scores.sampled(rows, names) | {"pit_ks": Estimate(distance), "pit_p": Estimate(p)}
        curve = calibration.of_intervals(rows.pit, names)
    gaps = {"calibration_gap": curve.gap, "calibration_gap_low": curve.low, "calibration_gap_high": curve.high}
    return Evaluation(found | {name: Estimate(value) for name, value in gaps.items()}, curve)


def _rounded(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."], nll: Estimate
) -> dict[str, Estimate]:
    """`nll_rounded` of targets that are all rounded: minus the log probability of what was rounded to them.

    Of counts, whose distribution is one of whole numbers, it is `nll` itself.
    """
    steps = predictor.rounding_steps
    origin = predictor.record.group("observed_data").get("y")
    if predictor.is_density or origin is None or not steps.all():
        return {}
    if not all(rounding.is_on_grid(y[:, i], step, origin[0, i]) for i, step in enumerate(steps)):
        return {}
    if predictor.has_continuous_targets:
        return {"nll_rounded": metrics.negative_log_likelihood(predictor.log_rounded(x, y))}
    return {"nll_rounded": nll} if predictor.has_counts and (steps == 1).all() else {}


def rounding_caveat(predictor: Predictor, estimates: Mapping[str, Estimate]) -> str:
    """Why `nll` is no score of rounded targets; empty where the density is smooth over a step, or nothing is rounded.

    Where it is smooth, a step holds its density times the step.
    """
    if "nll_rounded" not in estimates or not predictor.has_continuous_targets:
        return ""
    smooth = estimates["nll"].value - float(np.sum(np.log(predictor.rounding_steps)))
    if abs(smooth - estimates["nll_rounded"].value) <= _UNEVEN:
        return ""
    names = ", ".join(predictor.signature.target_names)
    steps = ", ".join(f"{step:g}" for step in predictor.rounding_steps)
    return f"nll: the values of {names} repeat in steps of {steps}: {noise_scale.NO_SCORE}"


def drawn(predictor: Predictor, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."]) -> scores.Drawn:
    """Quantiles, CRPS and PIT of regression rows, from samples of their predictive distribution."""
    uniform = np.random.default_rng(0).uniform(size=y.shape)
    if predictor.is_density:
        return scores.drawn_alike(predictor.density_samples(), y, uniform)
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
