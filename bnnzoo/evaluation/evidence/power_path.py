"""Integrals of the log-likelihood along a path of likelihood powers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from bnnzoo.evaluation.evidence.estimate import Evidence, log_mean_exp
from bnnzoo.evaluation.formulas import weight_tail
from bnnzoo.evaluation.formulas.rhat import convergence


def integrate_powers(powers: Float[np.ndarray, " run"], values: Sequence[Float[np.ndarray, "chain draw"]]) -> Evidence:
    """Integrate E_b[log L] = d log Z(b) / db over the power b, with Z(b) the integral of L^b times the prior.

    Each trapezoid is corrected by the derivatives at its ends, -(b' - b)^2 / 12 (V' - V) (Friel, Hurn and Wyse 2014).
    Here V = dE/db is the variance of log L. The error is that of the means and variances, from the runs' effective
    sample sizes. `discretisation` is the difference to the result without every second run, which is usually an
    overestimate.

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
        f"the integral over the likelihood's power of its mean log, from {len(powers)} runs; the error is the "
        "Monte Carlo error; the largest error from the finite number of powers is given separately"
    )
    return Evidence(
        integral,
        math.sqrt(variance),
        "thermodynamic integration",
        meaning,
        discretisation=abs(integral - coarse_integral),
    )


def stepping_stones(powers: Float[np.ndarray, " run"], values: Sequence[Float[np.ndarray, "chain draw"]]) -> Evidence:
    """Sum log E_b[L^(b' - b)] over the powers; each term is a ratio of integrals Z(b') / Z(b) (Xie et al. 2011).

    The result is exact for any distance of the powers. Its variance is finite even where log L has none, for example
    under the prior of a sampled noise scale.

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
        problem = problem or "its error is unknown"
    meaning = (
        f"the product of the ratios of the integrals at {len(powers)} powers, each ratio a mean weight; the mean log "
        "likelihood cannot be integrated over the powers, because it is too curved between them or has no variance "
        f"at power 0{f'; {problem}: do not trust it, give more powers' if problem else ''}"
    )
    return Evidence(log_ratio_sum, math.sqrt(variance), "stepping stones", meaning, trusted=not problem)


def _weights(powers: Float[np.ndarray, " run"]) -> Float[np.ndarray, "run two"]:
    """Return the coefficients of each run's mean and variance in the integral."""
    gaps = np.diff(powers)
    linear, quadratic = np.zeros_like(powers), np.zeros_like(powers)
    linear[:-1] += gaps / 2
    linear[1:] += gaps / 2
    quadratic[:-1] += gaps**2 / 12
    quadratic[1:] -= gaps**2 / 12
    return np.stack([linear, quadratic], 1)


def _every_second_index(count: int) -> Int[np.ndarray, " some"]:
    """Return every second of `count` indices, and the last one."""
    return np.unique([*range(0, count, 2), count - 1])
