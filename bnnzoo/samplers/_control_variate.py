"""Control variates: what the log-likelihood does near an anchor, so that a mini-batch only measures the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers._preconditioner import prior_precision

Order = Literal["none", "first", "second"]
ORDER = {"none": 0, "first": 1, "second": 2}

SECOND_ORDER_UP_TO = 2000
"""Parameters up to which a Hessian is affordable."""

_ROWS, _COLUMNS = 4096, 64
"""Data and columns of a Hessian that are looked at together: what bounds its memory."""


class Anchor(eqx.Module):
    """A point, and the derivatives there of the sum of all data's log-likelihoods (of them alone: no prior, no power).

    With a Hessian the Taylor polynomial is of second order, without one (None) of first. Bardenet, Doucet and Holmes
    2017, J. Mach. Learn. Res. 18(47), for Metropolis-Hastings on batches.
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

    def batch_slope(self, posterior: AbstractPosterior, theta: Float[Array, " dim"], batch) -> Float[Array, " dim"]:
        """The gradient at `theta` of the polynomials of a batch, summed: sum_i g_i + H_i (theta - point)."""

        def slope(t: Float[Array, " dim"]) -> Float[Array, " dim"]:
            return jax.grad(lambda u: jnp.sum(posterior.log_likelihood(u, batch)))(t)

        if self.hessian is None:
            return slope(self.point)
        there, bend = jax.jvp(slope, (self.point,), (theta - self.point,))
        return there + bend

    def whole_part(self, start: Float[Array, " dim"], end: Float[Array, " dim"]) -> Float[Array, ""]:
        """The sum of q_i over all data, without looking at them."""
        return (end - start) @ self.slope((start + end) / 2)

    def slope(self, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """The polynomial's gradient at `theta`."""
        if self.hessian is None:
            return self.gradient
        return self.gradient + self.hessian @ (theta - self.point)


def anchored(posterior: AbstractPosterior, theta: Float[Array, " dim"], *, second: bool) -> Anchor:
    """The anchor at `theta`. Costs two passes over the data; for a second order one for every parameter."""

    def total(t: Float[Array, " dim"]) -> Float[Array, ""]:
        return jnp.sum(posterior.log_likelihoods(t))

    return Anchor(theta, jax.grad(total)(theta), _hessian(posterior, theta) if second else None)


def follow(anchor: Anchor, posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Anchor:
    """The next anchor for a chain at `theta`: one Newton step away if that is uphill, else at `theta` itself.

    The step takes the old anchor's Hessian; without one there is none.
    """
    if anchor.hessian is None:
        return anchored(posterior, theta, second=False)
    precision = jnp.diag(prior_precision(posterior, theta)) - posterior.likelihood_power * anchor.hessian
    density, slope = jax.value_and_grad(posterior.log_density)(theta)
    # A Cholesky factor of a matrix that is not positive definite is not finite, and nothing is uphill of it.
    step = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(precision), True), slope)
    uphill = posterior.log_density(theta + step) > density
    return anchored(posterior, jnp.where(uphill, theta + step, theta), second=True)


def refuse_large(order: Order, posterior: AbstractPosterior) -> None:
    """Refuse a polynomial whose Hessian is not affordable.

    Raises:
        UsageError: with what to type instead.
    """
    dim = posterior.layout.dim
    if order == "second" and dim > SECOND_ORDER_UP_TO:
        raise UsageError(
            f"--sampler.control-variate second: needs a {dim} x {dim} Hessian, affordable up to "
            f"{SECOND_ORDER_UP_TO} parameters; use first, or sample fewer parameters with --stochastic last"
        )


def _hessian(posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
    """By forward derivatives of the gradient, block after block of the data and of the columns."""

    def block(batch, weights: Float[Array, " batch"]) -> Float[Array, "dim dim"]:
        slope = jax.grad(lambda t: jnp.sum(weights * posterior.log_likelihood(t, batch)))

        def column(direction: Float[Array, " dim"]) -> Float[Array, " dim"]:
            return jax.jvp(slope, (theta,), (direction,))[1]

        return jax.lax.map(column, jnp.eye(theta.shape[0], dtype=theta.dtype), batch_size=_COLUMNS)

    rows = posterior.sum_over_data(block, rows=_ROWS)
    return (rows + rows.T) / 2


def drift(
    posterior: AbstractPosterior, anchor: Anchor | None, batch: Any, weights: Float[Array, " batch"] | None
) -> Callable[[Float[Array, " dim"]], Float[Array, " dim"]]:
    """An estimate of the log posterior's gradient, as a function: the same at every point of a step.

    Args:
        batch: the data it is from; None where the anchor's polynomial has the second order, and needs none.
        weights: of each datum in means over the batch; None where all weigh the same.
    """
    prior, power = jax.grad(posterior.log_prior), posterior.likelihood_power
    if batch is None and anchor is not None:
        return lambda theta: prior(theta) + power * anchor.slope(theta)

    @jax.grad
    def on_batch(theta: Float[Array, " dim"]) -> Float[Array, ""]:
        each = posterior.log_likelihood(theta, batch)
        return posterior.num_data * jnp.mean(each if weights is None else each * weights)

    if anchor is None:
        return lambda theta: prior(theta) + power * on_batch(theta)
    rest = anchor.gradient - on_batch(anchor.point)
    return lambda theta: prior(theta) + power * (on_batch(theta) + rest)
