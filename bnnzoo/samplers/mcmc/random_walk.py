"""Random-walk Metropolis."""

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
from bnnzoo.samplers.kernel import choose, metropolis, metropolis_statistics, standard_normal
from bnnzoo.samplers.statistics import LOG_DENSITY, METROPOLIS, Statistic


class RandomWalkState(eqx.Module):
    """State of a chain."""

    position: Float[Array, " dim"]
    log_prior: Float[Array, ""]
    log_likelihoods: Float[Array, " num_data"]
    step_size: Float[Array, ""]
    preconditioner: _preconditioner.Preconditioner


class RandomWalk(_preconditioner.AbstractPreconditionedSampler[RandomWalkState]):
    """Draws from the posterior. theta' = theta + eta F eps, accepted with probability min(1, e^-Delta).

    Metropolis et al. 1953. The proposal has the covariance eta^2 F F', and eps ~ N(0, I). Warm-up learns the
    preconditioner F F'. Without warm-up it is the identity matrix. Delta is the decrease of the log posterior density
    over all data. The state stores the log-likelihood of each datum, so that Delta is a sum of differences. A
    difference of sums would have larger rounding errors.
    """

    exactness: ClassVar[Exactness] = "exact"
    chain_state: ClassVar[tuple[str, ...]] = ("log_prior", "log_likelihoods")
    density_only: ClassVar[bool] = True
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, *METROPOLIS)

    step_size: Annotated[Number, Gt(0), Doc("eta: step size, in theta + eta F eps (initial value)")] = number(0.01)
    target_acceptance: Annotated[
        Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up, which tunes eta")
    ] = number(0.35)
    preconditioner: Annotated[_preconditioner.Shape, Doc("shape of the proposal's covariance")] = "auto"

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> RandomWalkState:
        """Return the state at `theta`, with its log density."""
        del key
        return RandomWalkState(
            theta,
            posterior.log_prior(theta),
            posterior.log_likelihoods(theta),
            jnp.asarray(self.step_size, theta.dtype),
            _preconditioner.identity(self.preconditioner if num_warmup else "identity", theta),
        )

    def step(
        self, posterior: AbstractPosterior, state: RandomWalkState, *, key: PRNGKeyArray
    ) -> tuple[RandomWalkState, Stats]:
        """Make one random-walk proposal, then accept or reject it."""
        key_propose, key_accept = jax.random.split(key)
        eps = standard_normal(state.position, key=key_propose)
        proposal = state.position + state.step_size * state.preconditioner.correlate(eps)
        log_prior = posterior.log_prior(proposal)
        log_likelihoods = posterior.log_likelihoods(proposal)
        change = jnp.sum(log_likelihoods - state.log_likelihoods)
        log_ratio = log_prior - state.log_prior + posterior.likelihood_power * change
        accepted, rate, diverging = metropolis(log_ratio, key=key_accept)
        # Choose between old and new values only for the leaves that change. For a small network, a choice of the
        # preconditioner too would cost more than the network itself.
        next_values = choose(
            accepted,
            (proposal, log_prior, log_likelihoods),
            (state.position, state.log_prior, state.log_likelihoods),
        )
        position, log_prior, log_likelihoods = next_values
        state = RandomWalkState(position, log_prior, log_likelihoods, state.step_size, state.preconditioner)
        return state, metropolis_statistics(posterior, state, accepted, rate, diverging)
