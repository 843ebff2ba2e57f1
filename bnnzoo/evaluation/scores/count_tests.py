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
"""Probability that correct predictions are rejected; the dispersion test and the zeros test use one half each."""
_MAX_ROWS = 5000
"""Largest number of tested rows, evenly spaced; with more rows, the tests would reject for irrelevant deviations."""
_REPLICATES = 999
"""Smallest number of simulated sets of counts to which the observed counts are compared."""


def of_rows(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    y: Float[np.ndarray, "row target"],
    moments: Moments,
) -> dict[str, Estimate]:
    """Test the dispersion and the fraction of zeros of counts by comparison with simulated counts.

    The result is empty if the targets are not counts, or if the draws have weights. Otherwise it has these entries:

    - `dispersion`: mean of (y - mean)^2 / variance over the rows, with the predictive mean and variance. Its
      expectation is 1 for correct predictions.
    - `dispersion_p`: p-value: fraction of the simulated sets of counts with at least the observed dispersion.
    - `zeros`: fraction of the observed counts that are 0.
    - `zeros_expected`: mean fraction of zeros in the simulated sets.
    - `zeros_p`: p-value: fraction of the simulated sets with at least the observed fraction of zeros.

    Both p-values count the observed set as one of the simulated sets. A set has one count per row and target. All
    counts of a set come from one draw of the parameters, because all rows share the uncertainty of the parameters.
    """
    if not predictor.has_counts or predictor.record.weights is not None:
        return {}
    rows = evenly(len(x), _MAX_ROWS)
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
    """Describe the rejected property of the predictions and suggest a likelihood; empty if no test rejects."""
    if "dispersion_p" not in estimates:
        return ""
    is_overdispersed, has_excess_zeros = (estimates[name].value <= LEVEL / 2 for name in ("dispersion_p", "zeros_p"))
    observed, expected = (100 * estimates[name].value for name in ("zeros", "zeros_expected"))
    zeros = f"{observed:.0f} % of the counts are 0, but {expected:.0f} % are expected" if has_excess_zeros else ""
    if is_overdispersed:
        problem = "the intervals are too narrow, because the counts are overdispersed: their squared errors are on "
        problem += f"average {estimates['dispersion'].value:.2g} times the predicted variance"
        problem += f"{'; ' if zeros else ''}{zeros}"
        remedy = "more inputs or a wider network may explain the excess variance"
    elif has_excess_zeros:
        problem = f"too few zeros are predicted, because the counts are zero-inflated: {zeros}"
        remedy = "a wider network may explain the additional zeros"
    else:
        return ""
    likelihood = getattr(predictor.posterior, "likelihood", None)
    likelihoods = ["negative-binomial"] if is_overdispersed and not isinstance(likelihood, NegativeBinomial) else []
    if has_excess_zeros and not isinstance(likelihood, ZeroInflatedPoisson):
        likelihoods.append("zero-inflated-poisson")
    if likelihoods:
        remedy = " or ".join([f"try {setting('likelihood', likelihoods[0])}", *likelihoods[1:]])
    return spell_settings(f"{problem} (significance level {LEVEL:g}); {remedy}", spelling())


def _simulate(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    mean: Float[np.ndarray, "row target"],
    variance: Float[np.ndarray, "row target"],
) -> tuple[Float[np.ndarray, " replicate"], Float[np.ndarray, " replicate"]]:
    """Return the dispersion and the fraction of zeros of each simulated set of counts."""
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
