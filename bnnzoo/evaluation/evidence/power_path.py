"""Estimates of log p(D) from runs whose likelihoods have different powers, between 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from bnnzoo.evaluation.evidence.estimate import Evidence, log_mean_exp
from bnnzoo.evaluation.formulas import weight_tail
from bnnzoo.evaluation.formulas.rhat import convergence


def integrate_powers(powers: Float[np.ndarray, " run"], values: Sequence[Float[np.ndarray, "chain draw"]]) -> Evidence:
    """Integrate the mean log-likelihood over the power b of the likelihood (thermodynamic integration).

    Let L be the likelihood and Z(b) the integral of L^b times the prior. Let E(b) and V(b) be the mean and the variance
    of log L for the run with the power b. Then d log Z(b) / db = E(b), and log p(D) is the integral of E(b) from 0 to
    1. The trapezoid between neighbouring powers b and c is corrected by -(c - b)^2 / 12 (V(c) - V(b)), because V is the
    derivative of E (Friel, Hurn and Wyse 2014). The standard error comes from the effective sample sizes of the runs.
    `discretisation` is the absolute difference from the result without every second run. This difference is usually
    larger than the error due to the finite number of powers.

    Args:
        powers: ascending powers.
        values: log-likelihood of all data for each draw, one array per power.
    """
    weights = _weights(powers)
    integral, variance = 0.0, 0.0
    for (linear, quadratic), values_by_draw in zip(weights, values, strict=True):
        influence = linear * values_by_draw + quadratic * (values_by_draw - values_by_draw.mean()) ** 2
        integral += float(influence.mean())
        variance += convergence(influence[:, :, None])["mcse"] ** 2
    coarse_runs = _every_second_index(len(powers))
    moments = [(values_by_draw.mean(), values_by_draw.var()) for values_by_draw in values]
    coarse_integral = sum(
        float(np.dot(coefficients, moments[i]))
        for i, coefficients in zip(coarse_runs, _weights(powers[coarse_runs]), strict=True)
    )
    meaning = (
        f"the integral of the mean log likelihood over the power of the likelihood, from {len(powers)} runs; the error "
        "is the Monte Carlo error; the error from the finite number of powers is given separately"
    )
    return Evidence(
        integral,
        math.sqrt(variance),
        "thermodynamic integration",
        meaning,
        discretisation=abs(integral - coarse_integral),
    )


def stepping_stones(powers: Float[np.ndarray, " run"], values: Sequence[Float[np.ndarray, "chain draw"]]) -> Evidence:
    """Estimate log p(D) by the sum of the log ratios at neighbouring powers (stepping stones, Xie et al. 2011).

    Let L be the likelihood and Z(b) the integral of L^b times the prior. For neighbouring powers b < c, the ratio
    Z(c) / Z(b) is the mean of L^(c - b) over the draws with the power b. There is no error due to the finite number of
    powers. The variance of the estimate is finite even if the variance of log L is infinite, for example under the
    prior of a sampled noise scale.

    Args:
        powers: ascending powers.
        values: log-likelihood of all data for each draw, one array per power.
    """
    log_ratio_sum, variance, problem = 0.0, 0.0, ""
    for gap, values_by_draw in zip(np.diff(powers), values, strict=False):
        weights = gap * values_by_draw
        value, _ = log_mean_exp(weights.reshape(-1))
        log_ratio_sum += value
        variance += convergence(np.exp(weights - value)[:, :, None])["mcse"] ** 2
        problem = problem or weight_tail.problem_of(weights)
    if not math.isfinite(variance):
        problem = problem or "its standard error cannot be estimated"
    meaning = (
        "computed as the product of the ratios of the marginal likelihoods at neighbouring powers "
        f"({len(powers)} powers), because the mean log likelihood cannot be integrated over the powers: it is too "
        "curved between neighbouring powers, or the log likelihood has no finite variance at power 0"
        f"{f'; {problem}: do not trust it, add runs with more powers' if problem else ''}"
    )
    return Evidence(log_ratio_sum, math.sqrt(variance), "stepping stones", meaning, trusted=not problem)


def _weights(powers: Float[np.ndarray, " run"]) -> Float[np.ndarray, "run two"]:
    """Return the coefficients with which the mean and the variance of each run enter the integral."""
    gaps = np.diff(powers)
    linear, quadratic = np.zeros_like(powers), np.zeros_like(powers)
    linear[:-1] += gaps / 2
    linear[1:] += gaps / 2
    quadratic[:-1] += gaps**2 / 12
    quadratic[1:] -= gaps**2 / 12
    return np.stack([linear, quadratic], 1)


def _every_second_index(count: int) -> Int[np.ndarray, " some"]:
    """Return the even numbers below `count`, and `count` - 1."""
    return np.unique([*range(0, count, 2), count - 1])
