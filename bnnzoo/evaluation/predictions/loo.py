"""Leave-one-out predictions of the training rows by Pareto-smoothed importance sampling (PSIS-LOO).

The importance weights convert draws of the posterior given all rows to draws of the posterior without one row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.formulas import metrics, stacking, weight_tail
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.recipe import recipe_from

_ROWS = 2000
"""Largest number of training rows that are predicted, evenly spaced."""
_EQUAL_WEIGHTS_ESS = 0.99
"""Effective sample size per draw above which weights count as equal if no tail can be fitted to the weights."""


class Loo(NamedTuple):
    """Leave-one-out log densities of the rows.

    `log_density` is log p(y_i | all rows but i) of each row i. `pareto_k` is the Pareto k of the importance weights of
    each row. If it exceeds `good_k`, the log density of the row is unreliable.
    """

    log_density: Float[np.ndarray, " row"]
    pareto_k: Float[np.ndarray, " row"]
    good_k: float


def leave_one_out(
    log_likelihood: Float[np.ndarray, "chain draw row"],
    *,
    power: float = 1.0,
) -> Loo:
    """Compute PSIS-LOO (Vehtari, Gelman and Gabry 2017; Vehtari et al. 2024).

    Args:
        log_likelihood: log p(y_i | x_i, theta) of each draw and row.
        power: power of the likelihood in the posterior. The weight of a draw is the likelihood of the row to the power
            -`power`. This weight removes the row from the posterior.
    """
    values = np.asarray(log_likelihood, np.float64)
    count = values.shape[0] * values.shape[1]
    efficiency = _relative_ess(values)
    flat = np.moveaxis(values, 2, 0).reshape(-1, count)
    weights, pareto_k = np.empty_like(flat), np.empty(len(flat))
    for row, ratios in enumerate(-power * flat):
        weights[row], pareto_k[row] = smooth_weights(ratios, efficiency)
    if has_stuck_chains(values):
        pareto_k[:] = math.inf
    density = np.asarray(special.logsumexp(weights + flat, 1)) - np.asarray(special.logsumexp(weights, 1))
    return Loo(density, pareto_k, good_pareto_k(count))


def has_stuck_chains(log_likelihood: Float[np.ndarray, "chain draw row"]) -> bool:
    """Whether all draws of each chain have the same log likelihoods; equal importance weights are then meaningless.

    If all log likelihoods are exactly 0, the result is false: a confident classifier has probabilities that round to 1,
    even for draws that differ.
    """
    return bool((log_likelihood == log_likelihood[:, :1]).all() and log_likelihood.any())


def by_chain(log_likelihood: Float[np.ndarray, "chain draw row"], *, power: float) -> list[Loo]:
    """Compute leave-one-out predictions from the draws of each chain alone; for the arguments see `leave_one_out`."""
    return [leave_one_out(values[None], power=power) for values in log_likelihood]


def mixture_of_chains(chains: Sequence[Loo], weights: Float[np.ndarray, " chain"]) -> Loo:
    """Return the leave-one-out predictions of the mixture of the chains, with the largest Pareto k of any chain."""
    density = stacking.mixture(np.stack([chain.log_density for chain in chains]), weights)
    return Loo(density, np.max([chain.pareto_k for chain in chains], 0), chains[0].good_k)


def good_pareto_k(num_draws: int) -> float:
    """Return the largest Pareto k of reliable weights: 0.7, or less for few draws (Vehtari et al. 2024)."""
    return min(1 - 1 / math.log10(num_draws), 0.7) if num_draws > 10 else 0.0


def estimates(predictor: Predictor) -> dict[str, Estimate]:
    """Return leave-one-out metrics of at most 2000 training rows.

    The result is empty if the draws are from an approximation, if there are fewer than ten draws, or if the file has no
    training rows.
    """
    record = predictor.record
    chains, count = record.shape
    if record.attributes["exactness"] == "approximate" or chains * count < 10 or not record.has_training_rows:
        return {}
    x, y = record.training_rows(_ROWS)
    values = predictor.log_likelihoods(x, y, record.kept_draws(len(x)))
    power = float(record.attributes["likelihood_power"])
    if record.chain_weights is None:
        loo = leave_one_out(values, power=power)
    else:
        loo = mixture_of_chains(by_chain(values, power=power), record.chain_weights)
    return {
        "loo_nll": metrics.negative_log_likelihood(loo.log_density),
        "loo_pareto_k": Estimate(float(np.max(loo.pareto_k))),
        "loo_pareto_k_bad": Estimate(float(np.mean(~(loo.pareto_k <= loo.good_k)))),
        "loo_rows": Estimate(len(x)),
    }


def caveat(record: Record) -> str:
    """Explain why the leave-one-out metrics of a run are not exact; empty if there is no reason."""
    attributes, reasons = record.attributes, []
    if attributes["exactness"] == "biased":
        reasons.append("the sampler is biased, so the draws are not from the posterior")
    if attributes.get("regime_ok") == 0:
        reasons.append("the run violates the assumptions of its sampler")
    is_partial = record.names_a_model and recipe_from(attributes["recipe"]).stochastic != "all"
    if is_partial and not _samples_all_directions(attributes):
        reasons.append("the fixed parameters were trained on all rows, including the row that is left out")
    return f"loo_nll: {'; '.join(reasons)}" if reasons else ""


def _samples_all_directions(attributes: Mapping[str, Any]) -> bool:
    """Whether the sampled subspace contains all directions of the parameter space, none of them approximated."""
    subspace = json.loads(attributes.get("subspace", "{}"))
    return subspace.get("kind") == "identified" and subspace["directions"] == subspace["parameters"]


def smooth_weights(
    log_ratios: Float[np.ndarray, " draw"], efficiency: float
) -> tuple[Float[np.ndarray, " draw"], float]:
    """Return Pareto-smoothed log weights, and Pareto k.

    If the weights are almost equal, k is 0. If no tail can be fitted to other weights, for example because most draws
    are equal, the log ratios are returned without smoothing, with an infinite k.

    Args:
        log_ratios: log importance ratio of each draw.
        efficiency: effective sample size per draw.
    """
    if np.ptp(log_ratios) < weight_tail.EQUAL_WEIGHTS_RANGE:
        return log_ratios, 0.0
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    smooth: Any = array_stats.psislw
    try:
        with np.errstate(all="ignore"):
            weights, pareto_k = smooth(-log_ratios, r_eff=efficiency)
    except ValueError:
        weights, pareto_k = log_ratios, math.nan
    if not np.isnan(pareto_k) and np.isfinite(weights).all():
        return weights, float(pareto_k)
    with np.errstate(all="ignore"):
        raw_weights = np.exp(log_ratios - log_ratios.max())
        relative_ess = raw_weights.sum() ** 2 / np.sum(raw_weights**2) / len(raw_weights)
    return log_ratios, 0.0 if relative_ess > _EQUAL_WEIGHTS_ESS else math.inf


def _relative_ess(values: Float[np.ndarray, "chain draw row"], max_rows: int = 50) -> float:
    """Return the relative ESS of the likelihood (effective sample size divided by draws), averaged over some rows.

    The smoothing computes the length of the tail from this number. The result is 1 if no estimate is possible.
    """
    rows = np.linspace(0, values.shape[2] - 1, min(max_rows, values.shape[2])).round().astype(int)
    selected = values[:, :, rows]
    likelihood = np.exp(selected - selected.max((0, 1)))
    if values.shape[1] < 4:
        return 1.0
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    with np.errstate(all="ignore"):
        relative_ess = np.asarray(array_stats.ess(np.moveaxis(likelihood, 2, 0), method="mean", relative=True))
    relative_ess = relative_ess[np.isfinite(relative_ess) & (relative_ess > 0)]
    return float(min(1.0, relative_ess.mean())) if len(relative_ess) else 1.0
