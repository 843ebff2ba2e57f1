"""Conformal Bayes: sets of targets for new rows, from the log likelihoods of draws.

The method is by Fong and Holmes (2021, "Conformal Bayesian computation", NeurIPS). Let theta_t be draws of the
posterior given n training rows, and let y be a candidate for the target of a new row with inputs x. The weight of draw
t for this candidate is w_t(y), proportional to p(y | x, theta_t)^power, with the sum 1. With these weights, the draws
represent the posterior given all n + 1 rows. The score of a row is its posterior predictive density, in units of the
standard deviation that each draw predicts for the row:

    score of training row i:  sum_t w_t(y) p(y_i | x_i, theta_t) sd(x_i, theta_t),
    score of the new row:     sum_t w_t(y) p(y | x, theta_t) sd(x, theta_t).

Fong and Holmes do not multiply by the standard deviations. Without them, rows with much noise have low densities
everywhere, and their sets are too small or empty. For each candidate y, the new row's score has a rank among the n + 1
scores, and the lowest score has rank 1. The conformal set contains the candidates whose rank is at least
floor(alpha (n + 1)) + 1. For exchangeable rows and exact draws, the set contains the target with probability at least
1 - alpha.
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
"""Number of candidates in the first grid of a row, and in each later grid that refines one end of its set."""
_MAX_STEPS = 64
"""Largest number of grids that refine one end."""
_ERROR = 1e-3
"""Largest error of an end, relative to the width of the first interval in `hull`; ends are rounded outwards."""
_SCORES = 2**23
"""Largest number of scores (rows x candidates x training rows) that are computed at a time."""


def least_rank(alpha: float, num_rows: int) -> int:
    """Return the smallest rank with which a candidate belongs to the conformal set; the lowest score has rank 1.

    Args:
        alpha: one minus the level of the set.
        num_rows: number of training rows, without the new row.
    """
    return math.floor(alpha * (num_rows + 1) + 1e-9) + 1


class ConformalBayes(NamedTuple):
    """Test whether a candidate target is in the conformal set of its row, prepared for the training rows of a run."""

    relative: Float[Array | np.ndarray, "draw train"]
    """p(y_i | x_i, theta_t) sd(x_i, theta_t) of each draw t and row i, divided by its largest value over the draws."""
    log_largest: Float[Array | np.ndarray, " train"]
    """Logarithm of the largest value of p(y_i | x_i, theta_t) sd(x_i, theta_t) over the draws t, for each row i."""
    log_weights: Float[Array | np.ndarray, " draw"]
    """Log weights of the draws in the run, such as the weights of an importance sampler."""
    power: float | Array
    """Power of the likelihood in the posterior."""
    alpha: float
    """One minus the level of the sets."""

    @classmethod
    def from_log_scores(
        cls,
        log_scores: Float[np.ndarray, "draw train"],
        log_weights: Float[np.ndarray, " draw"],
        *,
        power: float,
        alpha: float,
    ) -> ConformalBayes:
        """Prepare the test from the log scores of the training rows under each draw.

        The scores of each row are divided by the largest score of the row, so that float32 does not underflow.

        Args:
            log_scores: log p(y_i | x_i, theta_t) + log sd(x_i, theta_t); for classes log p(y_i | x_i, theta_t).
            log_weights: log weights of the draws in the run.
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
        # The power is converted to an array, so that JAX promotes to float64 where the power is a float64 array.
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
    # A score that underflows to 0 counts as lower than the score of the new row, which makes the set larger.
    not_above = jnp.log(scores) + jnp.asarray(conformal.log_largest)[:, None, None] <= new_score
    return (1 + not_above.sum(0) >= least) & jnp.isfinite(new_score)


Contains = Callable[[Float[np.ndarray, "candidate row"]], Bool[np.ndarray, "candidate row"]]
"""Function that returns whether each candidate is in the set of its row."""


def hull(
    contains: Contains, low: Float[np.ndarray, " row"], high: Float[np.ndarray, " row"], *, discrete: bool = False
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """Return the smallest interval that contains the conformal set of each row, from candidates on a grid.

    The search begins with a grid of candidates from `low` - w to `high` + w, where w = `high` - `low`. A part of the
    set that lies between two neighbouring candidates of this grid is missed. If no candidate of this grid is in the
    set, the interval is the range of the grid. Both ends are rounded outwards, by at most 0.1 % of w. An end is
    infinite if even the farthest candidates are in the set.

    Args:
        contains: function that returns whether candidates are in the sets.
        low: lower end of a first interval, such as the Bayesian interval.
        high: upper end of the first interval.
        discrete: whether targets are whole numbers; the ends of the interval are then members of the set.
    """
    unit = np.maximum(high - low, 2.0 if discrete else np.finfo(np.float32).tiny)
    grid = _round_if_discrete(np.linspace(low - unit, high + unit, _GRID), discrete)
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
    """Return one end of each set: widen the grid until its last candidate is outside the set, then refine the end."""
    inner, outer, is_open = _outermost(grid, inside, grid[-1])
    limit, step = np.maximum(_ERROR * unit, 1.0 if discrete else 0.0), 2 * unit
    for _ in range(_MAX_STEPS):
        is_active = is_open | (np.abs(outer - inner) > limit)
        if not is_active.any():
            break
        points = np.linspace(inner, np.where(is_open, inner + side * step, outer), _POINTS + 1)[1:]
        points = _round_if_discrete(points, discrete)
        new_inner, new_outer, new_open = _outermost(points, contains(points), inner)
        inner, outer = np.where(is_active, new_inner, inner), np.where(is_active, new_outer, outer)
        is_open, step = is_open & new_open, 2 * step
    return np.where(is_open, side * np.inf, inner if discrete else outer)


def _outermost(
    points: Float[np.ndarray, "candidate row"],
    inside: Bool[np.ndarray, "candidate row"],
    default: Float[np.ndarray, " row"],
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"], Bool[np.ndarray, " row"]]:
    """Return the last candidate that is in the set, the next candidate, and whether the set has the last grid point.

    If no candidate is in the set, the first two results are the default and the first candidate.
    """
    count, has_inside = len(points), inside.any(0)
    last = np.where(has_inside, count - 1 - inside[::-1].argmax(0), -1)
    columns = np.arange(points.shape[1])
    inner = np.where(has_inside, points[last, columns], default)
    return inner, points[np.minimum(last + 1, count - 1), columns], inside[-1]


def _round_if_discrete(
    points: Float[np.ndarray, "candidate row"], discrete: bool
) -> Float[np.ndarray, "candidate row"]:
    return np.round(points) if discrete else points
