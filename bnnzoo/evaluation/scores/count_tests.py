"""Tests of predicted counts by simulation: dispersion and number of zeros."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo.evaluation.contents.record import evenly
from bnnzoo.evaluation.formulas import blocking
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.predictions import predictive_samples
from bnnzoo.evaluation.predictions.predictive import Moments
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.finding import setting, spell_settings, spelling
from bnnzoo.posterior.counts import NegativeBinomial, ZeroInflatedPoisson

LEVEL = 0.01
"""Probability of a false alarm, split equally between the two tests: too narrow, and too few zeros."""
_MOST_ROWS = 5000
"""Largest number of rows tested, evenly spaced; more rows would only detect an irrelevant excess."""
_REPLICATES = 999
"""Smallest number of simulated sets of counts among which the observed set is ranked."""


def of_rows(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    y: Float[np.ndarray, "row target"],
    moments: Moments,
) -> dict[str, Estimate]:
    """Return dispersion and zeros of counts relative to the prediction, with p-values; empty for other targets.

    `dispersion` is the mean of (y - mean)^2 / variance, which is 1 for correct predictions. `dispersion_p` is the
    fraction of simulated sets of rows that are at least as dispersed. Each set comes from one draw of the parameters,
    because the uncertainty of the parameters is common to all rows. `zeros_p` is the same for the number of zeros;
    `zeros_expected` is the mean fraction of zeros over simulated sets.
    """
    if not predictor.has_counts or predictor.record.weights is not None:
        return {}
    rows = evenly(len(x), _MOST_ROWS)
    mean = moments.mean[rows].astype(np.float64)
    variance = np.maximum(moments.aleatoric + moments.epistemic, np.finfo(np.float32).tiny)[rows].astype(np.float64)
    observed_counts = y[rows].astype(np.float64)
    pearson, zeros = _simulate(predictor, x[rows], mean, variance)
    observed = np.mean((observed_counts - mean) ** 2 / variance), np.mean(observed_counts == 0)

    def p_value(simulated: Float[np.ndarray, " replicate"], value: float) -> Estimate:
        return Estimate(float((1 + np.sum(simulated >= value * (1 - 1e-12))) / (1 + len(simulated))))

    return {
        "dispersion": Estimate(float(observed[0])),
        "dispersion_p": p_value(pearson, float(observed[0])),
        "zeros": Estimate(float(observed[1])),
        "zeros_expected": Estimate(float(zeros.mean())),
        "zeros_p": p_value(zeros, float(observed[1])),
    }


def caveat(predictor: Predictor, estimates: Mapping[str, Estimate]) -> str:
    """Describe what the tests reject and the likelihood to try; empty if they reject nothing."""
    if "dispersion_p" not in estimates:
        return ""
    is_overdispersed, has_excess_zeros = (estimates[name].value <= LEVEL / 2 for name in ("dispersion_p", "zeros_p"))
    observed, expected = (100 * estimates[name].value for name in ("zeros", "zeros_expected"))
    zeros = f"{observed:.0f} % of them are 0, but {expected:.0f} % are expected" if has_excess_zeros else ""
    if is_overdispersed:
        problem = "the intervals are too narrow, because the counts are overdispersed: "
        problem += f"{estimates['dispersion'].value:.2g} times the predicted variance{'; ' if zeros else ''}{zeros}"
        remedy = "more inputs or a wider network may explain it"
    elif has_excess_zeros:
        problem = f"too few zeros are predicted, because the counts are zero-inflated: {zeros}"
        remedy = "a wider network may explain it"
    else:
        return ""
    likelihood = getattr(predictor.posterior, "likelihood", None)
    likelihoods = ["negative-binomial"] if is_overdispersed and not isinstance(likelihood, NegativeBinomial) else []
    if has_excess_zeros and not isinstance(likelihood, ZeroInflatedPoisson):
        likelihoods.append("zero-inflated-poisson")
    if likelihoods:
        remedy = " or ".join([f"try {setting('likelihood', likelihoods[0])}", *likelihoods[1:]])
    return spell_settings(f"{problem} (level {LEVEL:g}); {remedy}", spelling())


def _simulate(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    mean: Float[np.ndarray, "row target"],
    variance: Float[np.ndarray, "row target"],
) -> tuple[Float[np.ndarray, " replicate"], Float[np.ndarray, " replicate"]]:
    """Return dispersion and fraction of zeros of each simulated set of counts."""
    chains, count = predictor.record.shape
    kept_draws = evenly(count, ceil(_REPLICATES / chains))
    rounds = ceil(_REPLICATES / (chains * len(kept_draws)))
    pearson = np.zeros((rounds, chains * len(kept_draws)))
    zeros = np.zeros_like(pearson)
    blocks = list(blocking.blocks(len(x), chains * len(kept_draws) * mean.shape[1]))
    for round_number in range(rounds):
        for number, block in enumerate(blocks):
            seed = 1 + round_number * len(blocks) + number
            simulated_counts = predictive_samples.sample_each(predictor, x[block], kept_draws, seed=seed).reshape(
                chains * len(kept_draws), -1, mean.shape[1]
            )
            squared_residuals = (simulated_counts.astype(np.float64) - mean[block]) ** 2 / variance[block]
            pearson[round_number] += squared_residuals.sum((1, 2))
            zeros[round_number] += (simulated_counts == 0).sum((1, 2))
    return pearson.ravel() / mean.size, zeros.ravel() / mean.size
