"""The Metropolis-adjusted Langevin algorithm."""

from __future__ import annotations

from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Gt, Lt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Exactness, Stats
from bnnzoo.samplers.common import preconditioner as _preconditioner
from bnnzoo.samplers.kernel import choose, density, metropolis, metropolis_statistics, standard_normal
from bnnzoo.samplers.statistics import LOG_DENSITY, METROPOLIS, Statistic


class MalaState(eqx.Module):
    """State of a chain."""

    position: Float[Array, " dim"]
    log_prior: Float[Array, ""]
    log_likelihoods: Float[Array, " num_data"]
    gradient: Float[Array, " dim"]
    step_size: Float[Array, ""]
    preconditioner: _preconditioner.Preconditioner


class Mala(_preconditioner.AbstractPreconditionedSampler[MalaState]):
    """Draws from the posterior. theta' = theta + eta C grad log p + sqrt(2 eta) F eps, C = F F', then Metropolis.

    Besag 1994; Roberts and Tweedie 1996. eps ~ N(0, I). Warm-up learns the preconditioner C. Without warm-up it is the
    identity matrix. The acceptance probability includes the ratio of the proposal densities q. Let g be F' grad log p
    at theta, g' the same vector at theta', and eps' = eps + sqrt(eta / 2) (g + g'). Then
    log q(theta|theta') - log q(theta'|theta) = (|eps|^2 - |eps'|^2) / 2.
    """

    exactness: ClassVar[Exactness] = "exact"
    chain_state: ClassVar[tuple[str, ...]] = ("log_prior", "log_likelihoods", "gradient")
    density_only: ClassVar[bool] = True
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, *METROPOLIS)

    step_size: Annotated[Number, Gt(0), Doc("eta: step size, in eta C grad + sqrt(2 eta) F eps (initial value)")] = (
        number(1e-4)
    )
    target_acceptance: Annotated[
        Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up, which tunes eta")
    ] = number(0.574)
    preconditioner: Annotated[_preconditioner.Shape, Doc("shape of the proposal's covariance")] = "auto"

    def step_power(self, posterior: AbstractPosterior) -> int:
        """Return 2, because eta is a squared length."""
        del posterior
        return 2

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> MalaState:
        """Return the state at `theta`, with its log density and gradient."""
        del key
        log_prior, log_likelihoods, gradient = density(posterior, theta)
        return MalaState(
            theta,
            log_prior,
            log_likelihoods,
            gradient,
            jnp.asarray(self.step_size, theta.dtype),
            _preconditioner.identity(self.preconditioner if num_warmup else "identity", theta),
        )

    def step(self, posterior: AbstractPosterior, state: MalaState, *, key: PRNGKeyArray) -> tuple[MalaState, Stats]:
        """Make one Langevin proposal, then accept or reject it."""
        key_propose, key_accept = jax.random.split(key)
        eta, shape = state.step_size, state.preconditioner
        eps = standard_normal(state.position, key=key_propose)
        forward = shape.project(state.gradient)
        proposal = state.position + shape.correlate(eta * forward + jnp.sqrt(2 * eta) * eps)
        log_prior, log_likelihoods, gradient = density(posterior, proposal)
        reverse = eps + jnp.sqrt(eta / 2) * (forward + shape.project(gradient))
        change = jnp.sum(log_likelihoods - state.log_likelihoods)
        log_ratio = (
            log_prior
            - state.log_prior
            + posterior.likelihood_power * change
            + (jnp.sum(eps**2) - jnp.sum(reverse**2)) / 2
        )
        accepted, rate, diverging = metropolis(log_ratio, key=key_accept)
        next_values = choose(
            accepted,
            (proposal, log_prior, log_likelihoods, gradient),
            (state.position, state.log_prior, state.log_likelihoods, state.gradient),
        )
        position, log_prior, log_likelihoods, gradient = next_values
        state = MalaState(position, log_prior, log_likelihoods, gradient, eta, shape)
        return state, metropolis_statistics(posterior, state, accepted, rate, diverging)
