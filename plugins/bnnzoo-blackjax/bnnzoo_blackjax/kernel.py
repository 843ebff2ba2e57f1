"""BlackJAX's kernels as samplers of bnnzoo."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers import AbstractSampler, Statistic, Stats, replace
from bnnzoo.samplers.mcmc.metric import Metric, share_metric, update_metric
from bnnzoo.samplers.statistics import (
    ACCEPTANCE_RATE,
    ACCEPTED,
    DIVERGING,
    ENERGY,
    LOG_DENSITY,
    N_STEPS,
    STEP_SIZE,
    TREE_DEPTH,
)
from bnnzoo_blackjax.carry import with_types_of, without_weak_types

if TYPE_CHECKING:
    from blackjax.base import SamplingAlgorithm

_REPORTED = {
    "acceptance_rate": ACCEPTANCE_RATE,
    "is_accepted": ACCEPTED,
    "is_divergent": DIVERGING,
    "energy": ENERGY,
    "num_integration_steps": N_STEPS,
    "num_trajectory_expansions": TREE_DEPTH,
}
"""Statistics, with the names of fields of BlackJAX's `info` as keys.

A step of a kernel returns an `info`. The kernel reports only the statistics whose fields the `info` contains.
"""


class KernelState(eqx.Module):
    """BlackJAX's state of a kernel (`inner`), with the step size and the metric that warm-up adapts."""

    inner: Any
    step_size: Float[Array, ""]
    metric: Metric

    @property
    def position(self) -> Float[Array, "*chains dim"]:
        """Position theta, with a leading chain axis if the state is that of all chains."""
        return self.inner.position


class AbstractKernel(AbstractSampler[KernelState]):
    """A BlackJAX kernel as a sampler. A subclass only implements `algorithm`.

    Warm-up adapts the step size to `target_acceptance`, if the subclass has that field. Warm-up also adapts a
    diagonal inverse mass matrix: the variance of each parameter in a window of warm-up, averaged over the chains.
    """

    chain_state: ClassVar[tuple[str, ...]] = ("inner",)
    statistics: ClassVar[tuple[Statistic, ...]] = (*_REPORTED.values(), LOG_DENSITY, STEP_SIZE)

    step_size: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def algorithm(
        self, log_density: Callable, step_size: Float[Array, ""], inverse_mass: Float[Array, " dim"]
    ) -> SamplingAlgorithm:
        """Return BlackJAX's algorithm, such as `blackjax.nuts(log_density, step_size, inverse_mass)`.

        `inverse_mass` contains the variances of the parameters. The steps must be proportional to sqrt(inverse_mass).
        """

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> KernelState:
        """Return the initial state of a chain at the position `theta`."""
        del num_warmup
        metric = Metric.identity(theta)
        step_size = jnp.asarray(self.step_size, theta.dtype)
        inner = self.algorithm(posterior.log_density, step_size, metric.inverse_mass).init(theta, key)
        return KernelState(without_weak_types(inner), step_size, metric)

    def step(self, posterior: AbstractPosterior, state: KernelState, *, key: PRNGKeyArray) -> tuple[KernelState, Stats]:
        """Make one step of the kernel; reject proposals whose log density or acceptance is not finite."""
        algorithm = self.algorithm(posterior.log_density, state.step_size, state.metric.inverse_mass)
        inner, info = algorithm.step(key, state.inner)
        stats = {"lp": jnp.asarray(inner.logdensity), "step_size": state.step_size}
        stats |= {
            statistic.name: jnp.asarray(getattr(info, name))
            for name, statistic in _REPORTED.items()
            if hasattr(info, name)
        }
        # The acceptance rate is NaN for a ratio of infinities. Reject such a proposal, even if the kernel accepted it.
        is_invalid = ~jnp.isfinite(inner.logdensity)
        if "acceptance_rate" in stats:
            is_invalid |= jnp.isnan(stats["acceptance_rate"])
            stats["acceptance_rate"] = jnp.where(is_invalid, 0.0, stats["acceptance_rate"])
        stats["diverging"] = stats.get("diverging", False) | is_invalid
        stats["lp"] = jnp.where(is_invalid, state.inner.logdensity, inner.logdensity)
        if "accepted" in stats:
            stats["accepted"] = stats["accepted"] & ~is_invalid
        inner = with_types_of(inner, state.inner)
        return replace(
            state, inner=jax.tree.map(lambda new, old: jnp.where(is_invalid, old, new), inner, state.inner)
        ), stats

    def warmup_step(
        self, posterior: AbstractPosterior, state: KernelState, *, key: PRNGKeyArray
    ) -> tuple[KernelState, Stats]:
        """Make one step, and add the new position to the moments from which the metric is estimated."""
        state, stats = self.step(posterior, state, key=key)
        return replace(state, metric=state.metric.with_position(state.position)), stats

    def settle(
        self, posterior: AbstractPosterior, state: KernelState, *, final: bool, key: PRNGKeyArray
    ) -> KernelState:
        """Update the metric, and rescale the step size to the units of the new metric. If `final`, change nothing."""
        del posterior, key
        return state if final else update_metric(state)

    def tune(
        self, posterior: AbstractPosterior, states: KernelState, *, final: bool, key: PRNGKeyArray, num_steps: int
    ) -> tuple[AbstractSampler, KernelState]:
        """Give all chains the mean inverse mass and the median step size of the chains."""
        del posterior, final, key, num_steps
        return self, share_metric(states)
