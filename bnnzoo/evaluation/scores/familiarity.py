"""Scores of familiar and unfamiliar inputs, and measures of how well the scores separate them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo.data import Unseen
from bnnzoo.data.columns.bounds import uncensored_targets
from bnnzoo.evaluation.formulas import blocking, metrics
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.predictions import new_rows
from bnnzoo.evaluation.predictions.predictive import Moments
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.store.schema import targets_of

_BEST_OF_ROWS = 2000
"""Largest number of training rows from which the best draw is selected if the log density was not recorded."""

Scores = dict[str, Float[np.ndarray, " _"]]


@dataclasses.dataclass(frozen=True)
class OodScores:
    """Scores of each familiar row (`inside`) and of each unfamiliar row (`outside`), by name.

    The scores `inside` and `outside` are computed from all draws together, `single_inside` and `single_outside` from
    the best draw alone. A single draw has no `mutual_information` and no `epistemic_sd`, because these scores measure
    the variation between draws.

    - Classification: `max_probability`, `entropy` in nats, and `mutual_information` in nats.
    - Regression: `sd` and `epistemic_sd`, in standard deviations of the training targets.
    - Density: `nll`, minus the log density of a row in the units of the network.
    """

    name: str
    inside: Scores
    outside: Scores
    single_inside: Scores
    single_outside: Scores
    """Scores `outside` of the best draw; like `single_inside`, an empty dictionary if the best draw is unknown."""

    def summary(self) -> dict[str, int | float]:
        """Return `estimates` as a flat dictionary."""
        return metrics.flat(self.estimates())

    def estimates(self) -> dict[str, Estimate]:
        """Return the mean of each score on familiar and on unfamiliar rows, and two measures of separation.

        The measures are the AUROC for the detection of unfamiliar rows, and the false positive rate. The false positive
        rate is the fraction of unfamiliar rows that pass as familiar at the threshold that 95 % of the familiar rows
        pass.
        """
        estimates = {"ood_rows": Estimate(len(next(iter(self.outside.values()))))}
        pairs = (("", self.inside, self.outside), ("_single", self.single_inside, self.single_outside))
        for suffix, inside, outside in pairs:
            for name in inside:
                sign = -1.0 if name == "max_probability" else 1.0
                values = sign * np.concatenate([inside[name], outside[name]])
                is_outside = np.arange(len(values)) >= len(inside[name])
                false_positive_rate = metrics.false_positive_rate(sign * inside[name], sign * outside[name])
                estimates[f"test_{name}{suffix}"] = Estimate(float(np.mean(inside[name])))
                estimates[f"ood_{name}{suffix}"] = Estimate(float(np.mean(outside[name])))
                estimates[f"ood_auroc_{name}{suffix}"] = metrics.auroc(values, is_outside)
                estimates[f"ood_fpr95_{name}{suffix}"] = Estimate(false_positive_rate)
        return estimates


def of_run(
    predictor: Predictor, spec: Any, inside: Shaped[np.ndarray, "row ..."], *, unseen: Unseen | None = None
) -> OodScores:
    """Score unfamiliar inputs and the rows `inside`, for the posterior and for its best draw.

    Args:
        predictor: the run.
        spec: unfamiliar inputs in a form that `load_inputs` accepts, or "noise" for as many random rows as `inside`
            has.
        inside: familiar inputs, in original units.
        unseen: treatment of categories that the training rows do not contain; an argument of `load_inputs`.

    Raises:
        UsageError: if the inputs do not fit the run, or for "noise" if the file has no training rows.
    """
    if isinstance(spec, str) and spec == "noise":
        predictor.record.require_training_rows("[[ood=noise]]")
        outside = noise(predictor.record.array("constant_data", "x"), len(inside))
        if predictor.signature.exposure:  # the exposure is no input of the network and must stay positive
            outside[:, -1] = inside[:, -1]
    else:
        outside = new_rows.inputs_of(predictor, spec, unseen=unseen)
    unit = 1.0 if predictor.classifies or predictor.is_density else _target_sds(predictor)
    score_sets = []
    best = best_draw(predictor)
    for draw in (None,) if best is None else (None, best):
        for x in (inside, outside):
            if predictor.is_density:
                score_sets.append({"nll": -predictor.moments(x, x, draw=draw).log_density})
                continue
            moments = predictor.moments(x, draw=draw)
            score_sets.append(scores(moments, classify=predictor.classifies, single=draw is not None, unit=unit))
    score_sets += [{}] * (4 - len(score_sets))
    return OodScores(str(spec) if isinstance(spec, str | Path) else "data", *score_sets)


def _target_sds(predictor: Predictor) -> Float[np.ndarray, " target"] | float:
    """Return the standard deviations of the training targets in the units of the network.

    The result is 1 if the targets were standardised, or if the file has no targets.
    """
    y = predictor.record.group("observed_data").get("y")
    if y is None or not len(y):
        return 1.0
    sds = predictor.scaler.scale_targets(uncensored_targets(targets_of(y))).std(0, dtype=np.float64)
    return np.where(sds > 0, sds, 1.0)


def scores(
    moments: Moments, *, classify: bool, single: bool, unit: Float[np.ndarray, " target"] | float = 1.0
) -> Scores:
    """Return the scores of rows from their predictive moments.

    Args:
        moments: predictive moments of the rows.
        classify: whether the targets are classes.
        single: whether the moments come from a single draw; the scores of variation between draws are then left out.
        unit: divisor of the standard deviations of a regression, in units of the network.
    """
    if classify:
        row_scores = {"max_probability": moments.mean.max(1), "entropy": metrics.entropy(moments.mean)}
        return row_scores if single else {**row_scores, "mutual_information": moments.epistemic[:, 0]}
    aleatoric, epistemic = moments.aleatoric / unit**2, moments.epistemic / unit**2
    row_scores = {"sd": np.sqrt(np.mean(aleatoric + epistemic, 1))}
    return row_scores if single else {**row_scores, "epistemic_sd": np.sqrt(np.mean(epistemic, 1))}


def noise(x: Shaped[np.ndarray, "row ..."], rows: int, *, seed: int = 0) -> Shaped[np.ndarray, "rows ..."]:
    """Return random inputs with the row shape and the type of the training inputs `x`.

    For images, every pixel is uniform between the smallest and the largest value in `x`. For tabular inputs, every
    feature is uniform over an interval that is three times as wide as the range of the feature in `x`. On average, two
    thirds of the values of a feature then lie outside the range of the data.
    """
    generator = np.random.default_rng(seed)
    shape = (rows, *x.shape[1:])
    if x.dtype == np.uint8:
        return generator.integers(x.min(), int(x.max()) + 1, shape).astype(np.uint8)
    axis = 0 if x.ndim == 2 else None
    low, high = x.min(axis).astype(np.float64), x.max(axis).astype(np.float64)
    margin = (high - low) if x.ndim == 2 else 0.0
    return generator.uniform(low - margin, high + margin, shape).astype(x.dtype)


def best_draw(predictor: Predictor) -> int | None:
    """Return the index of the draw with the highest log posterior density.

    If the log density was not recorded, the log-likelihood of at most 2000 training rows is used. The result is None if
    the file has no training rows either.
    """
    if "lp" in predictor.record.statistics:
        return int(np.argmax(predictor.record.statistics["lp"]))
    if not predictor.record.has_training_rows:
        return None
    x, y = predictor.record.training_rows(_BEST_OF_ROWS)
    chains, count = predictor.record.shape
    pieces = (np.arange(count)[piece] for piece in blocking.blocks(count, chains * len(x)))
    values = [predictor.log_likelihoods(x, y, piece).sum(2, dtype=np.float64) for piece in pieces]
    return int(np.argmax(np.concatenate(values, 1)))
