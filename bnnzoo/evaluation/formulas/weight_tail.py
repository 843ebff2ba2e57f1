"""Tail of the distribution of importance weights: its Pareto shape, and a finding if the tail is too heavy."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from bnnzoo.finding import Finding, setting

EQUAL_WEIGHTS_RANGE = 1e-3
"""If the range of all log weights is smaller than this number, the weights count as equal and no tail is fitted."""


def pareto_k(log_weights: Float[np.ndarray, "*draws"]) -> float:
    """Return Pareto k, the shape of a generalised Pareto distribution that is fitted to the largest weights.

    Pareto k is 0 if all weights are almost equal, and infinite with fewer than 25 weights or if no fit is possible.

    See Vehtari, Simpson, Gelman, Yao and Gabry 2024, J. Mach. Learn. Res. 25(72).
    """
    finite = np.sort(log_weights[np.isfinite(log_weights)].astype(np.float64))
    if 25 <= finite.size == log_weights.size and np.ptp(finite) < EQUAL_WEIGHTS_RANGE:
        return 0.0
    tail = finite[-1 - int(np.ceil(min(finite.size / 5, 3 * finite.size**0.5))) :]
    # A tail cannot be fitted to fewer than 25 weights, or if all weights in the tail are equal. If the largest weight
    # is more than e^700 times the smallest weight in the tail, the smallest one underflows to 0.
    if finite.size < 25 or not 0 < tail[-1] - tail[0] < 700:
        return float("inf")
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    # ArviZ expects negative log weights. It returns NaN if the tail is too short for a fit.
    with np.errstate(over="ignore", invalid="ignore"):
        shape = float(array_stats.psislw(-finite)[1])
    return float("inf") if np.isnan(shape) else shape


def of_weights(log_weights: Float[np.ndarray, "*draws"]) -> tuple[Finding, ...]:
    """Return a finding if the tail of the weights is too heavy; the finding states the effective number of draws."""
    k, size = pareto_k(log_weights), log_weights.size
    k_limit = min(1 - 1 / np.log10(max(size, 11)), 0.7)
    if k <= k_limit:
        return ()
    relative_weights = np.exp(log_weights - log_weights.max()) if np.isfinite(log_weights).any() else np.zeros(1)
    effective_draws = relative_weights.sum() ** 2 / max((relative_weights**2).sum(), np.finfo(float).tiny)
    advice = (
        f"the effective sample size of the weights is only {effective_draws:.1f} for {size} draws: use more "
        f"{setting('draws')}, or the sampler nuts"
    )
    return (Finding("validity", "weights", "Pareto k of the weights", k, k_limit, advice),)


def problem_of(log_weights: Float[np.ndarray, "*draws"]) -> str:
    """Return the finding of `of_weights` as text without advice; empty if there is no finding."""
    return "".join(f"{finding.label} is {finding.value:.2g}" for finding in of_weights(log_weights))
