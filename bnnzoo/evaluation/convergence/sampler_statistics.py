"""Summaries of the statistics that the sampler recorded in its steps, and of its inspection at the end of the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Shaped

from bnnzoo.evaluation.formulas.rhat import convergence


def of_statistics(
    stats: Mapping[str, Shaped[Any, "..."]], *, averaged: Collection[str] = (), thin: int = 1
) -> dict[str, float]:
    """Summarise the statistics of the steps of the sampler.

    - Means over all steps: the statistics in `averaged`, and `diverging`, the fraction of divergent steps.
    - `acceptance_rate_min`: smallest mean acceptance rate of a chain.
    - `lp_rhat`, `lp_ess`: R-hat and bulk ESS of the log density `lp`. A sampler that only has a mini-batch estimate of
      the log density does not record `lp`, because the estimate is too noisy.
    - `ebfmi`: smallest energy Bayesian fraction of missing information of a chain. It compares the energies of
      successive steps, so it is not available for a thinned run.

    Args:
        stats: the statistics, by name.
        averaged: names of the statistics that the sampler summarises by their mean over the run.
        thin: number of steps from one recorded draw to the next.
    """
    result = {name: float(np.mean(np.asarray(stats[name]))) for name in stats if name in averaged}
    if "acceptance_rate" in stats:
        result["acceptance_rate_min"] = float(np.min(np.mean(np.asarray(stats["acceptance_rate"]), 1)))
    if "diverging" in stats:
        result["diverging"] = float(np.mean(np.asarray(stats["diverging"])))
    if "lp" in stats:
        density = convergence(np.asarray(stats["lp"], float)[:, :, None])
        result["lp_rhat"], result["lp_ess"] = density["rhat"], density["ess_bulk"]
    if "energy" in stats and thin == 1:
        energy = np.asarray(stats["energy"], float)
        with np.errstate(divide="ignore", invalid="ignore"):
            result["ebfmi"] = float(np.min(np.mean(np.diff(energy) ** 2, 1) / np.var(energy, 1)))
    return result


def of_inspection(inspected: str) -> dict[str, float]:
    """Summarise the numbers that the sampler computed in its inspection of each chain at the end of the run.

    - `unseen`, `unseen_shift`: fraction of the curvature that the steps miss, and the resulting shift of a mean in
      standard deviations. Each number is the mean over the chains or half of the largest value of a chain, whichever is
      larger.
    - `variance_ratio`: variance of the draws in an average direction, divided by the posterior variance, as estimated
      by a sampler without a Metropolis test; mean over chains. `variance_ratio_se` is its standard error, if the
      sampler reports one.
    - `variance_ratio_worst`: the same ratio in the direction where it is largest; mean over chains.
    - `rows_needed`: number of rows per step with which the noise penalty would have sigma2 = 1, where sigma2 is the
      variance of the noise in the log acceptance ratio; mean over chains.
    - `unbiased_step_size`: step size at which the variance ratios would hardly exceed 1; smallest value of all chains.

    Args:
        inspected: the attribute `inspected` of the file, a JSON object with a list of values per chain.
    """
    inspection = json.loads(inspected)

    def severe(values: Sequence[float]) -> float:
        return np.maximum(np.mean(values), np.max(values) / 2)

    def combined_error(values: Sequence[float]) -> float:
        return np.sum(np.square(values)) ** 0.5 / len(values)

    summaries: dict[str, Callable[[Sequence[float]], Any]] = {
        **dict.fromkeys(("unseen", "unseen_shift"), severe),
        **dict.fromkeys(("variance_ratio", "variance_ratio_worst", "rows_needed"), np.mean),
        "unbiased_step_size": np.min,
        "variance_ratio_se": combined_error,
    }
    return {name: float(summarise(inspection[name])) for name, summarise in summaries.items() if name in inspection}
