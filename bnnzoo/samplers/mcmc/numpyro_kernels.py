"""Samplers that run NumPyro's Hamiltonian kernels in the sampling loop of bnnzoo."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer.hmc import HMC
from numpyro.infer.hmc_util import build_adaptation_schedule

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.mcmc.coordinates import Coordinates
from bnnzoo.samplers.statistics import ACCEPTANCE_RATE, DIVERGING, ENERGY, LOG_DENSITY, N_STEPS, STEP_SIZE, Statistic

_FEWEST_STEPS = 20
"""Smallest number of steps in which the kernel adapts its step size to a new mass matrix before warm-up may end."""
STATISTICS = (ACCEPTANCE_RATE, LOG_DENSITY, DIVERGING, STEP_SIZE, N_STEPS, ENERGY)


class HamiltonianState(eqx.Module):
    """State of NumPyro's kernel. The kernel adapts itself while its step counter is below `num_warmup`."""

    position: Float[Array | np.ndarray, "*chains dim"]
    """Position theta. In a state that contains all chains, the first axis is the chain."""
    inner: Any
    """NumPyro's state, whose position is u, in the coordinates of the trajectories (`Coordinates`)."""
    num_warmup: int = eqx.field(static=True)


class AbstractHamiltonianSampler(AbstractSampler[HamiltonianState]):
    """A sampler that runs a NumPyro kernel."""

    exactness: ClassVar[Exactness] = "exact"
    density_only: ClassVar[bool] = True
    chain_state: ClassVar[tuple[str, ...]] = tuple(
        f"inner.{name}"
        for name in (
            *("i", "z", "z_grad", "potential_energy", "energy", "r", "trajectory_length", "num_steps"),
            *("accept_prob", "mean_accept_prob", "diverging"),
        )
    )
    statistics: ClassVar[tuple[Statistic, ...]] = STATISTICS

    @abc.abstractmethod
    def kernel(self, coordinates: Coordinates) -> HMC:
        """Return NumPyro's kernel for the density in these coordinates, with the hyperparameters of this sampler."""

    def coordinates(self, posterior: AbstractPosterior) -> Coordinates:
        """Return the coordinates of the trajectories."""
        fields: Any = self  # a declaration of the field here would make it the first option of the samplers
        return Coordinates.of(posterior, whiten_last_layer=fields.whiten_last_layer)

    def trajectory_gradient(
        self, posterior: AbstractPosterior, position: Float[Array, " dim"]
    ) -> Float[Array, " dim"] | None:
        """Return the gradient in the coordinates with a whitened last layer; None without them."""
        return self.coordinates(posterior).gradient(position)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> HamiltonianState:
        """Return the state of NumPyro's kernel at `theta`."""
        coordinates = self.coordinates(posterior)
        inner = self.kernel(coordinates).init(key, num_warmup, coordinates.from_theta(theta), (), {})
        return HamiltonianState(theta, _without_weak_types(inner), num_warmup)

    def may_end_warmup(self, planned: int, end: int) -> bool:
        """Return whether the kernel has adapted its step size in enough steps since it last changed its mass matrix."""
        changes = [window.end + 1 for window in build_adaptation_schedule(planned)[1:-1]]
        return not any(change <= end < change + _FEWEST_STEPS for change in changes)

    def settle(
        self, posterior: AbstractPosterior, state: HamiltonianState, *, final: bool, key: PRNGKeyArray
    ) -> HamiltonianState:
        """End the kernel's adaptation if warm-up ends early. Its step size is then the average of its own window."""
        del posterior, key
        if not final:
            return state
        adapted = state.inner.adapt_state
        _, log_step_size, *_ = adapted.ss_state  # the second entry is the average
        is_early = state.inner.i < state.num_warmup
        step_size = jnp.where(is_early, jnp.exp(log_step_size), adapted.step_size).astype(adapted.step_size.dtype)
        inner = state.inner._replace(
            i=jnp.maximum(state.inner.i, state.num_warmup), adapt_state=adapted._replace(step_size=step_size)
        )
        return HamiltonianState(state.position, inner, state.num_warmup)

    def headroom(self, stats: Stats) -> Float[Array, " constraint"]:
        """Return an empty array, because the kernel adapts its step size and mass matrix itself."""
        del stats
        return jnp.zeros((0,))


def step(
    kernel: HMC, coordinates: Coordinates, state: HamiltonianState, *, jitter: Number = 0.0, key: PRNGKeyArray
) -> tuple[HamiltonianState, Stats]:
    """Make one transition with a step size that is multiplied by a random factor.

    The factor is uniform in 1 +- jitter and independent of the state, so that the target stays invariant. The adapted
    step size and the reported step size do not include the factor.
    """
    # `kernel.init` sets variables that `kernel.sample` uses. To set them, it is enough to trace `kernel.init`.
    jax.eval_shape(lambda k, z: kernel.init(k, state.num_warmup, z, (), {}), key, state.inner.z)
    adapted = state.inner.adapt_state
    key, key_jitter = jax.random.split(key)
    factor = 1 + jitter * jax.random.uniform(key_jitter, (), adapted.step_size.dtype, -1.0, 1.0)
    old = state.inner._replace(rng_key=key, adapt_state=adapted._replace(step_size=adapted.step_size * factor))
    new = _without_weak_types(kernel.sample(old, (), {}))
    adapting = state.inner.i < state.num_warmup
    step_size = jnp.where(adapting, new.adapt_state.step_size, adapted.step_size)
    new = new._replace(adapt_state=new.adapt_state._replace(step_size=step_size))
    theta, log_jacobian = coordinates.to_theta(new.z)
    stats = {
        "lp": -new.potential_energy - log_jacobian,
        "acceptance_rate": new.accept_prob,
        "diverging": new.diverging,
        "step_size": new.adapt_state.step_size,
        "n_steps": new.num_steps,
        "energy": new.energy,
    }
    # The key in the state is never used. It stays unchanged, so that the state does not depend on earlier keys.
    inner = new._replace(rng_key=state.inner.rng_key)
    # A rejected step must not change the position, not even by rounding.
    position = jnp.where(jnp.all(new.z == state.inner.z), state.position, theta)
    return HamiltonianState(position, inner, state.num_warmup), stats


def potential(coordinates: Coordinates) -> Callable[[Float[Array, " dim"]], Float[Array, ""]]:
    """Return minus the log density of u. One pass over the data gives the value and the gradient."""
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


def _without_weak_types(state: Any) -> Any:
    """Return the state without JAX's weak types. In a JAX loop the types of the state must not change."""

    def convert(leaf: Any) -> Array:
        leaf = jnp.asarray(leaf)
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return leaf if is_key else jax.lax.convert_element_type(leaf, leaf.dtype)

    return jax.tree.map(convert, state)
