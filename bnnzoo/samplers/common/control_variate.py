"""Control variates: Taylor polynomials of the log-likelihoods, expanded at a point called the anchor.

The sum of the polynomials over all data is known. So mini-batches only estimate the sum of the differences between the
log-likelihoods and their polynomials.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.samplers.common.preconditioner import Preconditioner, prior_precision, update_precision

Order = Literal["none", "first", "second"]
ORDER = {"none": 0, "first": 1, "second": 2}

SECOND_ORDER_UP_TO = 2000
"""Largest number of parameters for which a Hessian is affordable."""

_ROWS, _COLUMNS = 256, 32
"""Numbers of data and of Hessian columns that are processed together. Their values fit into a CPU's cache."""


class Anchor(eqx.Module):
    """A point, with the gradient and the Hessian of the sum of all log-likelihoods at this point.

    The derivatives include neither the prior nor the likelihood power. If the Hessian is known, the Taylor polynomials
    are of second order. If it is None, they are of first order. Bardenet, Doucet and Holmes 2017, J. Mach. Learn. Res.
    18(47), use such polynomials for Metropolis-Hastings on mini-batches.
    """

    point: Float[Array, " dim"]
    gradient: Float[Array, " dim"]
    hessian: Float[Array, "dim dim"] | None

    def batch_part(
        self,
        posterior: AbstractPosterior,
        start: Float[Array, " dim"],
        end: Float[Array, " dim"],
        batch,
    ) -> Float[Array, " batch"]:
        """Return q_i for each datum i of a batch: the change of its Taylor polynomial from `start` to `end`.

        q_i = m . g_i + m' H_i (c - point), with the move m = end - start and the middle c = (start + end) / 2. g_i and
        H_i are the gradient and the Hessian of the log-likelihood at the anchor; at first order H_i is 0. This formula
        loses no digits by cancellation, unlike the difference of two polynomials. It needs one `jax.jvp` at first
        order, and a jvp of a jvp at second order.
        """
        displacement = end - start

        def directional_slope(theta: Float[Array, " dim"]) -> Float[Array, " batch"]:
            return jax.jvp(lambda t: posterior.log_likelihood(t, batch), (theta,), (displacement,))[1]

        if self.hessian is None:
            return directional_slope(self.point)
        slope, curvature_term = jax.jvp(directional_slope, (self.point,), ((start + end) / 2 - self.point,))
        return slope + curvature_term

    def batch_slope(self, posterior: AbstractPosterior, theta: Float[Array, " dim"], batch) -> Float[Array, " dim"]:
        """Return the gradient at `theta` of the sum of the batch's polynomials: sum_i (g_i + H_i (theta - point))."""

        def slope(t: Float[Array, " dim"]) -> Float[Array, " dim"]:
            return jax.grad(lambda u: jnp.sum(posterior.log_likelihood(u, batch)))(t)

        if self.hessian is None:
            return slope(self.point)
        anchor_slope, curvature_term = jax.jvp(slope, (self.point,), (theta - self.point,))
        return anchor_slope + curvature_term

    def whole_part(self, start: Float[Array, " dim"], end: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return the sum of q_i (see `batch_part`) over all data, from the stored derivatives."""
        return (end - start) @ self.slope((start + end) / 2)

    def slope(self, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return the gradient at `theta` of the sum of all data's polynomials."""
        if self.hessian is None:
            return self.gradient
        return self.gradient + self.hessian @ (theta - self.point)


def make_anchor(posterior: AbstractPosterior, theta: Float[Array, " dim"], *, second: bool) -> Anchor:
    """Return the anchor at `theta`.

    The computation costs as much as two passes over the data. If `second` is true, the Hessian costs one more pass for
    each parameter.
    """
    return Anchor(
        theta, jax.grad(posterior.total_log_likelihood)(theta), _hessian(posterior, theta) if second else None
    )


def with_anchor(posterior: AbstractPosterior, *, second: bool) -> AbstractPosterior:
    """Return the posterior with an anchor that all chains share, at `posterior.centre()`, a mode known in advance.

    The posterior is returned unchanged if no such mode is known, if it is not a `NetworkPosterior`, or if it already
    has an anchor.
    """
    centre = posterior.centre()
    if centre is None or not isinstance(posterior, NetworkPosterior) or isinstance(posterior.expansion, Anchor):
        return posterior
    return dataclasses.replace(posterior, expansion=make_anchor(posterior, centre, second=second))


def first_anchor(posterior: AbstractPosterior, theta: Float[Array, " dim"], *, second: bool) -> Anchor:
    """Return the first anchor of a chain.

    If the posterior already has an anchor (`with_anchor`), it is used. Otherwise the anchor is at `posterior.centre()`,
    or at the initial position `theta` if the centre is unknown (None).
    """
    centre, expansion = posterior.centre(), getattr(posterior, "expansion", None)
    if isinstance(expansion, Anchor):
        return expansion
    return make_anchor(posterior, theta if centre is None else centre, second=second)


def next_anchor(anchor: Anchor, posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Anchor:
    """Return a new anchor for a chain whose position is `theta`.

    If the old anchor has no Hessian (first order), the new anchor is at `theta`. If it has a Hessian (second order), a
    Newton step from `theta` is tried. If this step increases the log posterior density, the new anchor is at the end of
    the step. Otherwise it is at `theta`.
    """
    if anchor.hessian is None:
        return make_anchor(posterior, theta, second=False)
    precision = jnp.diag(prior_precision(posterior, theta)) - posterior.likelihood_power * anchor.hessian
    density, slope = jax.value_and_grad(posterior.log_density)(theta)
    # The Cholesky factor of an indefinite matrix is NaN; the comparison below is then false.
    step = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(precision), True), slope)
    uphill = posterior.log_density(theta + step) > density
    return make_anchor(posterior, jnp.where(uphill, theta + step, theta), second=True)


_MIN_CURVATURE = 0.1
"""Smallest eigenvalue of a corrected precision, after its diagonal is scaled to 1."""


def known_precision(shape: Preconditioner, posterior: AbstractPosterior, anchor: Anchor) -> Preconditioner:
    """Return the preconditioner `shape` with a new precision: the curvature of the log posterior at the anchor.

    If `shape` is a single number, it is returned unchanged. If the anchor has no Hessian, the curvature is estimated
    from squared gradients (`update_precision`). If the log posterior is not concave at the anchor, `_make_definite`
    makes the curvature positive definite.
    """
    if shape.factor.ndim == 0:
        return shape
    if anchor.hessian is None:
        return update_precision(shape, posterior, anchor.point)
    precision = jnp.diag(prior_precision(posterior, anchor.point)) - posterior.likelihood_power * anchor.hessian
    is_concave = jnp.min(jnp.linalg.eigvalsh(precision)) > 0
    precision = jnp.where(is_concave, precision, _make_definite(precision))
    return Preconditioner(
        shape.factor, precision if shape.factor.ndim == 2 else jnp.diag(precision), jnp.ones_like(shape.count)
    )


def _make_definite(matrix: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """Return a positive definite matrix that is close to a symmetric matrix.

    The rows and columns are scaled such that diagonal elements above `_MIN_CURVATURE` become 1. Eigenvalues of the
    scaled matrix below `_MIN_CURVATURE` are raised to this value. The scaling is necessary: the curvature of a
    learned noise scale is twice the number of rows, while that of the coordinates of a subspace is about 1. Without the
    scaling, rounding errors would exceed the smaller curvatures.
    """
    diagonal = jnp.diag(matrix)
    scale = jnp.sqrt(jnp.where(diagonal > _MIN_CURVATURE, diagonal, 1.0))
    values, vectors = jnp.linalg.eigh(matrix / jnp.outer(scale, scale))
    definite = (vectors * jnp.maximum(values, _MIN_CURVATURE)) @ vectors.T
    return definite * jnp.outer(scale, scale)


def refuse_large(order: Order, posterior: AbstractPosterior) -> None:
    """Refuse a second-order polynomial whose Hessian is not affordable.

    Raises:
        UsageError: if there are too many parameters. The message names the remedy.
    """
    dim = posterior.layout.dim
    if order == "second" and dim > SECOND_ORDER_UP_TO:
        raise UsageError(
            f"[[sampler.control_variate=second]]: supports at most {SECOND_ORDER_UP_TO} parameters, because it needs "
            f"their Hessian (got {dim}); use [[sampler.control_variate=first]], or [[stochastic=last]] to sample only "
            "the last layer"
        )


def _hessian(posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
    """Return the Hessian of the sum of all log-likelihoods, from forward derivatives of the gradient."""

    def block(batch, weights: Float[Array, " batch"]) -> Float[Array, "dim dim"]:
        slope = jax.grad(lambda t: jnp.sum(weights * posterior.log_likelihood(t, batch)))

        def column(direction: Float[Array, " dim"]) -> Float[Array, " dim"]:
            return jax.jvp(slope, (theta,), (direction,))[1]

        return jax.lax.map(column, jnp.eye(theta.shape[0], dtype=theta.dtype), batch_size=_COLUMNS)

    total = posterior.sum_over_data(block, rows=_ROWS)
    return (total + total.T) / 2


def drift_estimator(
    posterior: AbstractPosterior, anchor: Anchor | None, batch: Any, weights: Float[Array, " batch"] | None
) -> Callable[[Float[Array, " dim"]], Float[Array, " dim"]]:
    """Return a function of theta that estimates the gradient of the log posterior.

    All calls of the function use the same batch, as the reverse move of a proposal requires.

    Args:
        posterior: the target distribution.
        anchor: the anchor of the control variate; None if there is no control variate.
        batch: the data of the estimate; None to use only the control variate (the sum of the Taylor polynomials of all
            data), which requires an anchor.
        weights: weight of each datum in means over the batch; None if all weights are equal.
    """
    prior, power = jax.grad(posterior.log_prior), posterior.likelihood_power
    if batch is None and anchor is not None:
        return lambda theta: prior(theta) + power * anchor.slope(theta)

    @jax.grad
    def batch_gradient(theta: Float[Array, " dim"]) -> Float[Array, ""]:
        log_likelihoods = posterior.log_likelihood(theta, batch)
        return posterior.num_data * jnp.mean(log_likelihoods if weights is None else log_likelihoods * weights)

    if anchor is None:
        return lambda theta: prior(theta) + power * batch_gradient(theta)
    anchor_correction = anchor.gradient - batch_gradient(anchor.point)
    return lambda theta: prior(theta) + power * (batch_gradient(theta) + anchor_correction)
