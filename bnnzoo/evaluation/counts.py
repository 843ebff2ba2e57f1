"""Tests of predicted counts by simulation: dispersion and number of zeros."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo.evaluation import predictive
from bnnzoo.evaluation.metrics import Estimate
from bnnzoo.evaluation.predictive import Moments
from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.evaluation.record import evenly
from bnnzoo.finding import setting, spelling, spelt
from bnnzoo.posterior.counts import NegativeBinomial, ZeroInflatedPoisson

LEVEL = 0.01
"""Probability that a correct run is reported as too narrow or short of zeros; each of the two tests uses half of it."""
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
    seen = y[rows].astype(np.float64)
    pearson, zeros = _simulated(predictor, x[rows], mean, variance)
    observed = np.mean((seen - mean) ** 2 / variance), np.mean(seen == 0)

    def p(simulated: Float[np.ndarray, " replicate"], value: float) -> Estimate:
        return Estimate(float((1 + np.sum(simulated >= value * (1 - 1e-12))) / (1 + len(simulated))))

    return {
        "dispersion": Estimate(float(observed[0])),
        "dispersion_p": p(pearson, float(observed[0])),
        "zeros": Estimate(float(observed[1])),
        "zeros_expected": Estimate(float(zeros.mean())),
        "zeros_p": p(zeros, float(observed[1])),
    }


def caveat(predictor: Predictor, estimates: Mapping[str, Estimate]) -> str:
    """Describe what the tests reject and the likelihood to try; empty if they reject nothing."""
    if "dispersion_p" not in estimates:
        return ""
    too_wide, more_zeros = (estimates[name].value <= LEVEL / 2 for name in ("dispersion_p", "zeros_p"))
    shares = (
        f"{100 * estimates['zeros'].value:.0f} % of them are 0, but {100 * estimates['zeros_expected'].value:.0f} % are"
    )
    likelihood = getattr(predictor.posterior, "likelihood", None)
    is_inflated, is_dispersed = isinstance(likelihood, ZeroInflatedPoisson), isinstance(likelihood, NegativeBinomial)
    if too_wide:
        dispersion = f"{estimates['dispersion'].value:.2g} times the predicted variance"
        zeros = f"; {shares} expected" if more_zeros else ""
        ways = [] if is_dispersed else ["negative-binomial"]
        ways += ["zero-inflated-poisson"] if more_zeros and not is_inflated else []
        cure = "more inputs or a wider network may explain it"
        if ways:
            cure = " or ".join([f"try {setting('likelihood', ways[0])}", *ways[1:]])
        return spelt(
            f"the intervals are too narrow, because the counts are overdispersed: {dispersion}{zeros} (level "
            f"{LEVEL:g}); {cure}",
            spelling(),
        )
    if more_zeros:
        cure = "a wider network may explain it" if is_inflated else "try [[likelihood=zero-inflated-poisson]]"
        return spelt(
            f"too few zeros are predicted, because the counts are zero-inflated: {shares} expected (level "
            f"{LEVEL:g}); {cure}",
            spelling(),
        )
    return ""


def _simulated(
    predictor: Predictor,
    x: Shaped[np.ndarray, "row ..."],
    mean: Float[np.ndarray, "row target"],
    variance: Float[np.ndarray, "row target"],
) -> tuple[Float[np.ndarray, " replicate"], Float[np.ndarray, " replicate"]]:
    """Return dispersion and fraction of zeros of each simulated set of counts."""
    chains, count = predictor.record.shape
    kept = evenly(count, ceil(_REPLICATES / chains))
    rounds = ceil(_REPLICATES / (chains * len(kept)))
    pearson = np.zeros((rounds, chains * len(kept)))
    zeros = np.zeros_like(pearson)
    blocks = list(predictive.blocks(len(x), chains * len(kept) * mean.shape[1]))
    for turn in range(rounds):
        for number, block in enumerate(blocks):
            seed = 1 + turn * len(blocks) + number
            drawn = predictor.sample_each(x[block], kept, seed=seed).reshape(chains * len(kept), -1, mean.shape[1])
            away = (drawn.astype(np.float64) - mean[block]) ** 2 / variance[block]
            pearson[turn] += away.sum((1, 2))
            zeros[turn] += (drawn == 0).sum((1, 2))
    return pearson.ravel() / mean.size, zeros.ravel() / mean.size
