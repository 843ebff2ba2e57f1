"""Proposal distributions for independent draws: the prior, a Gaussian fitted to the posterior, or a user's density."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.errors import UsageError
from bnnzoo.finding import setting
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number
from bnnzoo.samplers.common.preconditioner import prior_precision
from bnnzoo.samplers.kernel import choose, metropolis, standard_normal

NamedProposal = Literal["prior", "gaussian", "laplace"]
_MAX_DIM = 500
"""Largest number of parameters for a fitted Gaussian. With more parameters, no independent draw is near the posterior.
"""
_ASCENT = 60
_STRIDES = (2.0, *(2.0**-i for i in range(12)), 0.0)
_ACCEPTANCE = 0.574
"""Target acceptance rate of the pilot chain: the optimum for a Langevin proposal (Roberts and Rosenthal 1998)."""
_SHRINKAGE = 10
"""Weight of the Laplace approximation in the covariance of the Gaussian, as a number of draws of the pilot chain per
parameter."""


@runtime_checkable
class Density(Protocol):
    """A normalised density over theta: a NumPyro distribution, or any object with methods `sample` and `log_prob`."""

    def sample(self, key: Any) -> Any:
        """Return a draw, [dim]."""
        ...

    def log_prob(self, value: Any) -> Any:
        """Return the log density, either as one number, or as one value per parameter. The sampler sums the values."""
        ...


class Gaussian(eqx.Module):
    """The Gaussian N(mean, F F') with F lower triangular."""

    mean: Float[Array, " dim"]
    factor: Float[Array, "dim dim"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Return a draw, [dim]."""
        return self.mean + self.factor @ standard_normal(self.mean, key=key)

    def log_prob(self, value: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return the log density."""
        eps = jax.scipy.linalg.solve_triangular(self.factor, value - self.mean, lower=True)
        log_det = jnp.sum(jnp.log(jnp.diag(self.factor)))
        return -jnp.sum(eps**2) / 2 - log_det - len(self.mean) / 2 * jnp.log(2 * jnp.pi)


def check(proposal: NamedProposal | Density, posterior: AbstractPosterior, sampler: str) -> None:
    """Refuse a proposal distribution that cannot be used. The check runs before anything is compiled.

    Raises:
        UsageError: if no draw from the prior is possible, if there are too many parameters for a fit, or if a draw has
            a wrong shape. The message names the remedy.
    """
    dim = posterior.layout.dim
    if isinstance(proposal, str) and proposal == "prior":
        eqx.filter_eval_shape(posterior.sample_prior, key=jax.random.key(0))
    elif isinstance(proposal, str):
        if dim > _MAX_DIM:
            raise UsageError(
                f"sampler {sampler}: {setting('sampler.proposal', proposal)} supports at most {_MAX_DIM} parameters "
                f"(got {dim}); use [[stochastic=last]], or the sampler nuts"
            )
    else:
        shape = eqx.filter_eval_shape(proposal.sample, jax.random.key(0)).shape
        if shape != (dim,):
            raise UsageError(
                f"sampler {sampler}: a draw of the proposal must have the shape of theta, [{dim}] (got {list(shape)}); "
                "change the method sample of the proposal"
            )


def fit_proposal(
    proposal: NamedProposal | Density,
    posterior: AbstractPosterior,
    theta: Float[Array, " dim"],
    *,
    scale: Number,
    pilot: int,
    key: PRNGKeyArray,
) -> Gaussian | None:
    """Fit a Gaussian proposal to the posterior. Return None for the prior and for a user's density.

    Args:
        proposal: a name, or a user's density. The proposals `gaussian` and `laplace` are fitted.
        posterior: the target distribution.
        theta: the position at which the fit begins.
        scale: factor by which the fitted standard deviations are multiplied. With a factor above 1, the proposal is
            wider than the fit.
        pilot: for `gaussian`, the number of steps of the pilot chain. Mean and covariance are computed from this chain.
        key: random key.
    """
    if not isinstance(proposal, str) or proposal == "prior":
        return None
    gaussian = laplace(posterior, theta)
    if proposal == "gaussian":
        gaussian = _moments(posterior, gaussian, pilot, key=key)
    return Gaussian(gaussian.mean, scale * gaussian.factor)


def proposal_density(proposal: NamedProposal | Density, fit: Gaussian | None) -> Density | None:
    """Return the density of the proposals: the fit or the user's density; None for the prior."""
    return fit if isinstance(proposal, str) else proposal


def draw(posterior: AbstractPosterior, density: Density | None, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
    """Draw one proposal from `density`, or from the prior if `density` is None."""
    if density is None:
        return posterior.sample_prior(key=key)
    return jnp.asarray(density.sample(key)).astype(posterior.dtype)


def log_prior_ratio(
    posterior: AbstractPosterior, density: Density | None, theta: Float[Array, " dim"]
) -> Float[Array, ""]:
    """Return log prior - log q at theta, where q is `density`. If q is the prior (None), return 0."""
    if density is None:
        return jnp.zeros((), theta.dtype)
    return posterior.log_prior(theta) - jnp.sum(jnp.asarray(density.log_prob(theta)))


def laplace(posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Gaussian:
    """Return the Laplace approximation at the mode that an ascent from `theta` reaches.

    In every direction its standard deviation is at most the largest prior standard deviation of a parameter.
    """
    mode = climb_by_newton(posterior.log_density, theta)
    values, vectors = _curvature(posterior.log_density, mode)
    values = jnp.maximum(values, jnp.maximum(jnp.min(prior_precision(posterior, mode)), 1e-6 * values[-1]))
    return Gaussian(mode, jnp.linalg.cholesky((vectors / values) @ vectors.T))


def climb_by_newton(function: Callable[[Array], Array], theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """Return the point that an ascent of `function` by Newton steps from `theta` reaches.

    In each step the eigenvalues of the Hessian are replaced by their absolute values, so that the step goes uphill. The
    step is tried with a few fixed lengths. The point with the largest function value is taken.
    """

    def step(_: Any, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        values, vectors = _curvature(function, theta)
        size = jnp.maximum(jnp.abs(values), 1e-6 * jnp.max(jnp.abs(values)) + jnp.finfo(values.dtype).tiny)
        direction = vectors @ ((vectors.T @ jax.grad(function)(theta)) / size)
        tries = theta + jnp.asarray(_STRIDES, theta.dtype)[:, None] * direction
        return tries[jnp.argmax(jnp.nan_to_num(jax.vmap(function)(tries), nan=-jnp.inf))]

    return jax.lax.fori_loop(0, _ASCENT, step, theta)


def _curvature(function: Callable[[Array], Array], theta: Float[Array, " dim"]) -> tuple[Array, Array]:
    """Return the eigenvalues of minus the Hessian of `function`, in ascending order, and the eigenvectors."""
    hessian = jax.jacfwd(jax.grad(function))(theta)
    return jnp.linalg.eigh(-(hessian + hessian.T) / 2)


def _moments(posterior: AbstractPosterior, start: Gaussian, steps: int, *, key: PRNGKeyArray) -> Gaussian:
    """Return the Gaussian with the mean and the covariance of the second half of a Langevin chain.

    The chain begins at the mean of the Gaussian `start`. Its steps are in units of the standard deviations of `start`.
    During the first half of the chain, the step size is adapted to the target acceptance rate. The covariance is a
    weighted mean of the chain's covariance and of the covariance of `start`.
    """
    dim, dtype = len(start.mean), start.mean.dtype

    @jax.value_and_grad
    def log_density(z: Float[Array, " dim"]) -> Float[Array, ""]:
        return posterior.log_density(start.mean + start.factor @ z)

    def step(i: Array, carry: Any) -> Any:
        (z, value, gradient), log_eta, total, squares = carry
        key_propose, key_accept = jax.random.split(jax.random.fold_in(key, i))
        eta = jnp.exp(log_eta)
        eps = standard_normal(z, key=key_propose)
        proposal = z + eta * gradient + jnp.sqrt(2 * eta) * eps
        new_value, new_gradient = log_density(proposal)
        reverse = eps + jnp.sqrt(eta / 2) * (gradient + new_gradient)
        log_ratio = new_value - value + (jnp.sum(eps**2) - jnp.sum(reverse**2)) / 2
        accepted, rate, _ = metropolis(log_ratio, key=key_accept)
        state = choose(accepted, (proposal, new_value, new_gradient), (z, value, gradient))
        is_burn_in = i < steps // 2
        log_eta = log_eta + jnp.where(is_burn_in, (rate - _ACCEPTANCE) / jnp.sqrt(i + 1.0), 0.0)
        kept_z = jnp.where(is_burn_in, 0.0, state[0])
        return state, log_eta, total + kept_z, squares + jnp.outer(kept_z, kept_z)

    origin = jnp.zeros(dim, dtype)
    log_eta = jnp.log(jnp.asarray(1.65**2 / 2 * dim ** (-1 / 3), dtype))
    carry = ((origin, *log_density(origin)), log_eta, origin, jnp.zeros((dim, dim), dtype))
    _, _, sum_z, squares = jax.lax.fori_loop(0, steps, step, carry)
    count, prior = steps - steps // 2, _SHRINKAGE * dim
    mean = sum_z / count
    scatter = squares - count * jnp.outer(mean, mean) + prior * jnp.eye(dim, dtype=dtype)
    inner = jnp.linalg.cholesky(scatter / (count + prior))
    return Gaussian(start.mean + start.factor @ mean, start.factor @ inner)
