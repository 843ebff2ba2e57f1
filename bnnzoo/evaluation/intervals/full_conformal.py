"""Conformal intervals and sets from the draws and the training rows of a run, without held-out rows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from bnnzoo.data.columns.bounds import uncensored_rows
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.formulas import conformal_bayes
from bnnzoo.evaluation.formulas.conformal_bayes import ConformalBayes
from bnnzoo.evaluation.intervals.split_conformal import least_rows
from bnnzoo.evaluation.predictions import loo, mixture
from bnnzoo.evaluation.predictions.mixture import DrawMixture
from bnnzoo.evaluation.predictions.predictive_distribution import PredictiveDistribution
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.finding import setting, spelling
from bnnzoo.progress import Observer
from bnnzoo.recipe import recipe_from

_MAX_DRAWS, _MAX_TRAINING_ROWS = 2000, 2000
"""Largest numbers of draws and of training rows, evenly spaced.

The coverage is guaranteed even if only some training rows have scores, because these rows are selected by their
position and not by their targets.
"""
_CANDIDATES = 33
"""Number of candidate targets per row, from which the size of a block of rows is computed."""
_CHECKED_ROWS = 50
"""Largest number of training inputs, evenly spaced, at which the importance weights are tested."""


class Ready(NamedTuple):
    """Thinned draws of a run, and the scores of the training rows under these draws."""

    predictor: Predictor
    conformal: ConformalBayes


def objection(predictor: Predictor) -> str:
    """Return why conformal intervals of the run require calibration rows; empty if they do not."""
    record = predictor.record
    attributes = record.attributes
    if attributes["exactness"] != "exact":
        return (
            f"draws by {attributes['sampler']} are {attributes['exactness']}, but intervals without calibration rows "
            "need exact draws"
        )
    if record.names_a_model and recipe_from(attributes["recipe"]).stochastic != "all":
        return "the parameters that are not sampled were trained on the training rows alone"
    if record.keeps_predictions:
        return "the run keeps no parameters, only predictions at given inputs"
    if not record.has_training_rows:
        return "the file has no training rows"
    if record.array("observed_data", "y").ndim == 3:
        return "training targets are censored"
    if not predictor.classifies and len(predictor.signature.target_names) > 1:
        return "the run predicts several targets"
    return ""


def prepare(predictor: Predictor, level: float) -> Ready:
    """Thin the draws to about 2000, and compute the scores of at most 2000 training rows under these draws.

    Raises:
        UsageError: if the run cannot give conformal intervals without calibration rows, if it has too few training rows
            for the level, or if the importance weights of the draws are unreliable.
    """
    if problem := objection(predictor):
        raise UsageError(_refusal(predictor, level, problem))
    x, y = predictor.record.training_rows(_MAX_TRAINING_ROWS)
    if conformal_bayes.least_rank(1 - level, len(x)) < 2:
        least = math.ceil(round(1 / (1 - level), 6)) - 1
        used, remedy = f"got {len(x)}", "more training rows"
        if least > _MAX_TRAINING_ROWS:
            used = f"at most {_MAX_TRAINING_ROWS} are used"
            remedy = f"{_calibration()} with at least {least} rows"
        raise UsageError(
            f"{setting('level', f'{level:g}')}: needs at least {least} training rows ({used}); use a lower level, "
            f"[[interval=bayesian]], or {remedy}"
        )
    chains, count = predictor.record.shape
    thinned = predictor.thinned(max(1, math.ceil(chains * count / _MAX_DRAWS)))
    chains, count = thinned.record.shape
    log_likelihoods = thinned.log_likelihoods(x, y, np.arange(count))
    if loo.has_stuck_chains(log_likelihoods):
        raise UsageError(_refusal(predictor, level, "all draws of each chain are equal"))
    weights = thinned.record.weights
    with np.errstate(divide="ignore"):
        log_weights = np.zeros(chains * count) if weights is None else np.log(weights)
    power = float(predictor.record.attributes["likelihood_power"])
    log_scores = log_likelihoods.reshape(chains * count, len(x)).astype(np.float64)
    if not thinned.classifies:
        log_scores += _log_sds(thinned, x, discrete=mixture.is_discrete(thinned, x))
    conformal = ConformalBayes.from_log_scores(log_scores, log_weights.astype(np.float32), power=power, alpha=1 - level)
    ready = Ready(thinned, conformal)
    _check_weights(ready)
    return ready


def intervals(
    ready: Ready, x: Shaped[np.ndarray, "row ..."], *, observer: Observer | None = None
) -> Float[np.ndarray, "2 row 1"]:
    """Return the lower and the upper ends of the conformal intervals of one target, in original units."""
    predictor, scaler = ready.predictor, ready.predictor.scaler
    y_sd, discrete = scaler.y_sd.astype(np.float64), mixture.is_discrete(predictor, x)
    start, units = _bayesian_quantiles(ready, x), float(np.log(y_sd)[0])

    def block_ends(rows: Int[np.ndarray, " block"], draws: DrawMixture) -> Any:
        def log_densities(candidates: Float[np.ndarray, "candidate row"]) -> np.ndarray:
            return np.asarray(mixture.log_densities(draws, candidates[:, :, None]) - units, np.float32)

        log_sds, (low, _, high) = _log_sds(predictor, x[rows], discrete=discrete), start[:, rows]

        def contains(candidates: Float[np.ndarray, "candidate row"]) -> Bool[np.ndarray, "candidate row"]:
            return ready.conformal.included(log_densities(candidates), log_sds)

        return conformal_bayes.hull(contains, low, high, discrete=discrete)

    ends = mixture.map_rows(predictor, x, _CANDIDATES, block_ends, observer=observer)
    return (ends * y_sd + scaler.y_mean)[:, :, None]


def sets(
    ready: Ready, x: Shaped[np.ndarray, "row ..."], *, observer: Observer | None = None
) -> Bool[np.ndarray, "row class"]:
    """Return whether each class is in the conformal set of each row; the likeliest class is always in the set."""
    predictor, num_classes = ready.predictor, len(ready.predictor.signature.class_names)

    def block_members(rows: Int[np.ndarray, " block"], draws: DrawMixture) -> Any:
        labels = np.broadcast_to(np.arange(num_classes)[:, None], (num_classes, len(rows)))
        return ready.conformal.included(np.asarray(mixture.log_densities(draws, labels), np.float32))

    members = mixture.map_rows(predictor, x, num_classes, block_members, observer=observer).T
    members[np.arange(len(x)), predictor.moments(x).mean.argmax(1)] = True
    return members


def _log_sds(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], *, discrete: bool
) -> Float[np.ndarray, "draw row"]:
    """Return the log standard deviation that each draw predicts for each row; 0 where it is not finite.

    For counts, the variance is increased by 1 / (2 pi). The largest value of probability times standard deviation is
    then about (2 pi)^(-1/2), both for distributions with a large mean and for distributions with a mean near 0.
    """
    log_sds = predictor.log_scales(x)[..., 0]
    log_sds = log_sds.reshape(-1, log_sds.shape[-1])
    if discrete:
        log_sds = np.logaddexp(2 * log_sds.astype(np.float64), -math.log(2 * math.pi)) / 2
    return np.where(np.isfinite(log_sds), log_sds, 0.0).astype(np.float32)


def _bayesian_quantiles(ready: Ready, x: Shaped[np.ndarray, "row ..."]) -> Float[np.ndarray, "quantile row"]:
    """Return the ends and the middle of the Bayesian interval of each row, in the units of the network.

    The three quantiles are the lower end, the median and the upper end.
    """
    predictor, alpha = ready.predictor, ready.conformal.alpha
    quantiles = PredictiveDistribution(predictor, x).quantile([alpha / 2, 0.5, 1 - alpha / 2])
    return (quantiles - predictor.scaler.y_mean) / predictor.scaler.y_sd.astype(np.float64)


def _check_weights(ready: Ready) -> None:
    """Test the importance weights that candidate targets of training inputs give to the draws.

    The candidates are the ends and the middle of the Bayesian interval, or all classes. The result does not depend on
    the rows that are predicted.

    Raises:
        UsageError: if the median Pareto k of the inputs, each with its worst candidate, is above the limit for reliable
            weights.
    """
    predictor, conformal = ready.predictor, ready.conformal
    x, _ = predictor.record.training_rows(_CHECKED_ROWS)
    if predictor.classifies:
        num_classes = len(predictor.signature.class_names)
        candidates = np.broadcast_to(np.arange(num_classes)[:, None], (num_classes, len(x)))
    else:
        candidates = _bayesian_quantiles(ready, x)[:, :, None]

    def worst_k(rows: Int[np.ndarray, " block"], draws: DrawMixture) -> Float[np.ndarray, "1 block"]:
        log_densities = np.asarray(mixture.log_densities(draws, candidates[:, rows]), np.float64)
        logits = conformal.power * log_densities + conformal.log_weights[:, None, None]
        flat = logits.reshape(len(logits), -1).T
        k = [loo.smooth_weights(ratios, 1.0)[1] if np.isfinite(ratios).all() else math.inf for ratios in flat]
        return np.reshape(k, logits.shape[1:]).max(0)[None]

    typical = float(np.median(mixture.map_rows(predictor, x, len(candidates), worst_k)))
    limit = loo.good_pareto_k(len(conformal.log_weights))
    if typical > limit:
        problem = f"the importance weights of the draws are unreliable: Pareto k is {typical:.2f} (limit {limit:.2f})"
        raise UsageError(_refusal(predictor, 1 - ready.conformal.alpha, problem))


def _calibration() -> str:
    """Return the setting that gives calibration rows; in Python, estimators accept a pair only."""
    return "calibration=(X, y)" if spelling() == "keywords" else "[[calibration=FILE]]"


def _refusal(predictor: Predictor, level: float, problem: str) -> str:
    record = predictor.record
    remedy = f"use {_calibration()} with rows that have targets and were used neither to train nor to test"
    y_test = record.test_rows()[1] if record.has_test_rows else np.empty(0)
    if len(y_test) >= least_rows(level) and uncensored_rows(y_test).all():
        remedy += ", or [[calibration=test]] for rows that are not the test rows of the run"
    return f"cannot compute conformal intervals without calibration rows: {problem}; {remedy}"
