"""Weights of chains that do not mix, by stacking of their predictions (Yao, Vehtari and Gelman, JMLR 23, 2022)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize, special

MIN_ROWS = 20
"""Smallest number of rows from which weights are computed."""
_FOLDS = 10
_PRIOR = 0.001
"""Exponent of the weights in their prior, a Dirichlet distribution with the parameter 1.001 for each chain."""
_SMALLEST = 1e-6
"""Smallest weight, so that the log prior is finite."""


class Stacking(NamedTuple):
    """Weights of the chains, and their gain in log score over equal weights."""

    weights: Float[np.ndarray, " chain"]
    gain: float
    """Mean log predictive density per row with `weights`, minus the mean with equal weights, in nats.

    The gain of a row is computed with weights from other rows, so it is not increased by the choice of the weights."""
    error: float
    """Standard error of the gain, from the variation between rows."""

    @property
    def is_better(self) -> bool:
        """Whether the gain exceeds two standard errors."""
        return self.gain > 2 * self.error


def stack(log_density: Float[np.ndarray, "chain row"]) -> Stacking:
    """Return the weights for which the mixture of the chains has the largest sum of log densities.

    Args:
        log_density: log predictive density of each row under each chain alone, given the other rows.
    """
    values = np.asarray(log_density, np.float64)
    gains = np.empty(values.shape[1])
    for fold in range(_FOLDS):
        is_held_out = np.arange(values.shape[1]) % _FOLDS == fold
        weights = _best_weights(values[:, ~is_held_out])
        held_out = values[:, is_held_out]
        gains[is_held_out] = mixture(held_out, weights) - mixture(held_out, np.full(len(values), 1 / len(values)))
    return Stacking(_best_weights(values), float(gains.mean()), float(gains.std(ddof=1) / len(gains) ** 0.5))


def mixture(
    log_density: Float[np.ndarray, "chain row"], weights: Float[np.ndarray, " chain"]
) -> Float[np.ndarray, " row"]:
    """Return the log density of each row under the mixture of the chains with these weights."""
    return np.asarray(special.logsumexp(log_density, 0, b=weights[:, None]))


def _best_weights(log_density: Float[np.ndarray, "chain row"]) -> Float[np.ndarray, " chain"]:
    """Return the weights that maximise the log density of all rows under the mixture, plus the log prior.

    The objective is concave in the weights.
    """
    chains, rows = log_density.shape
    density = np.exp(log_density - log_density.max(0))

    def loss(weights: Float[np.ndarray, " chain"]) -> tuple[float, Float[np.ndarray, " chain"]]:
        total = weights @ density
        value = np.log(total).mean() + _PRIOR * np.log(weights).sum() / rows
        return -value, -((density / total).mean(1) + _PRIOR / weights / rows)

    result = optimize.minimize(
        loss,
        np.full(chains, 1 / chains),
        jac=True,
        method="SLSQP",
        bounds=[(_SMALLEST, 1.0)] * chains,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-10, "maxiter": 200},
    )
    return result.x / result.x.sum()
