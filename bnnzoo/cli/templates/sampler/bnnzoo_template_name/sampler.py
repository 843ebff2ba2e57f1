"""Random-walk Metropolis.

The proposal is theta' = theta + eta eps, with the step size eta and eps from a standard normal distribution. It is
accepted with probability min(1, p(theta') / p(theta)), where p is the posterior density.
"""

from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Gt, Lt
from bnnzoo import (
    AbstractPosterior,
    AbstractSampler,
    Statistic,
    Stats,
    choose,
    metropolis,
    number,
    replace,
    standard_normal,
)
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc


class TemplateNameState(eqx.Module):
    """The state between steps. `position` is stored as the draw; warm-up adapts `step_size`."""

    position: Float[Array, " dim"]
    log_density: Float[Array, ""]
    step_size: Float[Array, ""]


class TemplateName(AbstractSampler[TemplateNameState]):
    """Random-walk Metropolis with a Gaussian proposal (Metropolis et al. 1953)."""

    exactness: ClassVar[Literal["exact", "noise-corrected", "biased", "approximate"]] = "exact"
    # The fields besides `position` that a step may change after warm-up. `check sampler` fails if another field
    # changes.
    chain_state: ClassVar[tuple[str, ...]] = ("log_density",)
    statistics: ClassVar[tuple[Statistic, ...]] = (
        Statistic("lp", label="log posterior"),
        Statistic("acceptance_rate", "mean", label="acceptance"),
        Statistic("accepted", "mean"),
        Statistic("diverging", "mean"),
        Statistic("step_size"),
    )

    step_size: Annotated[float, Gt(0), Doc("standard deviation of the proposal")] = number(0.01)
    target_acceptance: Annotated[float, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up")] = number(0.35)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> TemplateNameState:
        """Return the first state of a chain at `theta`."""
        del num_warmup, key
        return TemplateNameState(theta, posterior.log_density(theta), jnp.asarray(self.step_size, theta.dtype))

    def step(
        self, posterior: AbstractPosterior, state: TemplateNameState, *, key: PRNGKeyArray
    ) -> tuple[TemplateNameState, Stats]:
        """Propose a position, accept or reject it, and return the new state with its statistics."""
        key_propose, key_accept = jax.random.split(key)
        position = state.position + state.step_size * standard_normal(state.position, key=key_propose)
        log_density = posterior.log_density(position)
        # For a proposal that is not symmetric, add log q(theta | theta') - log q(theta' | theta).
        log_ratio = log_density - state.log_density
        accepted, rate, diverging = metropolis(log_ratio, key=key_accept)
        state = choose(accepted, replace(state, position=position, log_density=log_density), state)
        return state, {
            "lp": state.log_density,
            "acceptance_rate": rate,
            "accepted": accepted,
            "diverging": diverging,
            "step_size": state.step_size,
        }
