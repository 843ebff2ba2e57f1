"""Microcanonical Langevin Monte Carlo, without an accept step."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Gt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.kernel import choose, density, replace, standard_normal
from bnnzoo.samplers.mcmc import isokinetic
from bnnzoo.samplers.mcmc.isokinetic import Point
from bnnzoo.samplers.mcmc.low_rank import LowRankMetric, share_metric
from bnnzoo.samplers.statistics import DIVERGING, LOG_DENSITY, STEP_SIZE, Statistic

_MAX_RELATIVE_ERROR = 1000.0
"""A step is taken if its squared energy error is at most this number times the target `energy_variance` x dim."""
_MEMORY = (150 - 1.0) / (150 + 1.0)
"""Factor by which the adaptation of the step size multiplies the weights of all earlier steps at each new step. With
this factor, the weighted mean over the steps has an effective number of 150 steps."""
_TRUST = 1.5
"""A step has the weight exp(-(x / _TRUST)^2 / 2) in the adaptation. x is the change of log(step size) with which the
squared energy error of this step would equal its target."""


class MclmcState(eqx.Module):
    """State of a chain, and the quantities that warm-up adapts."""

    position: Float[Array, " dim"]
    direction: Float[Array, " dim"]
    """Unit vector in the coordinates of the metric. Its length is fixed, because a microcanonical chain has constant
    speed."""
    log_prior: Float[Array, ""]
    log_likelihoods: Float[Array, " num_data"]
    gradient: Float[Array, " dim"]
    step_size: Float[Array, ""]
    metric: LowRankMetric
    weight: Float[Array, ""]
    """Sum of the weights of the steps (`_TRUST`) in the present warm-up window."""
    excess: Float[Array, ""]
    """Weighted sum of squared energy errors, each divided by its target and rescaled to a step size of 1."""


class Mclmc(AbstractSampler[MclmcState]):
    """Draws near the posterior from an isokinetic integrator with partial refreshment of the direction.

    Robnik, De Luca, Silverstein and Seljak 2023, arXiv 2212.08549. Each draw needs two gradients. Sommer et al. 2025,
    arXiv 2502.06335, start each chain of a network at trained parameters, as `init: map` does. The direction u turns
    towards the gradient g of log p, and theta moves along u:

        du/dt = (I - u u') g / (dim - 1),   dtheta/dt = u

    The first equation is solved exactly for a constant g (equation 13 of Robnik et al.). The chain forgets its
    direction over a path of length `length` sqrt(dim). There is no accept step, so the draws have a bias.

    Warm-up adapts the step size such that the variance of the energy error per parameter is `energy_variance`. A larger
    value gives a larger bias. The adaptation uses the rule Var[E] ~ step^6 (Robnik et al., section on tuning).
    Warm-up also sets a diagonal plus low-rank metric from the positions and gradients of all chains (`low_rank`). Step
    sizes are in units of this metric.

    If a step is not finite, or if its energy error is far too large, the step is not taken. The chain then stays where
    it is and gets a new random direction, and the draw is marked `diverging`.
    """

    exactness: ClassVar[Exactness] = "biased"
    chain_state: ClassVar[tuple[str, ...]] = ("direction", "log_prior", "log_likelihoods", "gradient")
    density_only: ClassVar[bool] = True
    can_end_warmup: ClassVar[bool] = True
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, DIVERGING, STEP_SIZE, Statistic("energy_error"))

    step_size: Annotated[Number, Gt(0), Doc("step size of the integrator (initial value)")] = number(0.01)
    length: Annotated[
        Number, Gt(0), Doc("length over which the direction is forgotten, in units of sqrt(dim) standard deviations")
    ] = number(1.0)
    energy_variance: Annotated[Number, Gt(0), Doc("target variance of the energy error per parameter")] = number(5e-4)

    @property
    def gradients(self) -> int:
        """Number of gradients of a step."""
        return isokinetic.GRADIENTS

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse a posterior with fewer than two parameters.

        Raises:
            UsageError: if the posterior has fewer than two parameters.
        """
        isokinetic.check_dim(posterior)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> MclmcState:
        """Return the state at `theta`, with a random direction."""
        parts = density(posterior, theta)
        zero = jnp.zeros((), theta.dtype)
        step_size = jnp.asarray(self.step_size, theta.dtype)
        direction = isokinetic.normalise(standard_normal(theta, key=key))
        return MclmcState(theta, direction, *parts, step_size, LowRankMetric.identity(theta, num_warmup), zero, zero)

    def step(self, posterior: AbstractPosterior, state: MclmcState, *, key: PRNGKeyArray) -> tuple[MclmcState, Stats]:
        """Refresh the direction partially and make one step of the integrator."""
        noise_key, fresh_key = jax.random.split(key)
        dim, eps = state.position.shape[0], state.step_size
        noise = standard_normal(state.position, key=noise_key)
        # Over a path t the squared cosine with the old direction decays as exp(-2 t / L), L = `length` sqrt(dim).
        strength = jnp.sqrt(jnp.expm1(2 * eps / (self.length * dim**0.5)) / dim)
        direction = isokinetic.normalise(state.direction + strength * noise)
        start = Point(state.position, direction, state.log_prior, state.log_likelihoods, state.gradient)
        end, kinetic = isokinetic.integrate(partial(density, posterior), start, step_size=eps, metric=state.metric)
        change = posterior.likelihood_power * jnp.sum(end.log_likelihoods - state.log_likelihoods)
        error = kinetic - (end.log_prior - state.log_prior + change)
        # If the gradient or the direction is NaN, so is the kinetic energy, and the step is not taken.
        is_taken = jnp.square(error) <= _MAX_RELATIVE_ERROR * self.energy_variance * dim
        fresh_direction = isokinetic.normalise(standard_normal(direction, key=fresh_key))
        stopped = start._replace(direction=fresh_direction)
        next_state = replace(state, **choose(is_taken, end, stopped)._asdict())
        stats = {
            "lp": next_state.log_prior + posterior.likelihood_power * jnp.sum(next_state.log_likelihoods),
            "energy_error": jnp.where(is_taken, error, 0.0),
            "diverging": ~is_taken,
            "step_size": eps,
        }
        return next_state, stats

    def warmup_step(
        self, posterior: AbstractPosterior, state: MclmcState, *, key: PRNGKeyArray
    ) -> tuple[MclmcState, Stats]:
        """Make one step and adapt the step size to `energy_variance`."""
        next_state, stats = self.step(posterior, state, key=key)
        has_failed = stats["diverging"]
        # xi is the squared error divided by its target. With a step size of 1 it would be xi / step^6. Errors far from
        # the target have a small weight.
        log_xi = jnp.log(stats["energy_error"] ** 2 / (state.position.shape[0] * self.energy_variance) + 1e-8)
        step_weight = jnp.where(has_failed, 0.0, jnp.exp(-((log_xi / (6 * _TRUST)) ** 2) / 2))
        error_at_unit_step = jnp.exp(jnp.clip(log_xi - 6 * jnp.log(state.step_size), -80.0, 80.0))
        weight = _MEMORY * state.weight + step_weight
        excess = _MEMORY * state.excess + step_weight * error_at_unit_step
        wanted_step_size = (excess / jnp.maximum(weight, 1e-30)) ** (-1 / 6)
        step_size = jnp.clip(wanted_step_size, 0.5 * state.step_size, 2 * state.step_size)
        step_size = jnp.where(has_failed, 0.8 * state.step_size, jnp.where(weight > 0, step_size, state.step_size))
        # A failed step reduces the step size. The weighted sums do not apply to shorter steps, so they are reset.
        weight, excess = jnp.where(has_failed, 0.0, weight), jnp.where(has_failed, 0.0, excess)
        metric = state.metric.with_position(next_state.position, next_state.gradient)
        return replace(next_state, step_size=step_size, metric=metric, weight=weight, excess=excess), stats

    def settle(self, posterior: AbstractPosterior, state: MclmcState, *, final: bool, key: PRNGKeyArray) -> MclmcState:
        """Restart the adaptation of the step size, except at the end of warm-up."""
        del posterior, key
        if final:
            return state
        zero = jnp.zeros_like(state.weight)
        return replace(state, weight=zero, excess=zero)

    def tune(
        self, posterior: AbstractPosterior, states: MclmcState, *, final: bool, key: PRNGKeyArray, num_steps: int
    ) -> tuple[AbstractSampler[MclmcState], MclmcState]:
        """Pool the metric and the step size over all chains."""
        del posterior, key, num_steps
        return self, share_metric(states, final=final)
