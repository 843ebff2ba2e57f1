"""Conformal intervals and sets from the draws and the training rows of a run, without held-out rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped

from bnnzoo.data.columns.bounds import uncensored_rows
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.formulas import conformal_bayes
from bnnzoo.evaluation.formulas.conformal_bayes import TrainingScores
from bnnzoo.evaluation.predictions import loo, mixture, row_mixtures
from bnnzoo.evaluation.predictions.mixture import DrawMixture
from bnnzoo.evaluation.predictions.predictive_distribution import PredictiveDistribution
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.progress import Observer, Progress
from bnnzoo.recipe import recipe_from

_MAX_DRAWS, _MAX_TRAINING_ROWS = 2000, 2000
"""Largest numbers of draws and of training rows, evenly spaced.

The guarantee also holds if only some training rows are scored, provided that their selection ignores their targets.
"""
_CANDIDATES = 33
_CHECKED_ROWS = 50
"""Largest number of predicted rows at which the importance weights are tested."""


class Ready(NamedTuple):
    """A run that is ready for conformal intervals: fewer draws, and the scores of the training rows."""

    predictor: Predictor
    training: TrainingScores
    log_weights: Float[np.ndarray, " draw"]
    power: float
    alpha: float

    def included(
        self,
        log_densities: Float[np.ndarray, "draw candidate row"],
        log_sds: Float[np.ndarray, "draw row"] | None = None,
    ) -> Bool[np.ndarray, "candidate row"]:
        """Return whether candidates are in the sets of their rows."""
        return conformal_bayes.included(
            self.training, log_densities, self.log_weights, power=self.power, alpha=self.alpha, log_sds=log_sds
        )


def objection(predictor: Predictor) -> str:
    """Return the reason why a run's draws alone cannot give conformal intervals; empty if they can."""
    record = predictor.record
    attributes = record.attributes
    if attributes["exactness"] != "exact":
        return f"draws by {attributes['sampler']} are {attributes['exactness']}, and these intervals need exact draws"
    if record.names_a_model and recipe_from(attributes["recipe"]).stochastic != "all":
        return "parameters that are not sampled were trained on the training rows alone"
    if record.keeps_predictions:
        return "the run keeps predictions at some inputs and no parameters"
    if not record.has_training_rows:
        return "the file has no training rows"
    if record.array("observed_data", "y").ndim == 3:
        return "training targets are censored"
    if not predictor.classifies and len(predictor.signature.target_names) > 1:
        return "there are several targets"
    return ""


def prepare(predictor: Predictor, level: float) -> Ready:
    """Compute the scores of the training rows under at most 2000 draws.

    Raises:
        UsageError: if the run's draws cannot give conformal intervals, or if there are too few training rows.
    """
    if problem := objection(predictor):
        raise UsageError(_refusal(predictor, problem))
    x, y = predictor.record.training_rows(_MAX_TRAINING_ROWS)
    if conformal_bayes.least_rank(1 - level, len(x)) < 2:
        least = math.ceil(round(1 / (1 - level), 6)) - 1
        raise UsageError(
            f"level: {level:g} needs at least {least} training rows (got {len(x)}); use a lower level, "
            "[[interval=bayesian]], or more rows"
        )
    chains, count = predictor.record.shape
    thinned = predictor.thinned(max(1, math.ceil(chains * count / _MAX_DRAWS)))
    chains, count = thinned.record.shape
    log_likelihoods = thinned.log_likelihoods(x, y, np.arange(count)).reshape(chains * count, len(x))
    weights = thinned.record.weights
    with np.errstate(divide="ignore"):
        log_weights = np.zeros(chains * count) if weights is None else np.log(weights)
    power = float(predictor.record.attributes["likelihood_power"])
    log_scores = log_likelihoods.astype(np.float64)
    if not thinned.classifies:
        log_scores += _log_sds(thinned, x, discrete=row_mixtures.is_discrete(thinned, x))
    training = TrainingScores.from_log_scores(log_scores)
    return Ready(thinned, training, log_weights.astype(np.float32), power, 1 - level)


def intervals(
    ready: Ready, x: Shaped[np.ndarray, "row ..."], *, observer: Observer | None = None
) -> tuple[Float[np.ndarray, "row 1"], Float[np.ndarray, "row 1"]]:
    """Return the lower and the upper ends of the conformal intervals of one target, in original units.

    Raises:
        UsageError: if the importance weights are unreliable at the typical row.
    """
    predictor, scaler = ready.predictor, ready.predictor.scaler
    distribution = PredictiveDistribution(predictor, x)
    levels = [ready.alpha / 2, 0.5, 1 - ready.alpha / 2]
    start = (distribution.quantile(levels) - scaler.y_mean) / scaler.y_sd.astype(np.float64)
    lower, upper, tested = np.empty(len(x)), np.empty(len(x)), [np.empty(0)]
    discrete = row_mixtures.is_discrete(predictor, x)
    units = float(np.log(scaler.y_sd.astype(np.float64))[0])
    with row_mixtures.mixture_arithmetic(predictor):
        for rows, count, draws in row_mixtures.mixtures(predictor, x, _CANDIDATES):
            low, middle, high = start[:, rows]
            log_sds = _log_sds(predictor, x[rows], discrete=discrete)

            def log_densities(candidates: Float[np.ndarray, "candidate row"], draws: DrawMixture = draws) -> np.ndarray:
                densities = mixture.log_densities(draws, candidates[:, :, None])
                return np.asarray(densities - units, np.float32)

            if sum(map(len, tested)) < _CHECKED_ROWS:
                ends = np.stack([low, middle, high])[:, : min(count, _CHECKED_ROWS)]
                padded = np.pad(ends, ((0, 0), (0, len(rows) - ends.shape[1])), mode="edge")
                tested.append(_pareto_k(ready, log_densities(padded)[:, :, : ends.shape[1]]))
                _refuse_unreliable(predictor, np.concatenate(tested), len(ready.log_weights))
            ends = conformal_bayes.hull(
                lambda candidates, log_sds=log_sds: ready.included(log_densities(candidates), log_sds),
                low,
                high,
                discrete=discrete,
            )
            first = int(rows[0])
            lower[first : first + count], upper[first : first + count] = (end[:count] for end in ends)
            if observer is not None:
                observer(Progress("evaluating", first + count, len(x)))
    ends = np.stack([lower, upper]) * scaler.y_sd.astype(np.float64) + scaler.y_mean
    return ends[0][:, None], ends[1][:, None]


def sets(
    ready: Ready, x: Shaped[np.ndarray, "row ..."], *, observer: Observer | None = None
) -> Bool[np.ndarray, "row class"]:
    """Return the conformal sets of classes; the likeliest class is always a member.

    Raises:
        UsageError: if the importance weights are unreliable at the typical row.
    """
    predictor, num_classes = ready.predictor, len(ready.predictor.signature.class_names)
    members, tested = np.empty((len(x), num_classes), bool), [np.empty(0)]
    with row_mixtures.mixture_arithmetic(predictor):
        for rows, count, draws in row_mixtures.mixtures(predictor, x, num_classes):
            labels = np.broadcast_to(np.arange(num_classes)[:, None], (num_classes, len(rows)))
            log_densities = np.asarray(mixture.log_densities(draws, labels), np.float32)
            if sum(map(len, tested)) < _CHECKED_ROWS:
                tested.append(_pareto_k(ready, log_densities[:, :, : min(count, _CHECKED_ROWS)]))
                _refuse_unreliable(predictor, np.concatenate(tested), len(ready.log_weights))
            first = int(rows[0])
            members[first : first + count] = ready.included(log_densities).T[:count]
            if observer is not None:
                observer(Progress("evaluating", first + count, len(x)))
    likeliest = predictor.moments(x).mean.argmax(1)
    members[np.arange(len(x)), likeliest] = True
    return members


def _log_sds(
    predictor: Predictor, x: Shaped[np.ndarray, "row ..."], *, discrete: bool
) -> Float[np.ndarray, "draw row"]:
    """Return the log standard deviation that each draw predicts for each row; 0 where it is infinite.

    For counts the density in these units has the same largest value, (2 pi)^(-1/2), for many and for few expected
    counts: the variance is increased by 1 / (2 pi).
    """
    log_sds = predictor.log_scales(x)[..., 0]
    log_sds = log_sds.reshape(-1, log_sds.shape[-1])
    if discrete:
        log_sds = np.logaddexp(2 * log_sds.astype(np.float64), -math.log(2 * math.pi)) / 2
    return np.where(np.isfinite(log_sds), log_sds, 0.0).astype(np.float32)


def _pareto_k(ready: Ready, log_densities: Float[np.ndarray, "draw candidate row"]) -> Float[np.ndarray, " row"]:
    """Return the largest Pareto k of the weights of each row's candidates."""
    logits = ready.power * log_densities + ready.log_weights[:, None, None]
    flat = logits.reshape(len(logits), -1).T.astype(np.float64)
    k = [loo.smooth_weights(ratios, 1.0)[1] if np.isfinite(ratios).all() else math.inf for ratios in flat]
    return np.reshape(k, logits.shape[1:]).max(0)


def _refuse_unreliable(predictor: Predictor, pareto_k: Float[np.ndarray, " row"], num_draws: int) -> None:
    """Refuse weights that are unreliable at more than half of the tested rows.

    Raises:
        UsageError: with the median Pareto k.
    """
    limit = loo.good_pareto_k(num_draws)
    typical = float(np.median(pareto_k))
    if typical > limit:
        raise UsageError(
            _refusal(
                predictor,
                f"the importance weights of the draws are unreliable, Pareto k {typical:.2f} (limit {limit:.2f})",
            )
        )


def _refusal(predictor: Predictor, problem: str) -> str:
    record = predictor.record
    remedy = "give rows with known targets that were used neither to train nor to test with [[calibration=FILE]]"
    if record.has_test_rows and uncensored_rows(record.test_rows()[1]).all():
        remedy += ", or use the run's test rows for this purpose with [[calibration=test]]"
    return f"conformal intervals from the draws alone: {problem}; {remedy}"
