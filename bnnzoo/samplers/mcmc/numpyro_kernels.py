"""Samplers that run NumPyro's Hamiltonian kernels in the sampling loop of bnnzoo."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer.hmc import HMC
from numpyro.infer.util import ParamInfo

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.kernel import replace
from bnnzoo.samplers.mcmc.coordinates import Coordinates
from bnnzoo.samplers.mcmc.low_rank import HAMILTONIAN, LowRankMetric, share_metric
from bnnzoo.samplers.statistics import ACCEPTANCE_RATE, DIVERGING, ENERGY, LOG_DENSITY, N_STEPS, STEP_SIZE, Statistic

STATISTICS = (ACCEPTANCE_RATE, LOG_DENSITY, DIVERGING, STEP_SIZE, N_STEPS, ENERGY)
Potential = Callable[[Float[Array, " dim"]], Float[Array, ""]]


class HamiltonianState(eqx.Module):
    """State of a chain. The trajectories move in coordinates z with u = A z, where A is the map of the metric."""

    position: Float[Array, " dim"]
    coordinates: Float[Array, " dim"]
    """The position in the coordinates u (`Coordinates`)."""
    potential_energy: Float[Array, ""]
    """Minus the log density of u."""
    gradient: Float[Array, " dim"]
    """Gradient of the log density of u, with respect to u."""
    step_size: Float[Array, ""]
    metric: LowRankMetric


class AbstractHamiltonianSampler(AbstractSampler[HamiltonianState]):
    """A sampler whose trajectories are those of a NumPyro kernel. bnnzoo adapts the step size and the metric."""

    exactness: ClassVar[Exactness] = "exact"
    density_only: ClassVar[bool] = True
    can_end_warmup: ClassVar[bool] = True
    chain_state: ClassVar[tuple[str, ...]] = ("coordinates", "potential_energy", "gradient")
    statistics: ClassVar[tuple[Statistic, ...]] = STATISTICS

    @abc.abstractmethod
    def kernel(self, potential: Potential, step_size: Number, *, warmup: bool) -> HMC:
        """Return NumPyro's kernel for a potential energy, with the hyperparameters of this sampler."""

    def coordinates(self, posterior: AbstractPosterior) -> Coordinates:
        """Return the map between theta and the coordinates u."""
        fields: Any = self  # a declaration of the field here would make it the first option of the samplers
        return Coordinates.of(posterior, whiten_last_layer=fields.whiten_last_layer)

    def trajectory_gradient(
        self, posterior: AbstractPosterior, position: Float[Array, " dim"]
    ) -> Float[Array, " dim"] | None:
        """Return the gradient of the log density of u at u = `position`; None if u and theta are always equal."""
        return self.coordinates(posterior).gradient(position)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> HamiltonianState:
        """Return the state at `theta`, with its potential energy and gradient."""
        del key
        fields: Any = self
        coordinates = self.coordinates(posterior)
        u = coordinates.from_theta(theta)
        energy, slope = jax.value_and_grad(potential(coordinates))(u)
        step_size = jnp.asarray(fields.step_size, theta.dtype)
        return HamiltonianState(theta, u, energy, -slope, step_size, LowRankMetric.identity(theta, num_warmup))

    def step(
        self, posterior: AbstractPosterior, state: HamiltonianState, *, key: PRNGKeyArray
    ) -> tuple[HamiltonianState, Stats]:
        """Make one transition."""
        return self.move(posterior, state, warmup=False, key=key)

    def warmup_step(
        self, posterior: AbstractPosterior, state: HamiltonianState, *, key: PRNGKeyArray
    ) -> tuple[HamiltonianState, Stats]:
        """Make one transition and keep its position and gradient for the metric."""
        state, stats = self.move(posterior, state, warmup=True, key=key)
        return replace(state, metric=state.metric.with_position(state.coordinates, state.gradient)), stats

    def move(
        self, posterior: AbstractPosterior, state: HamiltonianState, *, warmup: bool, key: PRNGKeyArray
    ) -> tuple[HamiltonianState, Stats]:
        """Make one transition with a step size that is multiplied by a random factor, uniform in 1 +- `jitter`.

        The factor is independent of the state, so that the target stays invariant. The reported step size does not
        include the factor. Samplers without the field `jitter` have no factor.
        """
        jitter_key, kernel_key = jax.random.split(key)
        coordinates, metric = self.coordinates(posterior), state.metric
        factor = 1 + getattr(self, "jitter", 0.0) * jax.random.uniform(jitter_key, (), state.position.dtype, -1.0, 1.0)
        energy = potential(coordinates)
        kernel = self.kernel(lambda z: energy(metric.correlate(z)), state.step_size * factor, warmup=warmup)
        start = ParamInfo(metric.whiten(state.coordinates), state.potential_energy, -metric.project(state.gradient))
        old = kernel.init(kernel_key, 0, start, (), {})
        new = kernel.sample(old, (), {})
        # A rejected step must not change the position, not even by rounding.
        has_moved = jnp.any(new.z != old.z)
        u = jnp.where(has_moved, metric.correlate(new.z), state.coordinates)
        theta, log_jacobian = coordinates.to_theta(u)
        next_state = replace(
            state,
            position=jnp.where(has_moved, theta, state.position),
            coordinates=u,
            potential_energy=new.potential_energy,
            gradient=jnp.where(has_moved, -metric.unproject(new.z_grad), state.gradient),
        )
        return next_state, {
            "lp": -new.potential_energy - log_jacobian,
            "acceptance_rate": new.accept_prob,
            "diverging": new.diverging,
            "step_size": state.step_size,
            "n_steps": jnp.asarray(new.num_steps, jnp.int32),
            "energy": new.energy,
        }

    def tune(
        self, posterior: AbstractPosterior, states: HamiltonianState, *, final: bool, key: PRNGKeyArray, num_steps: int
    ) -> tuple[AbstractSampler[HamiltonianState], HamiltonianState]:
        """Pool metric and step size over all chains, at the end of each window except the last.

        After warm-up, each chain therefore uses the step size that this chain has adapted in the last window.
        """
        del posterior, key, num_steps
        return self, states if final else share_metric(states, final=False, caution=HAMILTONIAN)


def potential(coordinates: Coordinates) -> Potential:
    """Return the function u -> minus the log density of u. One pass over the data gives value and gradient."""
    power = coordinates.posterior.likelihood_power

    def value_and_gradient(u: Float[Array, " dim"]) -> tuple[Float[Array, ""], Float[Array, " dim"]]:
        log_prior, log_likelihoods, gradient = coordinates.density(u)
        return -(log_prior + power * jnp.sum(log_likelihoods)), -gradient

    @jax.custom_vjp
    def energy(u: Float[Array, " dim"]) -> Float[Array, ""]:
        return value_and_gradient(u)[0]

    def backward(gradient: Float[Array, " dim"], change: Float[Array, ""]) -> tuple[Float[Array, " dim"]]:
        return (change * gradient,)

    energy.defvjp(value_and_gradient, backward)
    return energy
