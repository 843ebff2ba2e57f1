"""Preconditioned proposals. Their covariance C = F F' is learned in warm-up from the curvature of the posterior."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior, passes
from bnnzoo.samplers.base import AbstractSampler

Shape = Literal["auto", "identity", "diagonal", "dense"]

_DENSE_UP_TO = 600
"""Largest number of parameters for which `auto` uses a full matrix. With more, matrix products are too expensive."""
_MAX_DERIVATIVES = 2.5e8
"""Largest product of data and parameters for which the Fisher matrix uses every datum."""


class AbstractFactor(eqx.Module):
    """The factor F of a Gaussian N(0, F F'): a number, a diagonal or a triangular matrix."""

    factor: eqx.AbstractVar[Float[Array, ""] | Float[Array, " dim"] | Float[Array, "dim dim"]]

    def correlate(self, eps: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F eps, which maps N(0, I) to N(0, F F')."""
        return self.factor @ eps if self.factor.ndim == 2 else self.factor * eps

    def project(self, gradient: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F' gradient."""
        return self.factor.T @ gradient if self.factor.ndim == 2 else self.factor * gradient

    @property
    def log_det(self) -> Float[Array, ""]:
        """log |det F|. F must be a diagonal or a triangular matrix."""
        scales = self.factor if self.factor.ndim == 1 else jnp.abs(jnp.diag(self.factor))
        return jnp.sum(jnp.log(scales))


class Factor(AbstractFactor):
    """A factor F with no other fields."""

    factor: Float[Array, ""] | Float[Array, " dim"] | Float[Array, "dim dim"]


class Preconditioner(AbstractFactor):
    """The covariance C = F F' of a proposal. Its inverse, the precision, is a mean of Fisher information matrices.

    One matrix is computed at the end of each warm-up window. The matrix of window k has weight k, because a chain may
    be far from the posterior in early windows. The Fisher information is beta sum_i g_i g_i' over the data, plus the
    prior's curvature. g_i is the gradient of the log-likelihood of datum i, and beta is the likelihood power. The
    Fisher information is positive definite everywhere. The inverse of the average of this matrix over the posterior is
    the best linear preconditioner of a Langevin proposal (Titsias 2023, arXiv 2305.14442). If the Hessian is known and
    the log posterior is concave, the exact curvature replaces the Fisher information (`update_precision`).
    """

    factor: Float[Array, ""] | Float[Array, " dim"] | Float[Array, "dim dim"]
    precision: Float[Array, ""] | Float[Array, " dim"] | Float[Array, "dim dim"]
    count: Float[Array, ""]


def identity(shape: Shape, theta: Float[Array, " dim"]) -> Preconditioner:
    """Return the preconditioner C = I, stored as a number, a diagonal or a full matrix, as `shape` requires."""
    dim = theta.shape[0]
    resolved = ("dense" if dim <= _DENSE_UP_TO else "diagonal") if shape == "auto" else shape
    factor = {
        "identity": jnp.ones((), theta.dtype),
        "diagonal": jnp.ones((dim,), theta.dtype),
        "dense": jnp.eye(dim, dtype=theta.dtype),
    }[resolved]
    return Preconditioner(factor, jnp.zeros_like(factor), jnp.zeros((), theta.dtype))


def update_precision(
    preconditioner: Preconditioner,
    posterior: AbstractPosterior,
    theta: Float[Array, " dim"],
    hessian: Float[Array, "dim dim"] | None = None,
) -> Preconditioner:
    """Return the preconditioner with a new precision: a weighted mean of the old one and of the curvature at `theta`.

    The factor stays unchanged, because `pool_chains` updates it. A curvature that is not finite is ignored. A
    preconditioner that is a single number is returned unchanged.

    Args:
        preconditioner: the present preconditioner.
        posterior: the target distribution.
        theta: the position of the chain.
        hessian: Hessian of the sum of the log-likelihoods, if it is known. If the log posterior is concave according to
            this Hessian, the curvature is computed from it. Otherwise the Fisher information is used.
    """
    ndim = preconditioner.factor.ndim
    if ndim == 0:
        return preconditioner
    prior = prior_precision(posterior, theta)
    fisher = posterior.likelihood_power * _fisher(posterior, theta, dense=ndim == 2)
    precision = fisher + (jnp.diag(prior) if ndim == 2 else prior)
    if hessian is not None:
        exact_precision = jnp.diag(prior) - posterior.likelihood_power * hessian
        is_concave = jnp.min(jnp.linalg.eigvalsh(exact_precision)) > 0
        precision = jnp.where(is_concave, exact_precision if ndim == 2 else jnp.diag(exact_precision), precision)
    is_usable = jnp.all(jnp.isfinite(precision))
    count = preconditioner.count + is_usable
    change = jnp.where(is_usable, precision - preconditioner.precision, 0.0) * 2 / (jnp.maximum(count, 1.0) + 1)
    return Preconditioner(preconditioner.factor, preconditioner.precision + change, count)


def diagonal_if_scalar(
    preconditioner: Preconditioner, posterior: AbstractPosterior, theta: Float[Array, " dim"]
) -> Preconditioner:
    """Return a diagonal preconditioner from the curvature at `theta` if `preconditioner` is a single number.

    A diagonal or full preconditioner is returned unchanged.
    """
    if preconditioner.factor.ndim:
        return preconditioner
    empty = Preconditioner(jnp.ones_like(theta), jnp.zeros_like(theta), jnp.zeros((), theta.dtype))
    diagonal = update_precision(empty, posterior, theta)
    return eqx.tree_at(lambda p: p.factor, diagonal, _factor(diagonal.precision))


S = TypeVar("S")


class AbstractPreconditionedSampler(AbstractSampler[S]):
    """A sampler with a preconditioner that warm-up adapts. Its state has `position`, `step_size`, `preconditioner`."""

    can_end_warmup: ClassVar[bool] = True

    def settle(self, posterior: AbstractPosterior, state: S, *, final: bool, key: PRNGKeyArray) -> S:
        """Update the precision with the curvature at the chain's position, except at the end of warm-up."""
        del key
        if final:
            return state
        typed_state: Any = state
        updated = update_precision(typed_state.preconditioner, posterior, typed_state.position)
        return eqx.tree_at(lambda s: s.preconditioner, state, updated)

    def tune(
        self, posterior: AbstractPosterior, states: S, *, final: bool, key: PRNGKeyArray, num_steps: int
    ) -> tuple[AbstractSampler[S], S]:
        """Pool step size and preconditioner over all chains."""
        del key, num_steps
        return self, pool_chains(states, final=final, power=self.step_power(posterior))

    def step_power(self, posterior: AbstractPosterior) -> int:
        """Return 1 if the step size is a length in the preconditioner's units, 2 if it is a squared length."""
        del posterior
        return 1


def pool_chains(states: S, *, final: bool, power: int) -> S:
    """Return the states with a step size and a preconditioner factor F that are the same for all chains.

    The step size is the median over the chains. F is computed from the mean of the chains' precisions: the curvature in
    the region of one chain may be wrong elsewhere, and all chains together cover a larger region. If this F is not
    finite, F stays unchanged.

    The step size is in units of F. If F changes, the step size is rescaled. The geometric mean of a step's length over
    all directions then stays the same. Otherwise a short warm-up could end before the step size has adapted again. At
    the end of the last window F stays unchanged.

    Args:
        states: the states of all chains.
        final: whether the last window of warm-up has ended.
        power: 1 if the step size is a length, 2 if it is a squared length.
    """
    typed_states: Any = states
    step_size, shapes = jnp.median(typed_states.step_size), typed_states.preconditioner
    factor = shapes.factor[0]
    if not final and factor.ndim:
        new_factor = _factor(jnp.mean(shapes.precision, 0))
        is_finite = jnp.all(jnp.isfinite(new_factor))
        step_size = jnp.where(
            is_finite, step_size * jnp.exp(power * (_log_size(factor) - _log_size(new_factor))), step_size
        )
        factor = jnp.where(is_finite, new_factor, factor)
    return eqx.tree_at(
        lambda s: (s.step_size, s.preconditioner.factor),
        states,
        (jnp.full_like(typed_states.step_size, step_size), jnp.broadcast_to(factor, shapes.factor.shape)),
    )


def _log_size(factor: Float[Array, " dim"] | Float[Array, "dim dim"]) -> Float[Array, ""]:
    """Return the mean log singular value of a diagonal or triangular factor."""
    return jnp.mean(jnp.log(jnp.abs(factor if factor.ndim == 1 else jnp.diagonal(factor))))


@jax.jit
def _factor(
    precision: Float[Array, " dim"] | Float[Array, "dim dim"],
) -> Float[Array, " dim"] | Float[Array, "dim dim"]:
    """Return the factor F of the covariance: F F' is the inverse of the precision."""
    if precision.ndim == 1:
        return jax.lax.rsqrt(precision)
    # P = L L' gives C = P^-1 = F F' with F = L^-T.
    lower = jnp.linalg.cholesky(precision)
    return solve_triangular(lower, jnp.eye(len(precision), dtype=precision.dtype), lower=True).T


def prior_precision(posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """Return the prior's precision for each parameter: minus the row sums of the log prior's Hessian, at least 1e-3.

    If the parameters are independent under the prior, the row sums are the diagonal elements.
    """
    _, curvature = jax.jvp(jax.grad(posterior.log_prior), (theta,), (jnp.ones_like(theta),))
    return jnp.maximum(-curvature, 1e-3)


def _fisher(
    posterior: AbstractPosterior, theta: Float[Array, " dim"], *, dense: bool
) -> Float[Array, " dim"] | Float[Array, "dim dim"]:
    """Return the sum of g_i g_i' over the data, or its diagonal. g_i is the gradient of datum i's log-likelihood.

    If data times parameters exceed `_MAX_DERIVATIVES`, the sum is estimated from every k-th datum.
    """
    stride = max(1, math.ceil(posterior.num_data * theta.shape[0] / _MAX_DERIVATIVES))

    def gradient(row) -> Float[Array, " dim"]:
        single_row = jax.tree.map(lambda leaf: leaf[None], row)
        return jax.grad(lambda t: posterior.log_likelihood(t, single_row)[0])(theta)

    def block(batch, weights: Float[Array, " batch"]):
        gradients = jax.vmap(gradient)(batch) * weights[:, None]
        return gradients.T @ gradients if dense else jnp.sum(gradients**2, 0)

    size = 2**22 // theta.shape[0]
    if stride == 1:
        return posterior.sum_over_data(block, rows=size)
    # The data are gathered block by block, so that the memory does not grow with their number.
    used_rows = jnp.arange(0, posterior.num_data, stride, dtype=jnp.int32)
    total = passes.sum_over_blocks(
        used_rows, len(used_rows), lambda indices, weights: block(posterior.take(indices), weights), size=size
    )
    return total * (posterior.num_data / len(used_rows))
