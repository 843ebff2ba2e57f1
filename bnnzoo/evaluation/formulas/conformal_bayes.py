"""Conformal Bayes by add-one-in importance weights: arrays of log likelihoods in, sets of targets out.

Fong and Holmes (2021, "Conformal Bayesian computation", NeurIPS). A candidate y of a new row reweights the draws
theta_t of the posterior given the n training rows: w_t(y) is proportional to p(y | x, theta_t)^power. Under these
weights the draws are of the posterior given all n + 1 rows. The score of a row is its posterior predictive density in
units of the standard deviation that each draw predicts for the row,

    sigma_i(y) = sum_t w_t(y) p(y_i | x_i, theta_t) sd(x_i, theta_t),
    sigma_new(y) = sum_t w_t(y) p(y | x, theta_t) sd(x, theta_t).

Without the standard deviations, which Fong and Holmes do not use, rows with much noise have low densities everywhere,
and their sets are too small or empty. The set contains each y whose score has a rank of at least
floor(alpha (n + 1)) + 1 among the n + 1 scores, counted from the lowest. For exchangeable rows and exact draws it holds
the target with probability at least 1 - alpha.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

_GRID, _POINTS = 33, 16
"""Candidates in the first grid of a row, and in each later grid at one end of its set."""
_MAX_STEPS = 64
_ERROR = 1e-3
"""Error of an end, as a multiple of the width of the first grid; ends are rounded outwards."""
_SCORES = 2**23
"""Largest number of scores, rows x candidates x training rows, that are computed at a time."""


def least_rank(alpha: float, num_rows: int) -> int:
    """Return the smallest rank of a candidate in the set; the lowest score has rank 1.

    Args:
        alpha: one minus the level.
        num_rows: number of training rows, without the new one.
    """
    return math.floor(alpha * (num_rows + 1) + 1e-9) + 1


class ConformalBayes(NamedTuple):
    """The test of whether a candidate is in the conformal set of its row, from the scores of the training rows."""

    relative: Float[Array | np.ndarray, "draw train"]
    """p(y_i | x_i, theta_t) sd(x_i, theta_t) over its largest value among the draws."""
    log_largest: Float[Array | np.ndarray, " train"]
    log_weights: Float[Array | np.ndarray, " draw"]
    """Log weights of the draws themselves, such as those of an importance sampler."""
    power: float | Array
    """Power of the likelihood in the posterior."""
    alpha: float
    """One minus the level."""

    @classmethod
    def from_log_scores(
        cls,
        log_scores: Float[np.ndarray, "draw train"],
        log_weights: Float[np.ndarray, " draw"],
        *,
        power: float,
        alpha: float,
    ) -> ConformalBayes:
        """Divide the scores of each row by the largest, so that float32 holds the others.

        Args:
            log_scores: log p(y_i | x_i, theta_t) + log sd(x_i, theta_t); for classes log p(y_i | x_i, theta_t).
            log_weights: log weights of the draws.
            power: power of the likelihood in the posterior.
            alpha: one minus the level.
        """
        largest = log_scores.max(0)
        relative = np.exp(log_scores - largest).astype(np.float32)
        return cls(relative, largest.astype(np.float32), log_weights, power, alpha)

    def included(
        self,
        log_densities: Float[Array | np.ndarray, "draw candidate row"],
        log_sds: Float[np.ndarray, "draw row"] | None = None,
    ) -> Bool[np.ndarray, "candidate row"]:
        """Return whether each candidate is in the conformal set of its row.

        Args:
            log_densities: log p(y | x, theta_t) of the candidates.
            log_sds: log sd(x, theta_t) of the rows; None for classes.
        """
        num_training, (_, candidates, rows) = len(self.log_largest), log_densities.shape
        length = max(1, min(rows, _SCORES // (candidates * num_training)))
        padded = np.minimum(np.arange(-(-rows // length) * length), rows - 1)
        rank = least_rank(self.alpha, num_training)
        # As an array, the power takes part in the promotion to float64.
        conformal = self._replace(power=jnp.asarray(self.power))
        units = np.zeros((len(log_densities), rows), np.float32) if log_sds is None else log_sds
        blocks = [
            np.asarray(_included(conformal, log_densities[:, :, block], units[:, block], rank))
            for block in np.split(padded, len(padded) // length)
        ]
        return np.concatenate(blocks, 1)[:, :rows]


@jax.jit
def _included(
    conformal: ConformalBayes,
    log_densities: Float[Array, "draw candidate row"],
    log_sds: Float[Array, "draw row"],
    least: Array | int,
) -> Bool[Array, "candidate row"]:
    logits = conformal.power * log_densities + jnp.asarray(conformal.log_weights)[:, None, None]
    log_draw_weights = jax.nn.log_softmax(logits, 0)
    new_score = jax.nn.logsumexp(log_draw_weights + log_densities + jnp.asarray(log_sds)[:, None, :], 0)
    draw_weights = jnp.exp(log_draw_weights).astype(jnp.float32)
    scores = jnp.tensordot(jnp.asarray(conformal.relative), draw_weights, [[0], [0]])
    # A score that underflows counts as lower than that of the candidate, which makes the set larger.
    not_above = jnp.log(scores) + jnp.asarray(conformal.log_largest)[:, None, None] <= new_score
    return (1 + not_above.sum(0) >= least) & jnp.isfinite(new_score)


Contains = Callable[[Float[np.ndarray, "candidate row"]], Bool[np.ndarray, "candidate row"]]
"""Whether each candidate is in the set of its row."""


def hull(
    contains: Contains, low: Float[np.ndarray, " row"], high: Float[np.ndarray, " row"], *, discrete: bool = False
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """Return the smallest interval that holds the set of each row, from candidates on a grid.

    Ends are rounded outwards, by less than 0.1 % of the width of the first grid. Parts of the set that lie between two
    candidates of the first grid are missed. If no candidate is in the set, the interval is the whole first grid.

    Args:
        contains: whether candidates are in the sets.
        low: the lower end of the first interval, such as that of the Bayesian interval.
        high: the upper end; the first grid is three times as wide.
        discrete: targets are whole numbers; the interval then begins and ends with a member of the set.
    """
    unit = np.maximum(high - low, 2.0 if discrete else np.finfo(np.float32).tiny)
    grid = _rounded(np.linspace(low - unit, high + unit, _GRID), discrete)
    inside = contains(grid)
    lower, upper = (
        _end(contains, grid[::side], inside[::side], side, unit=unit, discrete=discrete) for side in (-1, 1)
    )
    return lower, upper


def _end(
    contains: Contains,
    grid: Float[np.ndarray, "candidate row"],
    inside: Bool[np.ndarray, "candidate row"],
    side: int,
    *,
    unit: Float[np.ndarray, " row"],
    discrete: bool,
) -> Float[np.ndarray, " row"]:
    """Return one end of the interval: widen the grid until its last candidate is outside, then refine."""
    inner, outer, is_open = _outermost(grid, inside, grid[-1])
    limit, step = np.maximum(_ERROR * unit, 1.0 if discrete else 0.0), 2 * unit
    for _ in range(_MAX_STEPS):
        is_active = is_open | (np.abs(outer - inner) > limit)
        if not is_active.any():
            break
        points = np.linspace(inner, np.where(is_open, inner + side * step, outer), _POINTS + 1)[1:]
        points = _rounded(points, discrete)
        new_inner, new_outer, new_open = _outermost(points, contains(points), inner)
        inner, outer = np.where(is_active, new_inner, inner), np.where(is_active, new_outer, outer)
        is_open, step = is_open & new_open, 2 * step
    return np.where(is_open, side * np.inf, inner if discrete else outer)


def _outermost(
    points: Float[np.ndarray, "candidate row"],
    inside: Bool[np.ndarray, "candidate row"],
    default: Float[np.ndarray, " row"],
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"], Bool[np.ndarray, " row"]]:
    """Return the last candidate inside (or the default), the next one, and whether the final candidate is inside."""
    count, has_inside = len(points), inside.any(0)
    last = np.where(has_inside, count - 1 - inside[::-1].argmax(0), -1)
    columns = np.arange(points.shape[1])
    inner = np.where(has_inside, points[last, columns], default)
    return inner, points[np.minimum(last + 1, count - 1), columns], inside[-1]


def _rounded(points: Float[np.ndarray, "candidate row"], discrete: bool) -> Float[np.ndarray, "candidate row"]:
    return np.round(points) if discrete else points
