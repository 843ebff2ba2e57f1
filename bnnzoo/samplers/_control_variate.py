"""Control variates: what the log-likelihood does near an anchor, so that a mini-batch only measures the rest."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers._preconditioner import prior_precision

_COLUMNS = 8
"""Columns of a Hessian computed at once: what bounds its memory."""


class Anchor(eqx.Module):
    """A point, and the derivatives there of the sum of all data's log-likelihoods (of them alone: no prior, no power).

    With a Hessian the Taylor polynomial is of second order, without one (None) of first. Bardenet, Doucet and Holmes
    2017, J. Mach. Learn. Res. 18(47), for Metropolis-Hastings on batches; METHOD section 5.
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
        """q_i of each datum of a batch: the polynomial's change from `start` to `end`.

        q_i = m . g_i + m' H_i (c - point), with the move m = end - start and the middle c = (start + end) / 2: the
        difference of two quadratics without their cancellation. By one `jax.jvp` at the anchor, or a jvp of a jvp.
        """
        move = end - start

        def along(theta: Float[Array, " dim"]) -> Float[Array, " batch"]:
            return jax.jvp(lambda t: posterior.log_likelihood(t, batch), (theta,), (move,))[1]

        if self.hessian is None:
            return along(self.point)
        slope, bend = jax.jvp(along, (self.point,), ((start + end) / 2 - self.point,))
        return slope + bend

    def whole_part(self, start: Float[Array, " dim"], end: Float[Array, " dim"]) -> Float[Array, ""]:
        """The sum of q_i over all data, without looking at them."""
        return (end - start) @ self.slope((start + end) / 2)

    def slope(self, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The polynomial's gradient at `theta`."""
        if self.hessian is None:
            return self.gradient
        return self.gradient + self.hessian @ (theta - self.point)


def anchored(posterior: AbstractPosterior, theta: Float[Array, " dim"], *, second: bool) -> Anchor:
    """The anchor for a chain at `theta`: its point is one Newton step away if that is uphill, else `theta` itself.

    Costs two passes over the data, or a pass for every parameter and two more for a second order.
    """

    def total(t: Float[Array, " dim"]) -> Float[Array, ""]:
        return jnp.sum(posterior.log_likelihoods(t))

    if not second:
        return Anchor(theta, jax.grad(total)(theta), None)
    power = posterior.likelihood_power
    hessian = _hessian(total, theta)
    precision = jnp.diag(prior_precision(posterior, theta)) - power * hessian
    slope = jax.grad(posterior.log_prior)(theta) + power * jax.grad(total)(theta)
    lower = jnp.linalg.cholesky(precision)
    step = jax.scipy.linalg.cho_solve((lower, True), slope)
    # A Cholesky factor of a matrix that is not positive definite is not finite, and nothing is uphill of it.
    uphill = posterior.log_density(theta + step) > posterior.log_density(theta)
    point = jnp.where(uphill, theta + step, theta)
    return Anchor(point, jax.grad(total)(point), _hessian(total, point))


def _hessian(function, theta: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
    """By forward derivatives of the gradient, a few columns at a time."""

    def column(direction: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return jax.jvp(jax.grad(function), (theta,), (direction,))[1]

    rows = jax.lax.map(column, jnp.eye(theta.shape[0], dtype=theta.dtype), batch_size=_COLUMNS)
    return (rows + rows.T) / 2
