"""The influence of single rows on mini-batch steps, and the fraction of the curvature that the steps miss.

The statistics of a step describe only the rows that the step drew. Suppose that a row is drawn once in a thousand
steps, and that it alone then determines the result of the step. Averages over steps do not show such a row, and they do
not show a row that was never drawn. The functions of this module detect such rows, because they evaluate every row for
a few proposals of the chain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.subspace import SubspaceNetwork
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.common import preconditioner

_ROWS = 64
"""Largest number of rows from which `_directions` computes directions: the rows whose effect the steps miss most."""
_DIRECTIONS = 3
_PROPOSALS = 8
"""Largest number of proposals for which every row is evaluated at the end of a warm-up window.

After the final draw, every row is evaluated for twice as many proposals, with `_STEPS_BETWEEN` steps between them. With
more than `MANY_ROWS` rows there are fewer proposals: at least `_MIN_PROPOSALS` after the final draw, and half as
many at the end of a window. For a network with P > `_FEW_PARAMETERS` parameters, the limit is not `MANY_ROWS` rows but
`MANY_ROWS` x `_FEW_PARAMETERS` / P rows.
"""
_FEW_PARAMETERS = 1000
MANY_ROWS = 2**18
"""Largest number of rows for which `sampling: auto` can draw rows by importance. With more rows, fewer proposals are
evaluated after the final draw."""
_MIN_PROPOSALS = 4
_STEPS_BETWEEN = 25
_FAR = 1e10
"""Value that replaces an infinite difference of log-likelihoods. Its square is still finite."""
_ELEMENTS = 2**22
"""Limit of the number of elements of the gradients in `_directions`."""


class Influence(NamedTuple):
    """The effect of each row on the steps of a chain, measured for a few proposals.

    The difference d of a row is the change of its log-likelihood from the current position to the proposal, times the
    likelihood power. If there is a control variate, the change of the row's Taylor polynomial is subtracted.
    """

    square: Float[Array, " num_data"]
    """Mean of d^2 over the proposals."""
    unseen: Float[Array, " num_data"]
    """Fraction of d that has no effect on the acceptance of proposals.

    It is 0 for a row with small d, and 1 for a row that causes a rejection in every step that draws it.
    """
    positions: Float[Array, "proposal dim"]
    """Positions of the chain at the proposals."""


def row_influence(
    sampler: Any,
    posterior: AbstractPosterior,
    state: Any,
    *,
    proposals: int | None = None,
    steps_between: int,
    key: PRNGKeyArray,
) -> Influence:
    """Return the influence of every row, measured for some proposals along a chain.

    Args:
        sampler: a sampler with the methods of `AbstractPenalty`.
        posterior: the target distribution.
        state: the state of the chain.
        proposals: number of proposals; by default the number at the end of a warm-up window.
        steps_between: number of steps of the chain from one proposal to the next. A single position is not enough,
            because a row whose residual happens to be small at this position has little influence.
        key: random key.
    """
    if proposals is None:
        proposals = num_final_proposals(posterior) // 2
    sizes = sampler.plan(posterior.num_data)
    draw_probability = sizes.num_used * (1 / posterior.num_data if state.rows is None else state.rows.probabilities)
    disjoint = sizes.disjoint

    def add_proposal(i: Array, carry: tuple[Any, Array, Array, Array]) -> tuple[Any, Array, Array, Array]:
        state, square, unseen_square, positions = carry
        key_steps, key_proposal = jax.random.split(jax.random.fold_in(key, i))
        step = lambda j, state: sampler.step(posterior, state, key=jax.random.fold_in(key_steps, j))[0]  # noqa: E731
        state = jax.lax.fori_loop(0, steps_between, step, state)
        proposal, _, _ = sampler._propose(posterior, state, key=key_proposal)
        d = jnp.clip(jnp.nan_to_num(_log_likelihood_differences(posterior, state, proposal)), -_FAR, _FAR)
        return (
            state,
            square + d**2,
            unseen_square + d * (d - effective_contribution(d, draw_probability, disjoint=disjoint)),
            positions.at[i].set(state.position),
        )

    zero = jnp.zeros((posterior.num_data,), state.position.dtype)
    empty_positions = jnp.zeros((proposals, *state.position.shape), state.position.dtype)
    _, square, unseen_square, positions = jax.lax.fori_loop(
        0, proposals, add_proposal, (state, zero, zero, empty_positions)
    )
    tiny = jnp.finfo(square.dtype).tiny
    return Influence(square / proposals, jnp.clip(unseen_square / jnp.maximum(square, tiny), 0.0, 1.0), positions)


def _log_likelihood_differences(
    posterior: AbstractPosterior, state: Any, proposal: Float[Array, " dim"]
) -> Float[Array, " num_data"]:
    """Return the difference d of each row for a proposal. `Influence` defines d."""
    d = posterior.log_likelihoods(proposal) - posterior.log_likelihoods(state.position)
    if state.anchor is not None:
        part = state.anchor.batch_part
        d = d - posterior.over_data(lambda batch: part(posterior, state.position, proposal, batch))
    return posterior.likelihood_power * d


def effective_contribution(
    d: Float[Array, " num_data"],
    draw_probability: Float[Array, " num_data"] | Float[Array, ""] | float,
    *,
    disjoint: bool,
) -> Float[Array, " num_data"]:
    """Return the effective contribution of each row to the log acceptance ratio of a step with a noise penalty.

    With all data, a row would multiply the acceptance ratio by exp(d), where d is its difference (see `Influence`). Let
    b = d / draw_probability. If a step draws the row n times, the row adds n b to the log ratio and n b^2 / 2 to the
    penalty. So the factor is exp(n (b - b^2 / 2)), and only its expectation over n matters. For the reverse move, -b
    replaces b. The effective contribution is half the logarithm of the ratio of the two expectations.

    For small b the contribution is d (1 - b^2 / 3). For large b it is 0, because then both moves are rejected. With
    replacement n has a Poisson distribution. Without replacement n is 0 or 1, and the penalty has the additional factor
    1 - draw_probability.
    """
    b = d / draw_probability
    if not disjoint:
        return draw_probability * (jnp.exp(b - b**2 / 2) - jnp.exp(-b - b**2 / 2)) / 2
    half_penalty = (1 - draw_probability) * b**2 / 2

    def factor(b: Float[Array, " num_data"]) -> Float[Array, " num_data"]:
        x = b - half_penalty
        # log(1 - p + p e^x), with p = draw_probability. The form for large x does not overflow, and the form for small
        # x has no cancellation.
        large_form = jnp.logaddexp(jnp.log1p(-draw_probability), jnp.log(draw_probability) + x)
        return jnp.where(jnp.abs(x) > 5, large_form, jnp.log1p(draw_probability * jnp.expm1(jnp.clip(x, -5.0, 5.0))))

    return (factor(b) - factor(-b)) / 2


def num_final_proposals(posterior: AbstractPosterior) -> int:
    """Return the number of proposals for which every row is evaluated after the final draw."""
    network = getattr(posterior, "network", None)
    num_parameters = len(network.mode) if isinstance(network, SubspaceNetwork) else posterior.layout.dim
    cost = posterior.num_data * max(1.0, num_parameters / _FEW_PARAMETERS)
    return int(np.clip(2 * _PROPOSALS * MANY_ROWS / cost, _MIN_PROPOSALS, 2 * _PROPOSALS))


def unseen_bias(sampler: Any, posterior: AbstractPosterior, state: Any, *, key: PRNGKeyArray) -> Stats:
    """Return the biases that arise because the steps miss the effect of some rows, and the number of rows K1.

    - `unseen`: the fraction s of the log posterior's curvature that the steps miss. The variance of the draws is
      therefore too large by the factor 1 / (1 - s).
    - `unseen_shift`: the shift of the draws' mean, in standard deviations, because the steps miss a part of the
      gradient.
    - `rows_needed`: K1, the number of rows with which a step of this sampler would have sigma2 = 1.

    `unseen` and `unseen_shift` are estimates for the directions in which the biases are largest.
    """
    sizes = sampler.plan(posterior.num_data)
    proposals = num_final_proposals(posterior)
    if sizes.disjoint and sizes.num_used == posterior.num_data:
        # Every step uses every row, so the steps miss nothing. The estimates below would contain only rounding errors.
        zero = jnp.zeros((), state.position.dtype)
        influence = row_influence(sampler, posterior, state, proposals=proposals, steps_between=0, key=key)
        return {"unseen": zero, "unseen_shift": zero, "rows_needed": _rows_needed(influence, state)}
    influence = row_influence(sampler, posterior, state, proposals=proposals, steps_between=_STEPS_BETWEEN, key=key)
    shape = preconditioner.diagonal_if_scalar(state.preconditioner, posterior, state.position)
    directions = _directions(posterior, state.position, shape, influence)
    fractions, _ = jax.lax.map(
        lambda direction: _unseen_fraction(posterior, state, influence, shape, direction), directions
    )
    return {
        "unseen": jnp.max(jnp.abs(fractions)),
        "unseen_shift": _mean_shift(posterior, state, influence, shape),
        "rows_needed": _rows_needed(influence, state),
    }


def _rows_needed(influence: Influence, state: Any) -> Float[Array, ""]:
    """Return K1, the number of rows with which a step has sigma2 = 1.

    With K rows drawn with replacement, sigma2 is K1 / K. K1 is the mean over the proposals of sum_i d_i^2 / p_i. Here
    d_i is the difference of row i (see `Influence`), and p_i is the probability that a draw selects row i. The exact
    formula also subtracts the square of sum_i d_i. This square is of order 1 and is neglected.
    """
    probabilities = 1 / influence.square.shape[0] if state.rows is None else state.rows.probabilities
    return jnp.sum(influence.square / probabilities)


def _directions(
    posterior: AbstractPosterior,
    theta: Float[Array, " dim"],
    shape: preconditioner.Preconditioner,
    influence: Influence,
) -> Float[Array, "direction dim"]:
    """Return a few directions in which the curvature that the steps miss is largest.

    The missed curvature is a sum over rows. Only the rows with the largest missed effect (at most 64) are used. The
    directions are in coordinates in which the covariance of the proposal is the identity matrix.
    """
    count = min(posterior.num_data, _ROWS, max(4, _ELEMENTS // theta.shape[0]))
    worst = jax.lax.top_k(influence.square * influence.unseen, count)[1]
    batch = jax.tree.map(lambda leaf: leaf[:, None], posterior.take(worst))

    def weighted_slope(row, weight: Float[Array, ""]) -> Float[Array, " dim"]:
        """Return a vector v such that v v' is the row's unseen curvature; exact only for a curvature of rank one."""
        slope = shape.project(jax.grad(lambda t: posterior.log_likelihood(t, row)[0])(theta))
        length = jnp.maximum(jnp.sum(slope**2), jnp.finfo(slope.dtype).tiny)
        curvature = _directional_curvature(posterior, theta, shape.correlate(slope / jnp.sqrt(length)), row)[0]
        return slope * jnp.sqrt(jnp.maximum(curvature, 0.0) * weight / length)

    weighted_slopes = jnp.nan_to_num(jax.vmap(weighted_slope)(batch, influence.unseen[worst]))
    _, vectors = jnp.linalg.eigh(weighted_slopes @ weighted_slopes.T)
    return vectors.T[::-1][:_DIRECTIONS] @ weighted_slopes


def _unseen_fraction(
    posterior: AbstractPosterior,
    state: Any,
    influence: Influence,
    shape: preconditioner.Preconditioner,
    direction: Float[Array, " dim"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the fraction of the log posterior's curvature in `direction` that the steps miss.

    The second result is the total curvature in this direction, the denominator of the fraction.
    """
    theta, anchor, step = state.position, state.anchor, shape.correlate(direction)
    curvatures = posterior.over_data(lambda row: _directional_curvature(posterior, theta, step, row))
    prior = preconditioner.prior_precision(posterior, theta)
    total = posterior.likelihood_power * jnp.sum(curvatures) + jnp.sum(prior * step**2)
    if anchor is not None and anchor.hessian is not None:
        # The curvature of the control variate's polynomial contains all rows, so the steps do not miss it.
        curvatures = curvatures - posterior.over_data(
            lambda row: _directional_curvature(posterior, anchor.point, step, row)
        )
    unseen_curvature = posterior.likelihood_power * jnp.sum(influence.unseen * curvatures)
    total = jnp.maximum(total, jnp.abs(unseen_curvature) + jnp.finfo(unseen_curvature.dtype).tiny)
    return unseen_curvature / total, total


def _mean_shift(
    posterior: AbstractPosterior, state: Any, influence: Influence, shape: preconditioner.Preconditioner
) -> Float[Array, ""]:
    """Return the shift of the draws' mean, in standard deviations, due to the unseen gradient.

    The unseen gradient is sum_i unseen_i grad l_i, where l_i is the log-likelihood of row i. The shift is computed in
    the direction of the unseen gradient, where it is largest. At a position of the chain, the unseen gradient differs
    from its value at the posterior's mean. The difference is about the unseen fraction of the curvature times the total
    gradient. The unseen fraction and the total gradient are known, so the difference is subtracted.
    """

    def slopes_at(position: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
        def unseen_log_likelihood(end: Float[Array, " dim"]) -> Float[Array, ""]:
            log_likelihoods = posterior.log_likelihoods(end)
            if state.anchor is not None:
                part = state.anchor.batch_part
                log_likelihoods = log_likelihoods - posterior.over_data(
                    lambda batch: part(posterior, position, end, batch)
                )
            return posterior.likelihood_power * jnp.sum(influence.unseen * log_likelihoods)

        unseen_gradient = jax.grad(unseen_log_likelihood)(position)
        return shape.project(unseen_gradient), shape.project(jax.grad(posterior.log_density)(position))

    unseen_slope, full_slope = (jnp.mean(slopes, 0) for slopes in jax.lax.map(slopes_at, influence.positions))
    unseen_fraction, total = _unseen_fraction(posterior, state, influence, shape, unseen_slope)
    length = unseen_slope @ unseen_slope
    slope = length - unseen_fraction * (full_slope @ unseen_slope)
    # If the log posterior is flat at this position, the proposal's scale is a better estimate of the posterior's width.
    curvature = jnp.maximum(total, length / 4 + jnp.finfo(length.dtype).tiny)
    return jnp.abs(slope) / jnp.sqrt(curvature) / jnp.maximum(1 - unseen_fraction, 0.1)


def _directional_curvature(
    posterior: AbstractPosterior, theta: Float[Array, " dim"], direction: Float[Array, " dim"], batch
) -> Float[Array, " batch"]:
    """Return minus the second derivative of each row's log-likelihood in one direction."""

    def slope(t: Float[Array, " dim"]) -> Float[Array, " batch"]:
        return jax.jvp(lambda u: posterior.log_likelihood(u, batch), (t,), (direction,))[1]

    return -jax.jvp(slope, (theta,), (direction,))[1]
