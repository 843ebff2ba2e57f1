"""The Metropolis-adjusted microcanonical sampler."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt, Lt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.kernel import choose, metropolis, metropolis_statistics, replace, standard_normal
from bnnzoo.samplers.mcmc import isokinetic
from bnnzoo.samplers.mcmc.coordinates import WHITEN_LAST_LAYER, Coordinates
from bnnzoo.samplers.mcmc.isokinetic import Point
from bnnzoo.samplers.mcmc.low_rank import LowRankMetric, share_metric
from bnnzoo.samplers.statistics import LOG_DENSITY, METROPOLIS, Statistic

_SHORT_FRACTION, _SHORT_FACTOR = 1 / 8, 1 / 8
"""Fraction of the draws that use short steps, and the factor by which their step size is multiplied."""
_MIN_STEPS, _MAX_STEPS = 4, 512
"""Smallest and largest number of steps of a trajectory in a run with a time budget.

With short trajectories a chain makes a random walk in directions where the posterior is much wider than in its
narrowest direction. On data almost without noise, the longest affordable trajectories of a network gave the largest
effective sample size (`benchmarks/trajectories.py`).
"""


class MamsState(eqx.Module):
    """State of a chain. The coordinates u of the trajectories are those of `Coordinates`."""

    position: Float[Array, " dim"]
    log_prior: Float[Array, ""]
    """Log prior density plus the log Jacobian of the coordinates."""
    log_likelihoods: Float[Array, " num_data"]
    gradient: Float[Array, " dim"]
    """Gradient of the log density of u, with respect to u."""
    step_size: Float[Array, ""]
    metric: LowRankMetric


class Mams(AbstractSampler[MamsState]):
    """Draws from the posterior: `num_steps` steps of the isokinetic integrator of `mclmc`, then Metropolis.

    The Metropolis-adjusted microcanonical sampler: Robnik, Cohn-Gordon and Seljak 2025, arXiv 2503.01707. Each draw
    begins in a direction that is uniform on the sphere. The integrator is reversible, and its change of volume is
    known. The end point is accepted with probability min(1, exp(-W)), where W is the gain of potential energy plus the
    gain of kinetic energy.

    The step size of a draw is multiplied by two random factors. The first factor is uniform in 1 +- `jitter`. Without
    it, a trajectory could return to its start in some direction. The second factor is 1/8 with probability 1/8, and
    otherwise 1. Without it, a chain could be stuck in a region that is too narrow for its steps, for example where the
    noise scale is small.

    Warm-up adapts the step size. It also sets a diagonal plus low-rank metric from the positions and gradients of all
    chains (`low_rank`).
    """

    exactness: ClassVar[Exactness] = "exact"
    chain_state: ClassVar[tuple[str, ...]] = ("log_prior", "log_likelihoods", "gradient")
    density_only: ClassVar[bool] = True
    can_end_warmup: ClassVar[bool] = True
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, *METROPOLIS, Statistic("energy_error"))
    budget_field: ClassVar[str] = "num_steps"

    step_size: Annotated[Number, Gt(0), Doc("step size of the integrator (initial value)")] = number(0.01)
    num_steps: Annotated[int, Ge(1), Doc("integrator steps per draw; a time budget selects it if not given")] = 16
    jitter: Annotated[
        Number, Ge(0), Lt(1), Doc("each draw multiplies the step size by a uniform number in 1 +- jitter")
    ] = number(0.2)
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up")] = number(0.9)
    whiten_last_layer: Annotated[bool, Doc(WHITEN_LAST_LAYER)] = True

    @property
    def gradients(self) -> int:
        """Number of gradients of a draw."""
        return isokinetic.GRADIENTS * self.num_steps

    def trajectory_gradient(
        self, posterior: AbstractPosterior, position: Float[Array, " dim"]
    ) -> Float[Array, " dim"] | None:
        """Return the gradient of the log density of u at u = `position`; None if u and theta are always equal."""
        return self._coordinates(posterior).gradient(position)

    def fit_budget(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], gradients: float) -> int:
        """Return the number of steps of a trajectory, a power of two, for which `gradients` gradients suffice.

        The number is at least `_MIN_STEPS`, even if `gradients` is too small for `_MIN_STEPS` steps. It is at most
        `_MAX_STEPS`.
        """
        del posterior, thetas
        affordable_steps = min(max(gradients / isokinetic.GRADIENTS, _MIN_STEPS), _MAX_STEPS)
        # With a power of two, a small difference in the measured time rarely changes the trajectories.
        return 2 ** int(math.log2(affordable_steps))

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse a posterior with fewer than two parameters.

        Raises:
            UsageError: if the posterior has fewer than two parameters.
        """
        isokinetic.check_dim(posterior)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> MamsState:
        """Return the state at `theta`, with its log density and gradient."""
        del key
        step_size = jnp.asarray(self.step_size, theta.dtype)
        coordinates = self._coordinates(posterior)
        derivatives = coordinates.density(coordinates.from_theta(theta))
        return MamsState(theta, *derivatives, step_size, LowRankMetric.identity(theta, num_warmup))

    def step(self, posterior: AbstractPosterior, state: MamsState, *, key: PRNGKeyArray) -> tuple[MamsState, Stats]:
        """Follow one trajectory, then accept or reject its end point."""
        next_state, _, stats = self._move(posterior, state, key=key)
        return next_state, stats

    def _move(
        self, posterior: AbstractPosterior, state: MamsState, *, key: PRNGKeyArray
    ) -> tuple[MamsState, Float[Array, " dim"], Stats]:
        """Return the state after one trajectory, its coordinates u, and the statistics."""
        direction_key, jitter_key, short_key, accept_key = jax.random.split(key, 4)
        coordinates, dtype = self._coordinates(posterior), state.position.dtype
        factor = 1 + self.jitter * jax.random.uniform(jitter_key, (), dtype, -1.0, 1.0)
        factor *= jnp.where(jax.random.uniform(short_key) < _SHORT_FRACTION, _SHORT_FACTOR, 1.0).astype(dtype)
        direction = isokinetic.normalise(standard_normal(state.position, key=direction_key))
        u = coordinates.from_theta(state.position)
        start = Point(u, direction, state.log_prior, state.log_likelihoods, state.gradient)

        step_size = factor * state.step_size
        end, kinetic = isokinetic.integrate(
            coordinates.density, start, step_size=step_size, metric=state.metric, num_steps=self.num_steps
        )
        change = posterior.likelihood_power * jnp.sum(end.log_likelihoods - state.log_likelihoods)
        energy_error = kinetic - (end.log_prior - state.log_prior + change)
        accepted, rate, diverging = metropolis(-energy_error, key=accept_key)
        next_u = choose(accepted, end.position, u)
        theta, log_jacobian = coordinates.to_theta(next_u)
        next_state = replace(
            state,
            # A rejected step must not change the position, not even by rounding.
            position=jnp.where(accepted, theta, state.position),
            log_prior=choose(accepted, end.log_prior, state.log_prior),
            log_likelihoods=choose(accepted, end.log_likelihoods, state.log_likelihoods),
            gradient=choose(accepted, end.gradient, state.gradient),
        )
        stats = metropolis_statistics(posterior, next_state, accepted, rate, diverging)
        stats |= {"lp": stats["lp"] - log_jacobian, "energy_error": jnp.where(diverging, 0.0, energy_error)}
        return next_state, next_u, stats

    def warmup_step(
        self, posterior: AbstractPosterior, state: MamsState, *, key: PRNGKeyArray
    ) -> tuple[MamsState, Stats]:
        """Make one step and keep its position and gradient for the metric."""
        next_state, u, stats = self._move(posterior, state, key=key)
        metric = state.metric.with_position(u, next_state.gradient)
        return replace(next_state, metric=metric), stats

    def tune(
        self, posterior: AbstractPosterior, states: MamsState, *, final: bool, key: PRNGKeyArray, num_steps: int
    ) -> tuple[AbstractSampler[MamsState], MamsState]:
        """Pool metric and step size over all chains, at the end of each window except the last.

        After warm-up, each chain therefore uses the step size that this chain has adapted in the last window.
        """
        del posterior, key, num_steps
        return self, states if final else share_metric(states, final=False)

    def _coordinates(self, posterior: AbstractPosterior) -> Coordinates:
        return Coordinates.of(posterior, whiten_last_layer=self.whiten_last_layer)
