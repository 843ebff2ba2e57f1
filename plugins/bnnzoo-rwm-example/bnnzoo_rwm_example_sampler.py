"""Random-walk Metropolis.

The proposal theta' = theta + eta eps, with the step size eta and a standard normal vector eps, is accepted with
probability min(1, p(theta') / p(theta)), where p is the posterior density.
"""

from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Gt, Lt
from jaxtyping import Array, Float
from typing_extensions import Doc

from bnnzoo.samplers import AbstractSampler, Statistic, choose, metropolis, number, standard_normal
from bnnzoo.samplers.statistics import LOG_DENSITY, METROPOLIS


class RwmState(NamedTuple):
    """State of a chain: position, log density and step size."""

    position: Float[Array, " dim"]
    lp: Float[Array, ""]
    step_size: Float[Array, ""]


class Rwm(AbstractSampler):
    """Draws from the posterior by random-walk Metropolis (Metropolis et al. 1953)."""

    exactness: ClassVar[str] = "exact"
    chain_state: ClassVar[tuple[str, ...]] = ("lp",)
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, *METROPOLIS)

    step_size: Annotated[float, Gt(0), Doc("eta: the proposal's standard deviation")] = number(0.1)
    target_acceptance: Annotated[float, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up")] = number(0.35)

    def init(self, posterior, theta, *, num_warmup, key):
        """Return the state of a chain whose initial position is `theta`."""
        del num_warmup, key
        return RwmState(theta, posterior.log_density(theta), jnp.asarray(self.step_size, theta.dtype))

    def step(self, posterior, state, *, key):
        """Make one Metropolis step."""
        key_propose, key_accept = jax.random.split(key)
        proposal = state.position + state.step_size * standard_normal(state.position, key=key_propose)
        lp = posterior.log_density(proposal)
        accepted, rate, diverging = metropolis(lp - state.lp, key=key_accept)
        state = choose(accepted, state._replace(position=proposal, lp=lp), state)
        stats = {"lp": state.lp, "acceptance_rate": rate, "accepted": accepted, "diverging": diverging}
        return state, {**stats, "step_size": state.step_size}
