"""A diagonal inverse mass matrix, learned from the positions of warm-up windows."""

from __future__ import annotations

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

S = TypeVar("S")

_MIN_COUNT = 50
"""Smallest number of positions from which variances are computed.

If a warm-up window has fewer positions, they are combined with the positions of the next window.
"""
_PRIOR_COUNT = 5.0
_PRIOR_VARIANCE = 1e-3


class Metric(eqx.Module):
    """The inverse mass matrix in use, and the running moments of the positions since its last update (Welford 1962)."""

    inverse_mass: Float[Array, " dim"]
    count: Float[Array, ""]
    mean: Float[Array, " dim"]
    squares: Float[Array, " dim"]
    """Sum of squared deviations from the running mean."""

    @classmethod
    def identity(cls, theta: Float[Array, " dim"]) -> Metric:
        """Return the metric with unit inverse mass and empty moments."""
        zeros = jnp.zeros_like(theta)
        return cls(jnp.ones_like(theta), jnp.zeros((), theta.dtype), zeros, zeros)

    def with_position(self, theta: Float[Array, " dim"]) -> Metric:
        """Return the metric with one more position in its moments."""
        count = self.count + 1
        change = theta - self.mean
        mean = self.mean + change / count
        return Metric(self.inverse_mass, count, mean, self.squares + change * (theta - mean))

    def updated(self) -> Metric:
        """Return a metric with empty moments, and with the variances of the positions as inverse mass.

        The variances are shrunk towards 1e-3, as in Stan. If there are fewer than `_MIN_COUNT` positions, or if a
        variance is not finite, the metric is returned unchanged.
        """
        weight = self.count / (self.count + _PRIOR_COUNT)
        variance = weight * self.squares / jnp.maximum(self.count, 1.0) + (1 - weight) * _PRIOR_VARIANCE
        usable = jnp.all(jnp.isfinite(variance)) & (self.count >= _MIN_COUNT)
        new = eqx.tree_at(lambda m: m.inverse_mass, Metric.identity(self.mean), variance)
        return jax.tree.map(lambda a, b: jnp.where(usable, a, b), new, self)


def rescale_step_size(
    step_size: Float[Array, "*chain"], old: Float[Array, "*chain dim"], new: Float[Array, "*chain dim"]
) -> Float[Array, "*chain"]:
    """Rescale the step size for a new metric. On average, a step then moves as far as with the old metric.

    In some coordinates a step becomes longer, in others shorter. The geometric mean of the factors is 1. `old` and
    `new` are the inverse masses of the two metrics.
    """
    return step_size * jnp.exp(jnp.mean(jnp.log(old) - jnp.log(new), -1) / 2)


def update_metric(state: S) -> S:
    """Return a chain's state with an updated metric, and with the step size in units of this metric.

    The state must have the attributes `metric` and `step_size`.
    """
    typed_state: Any = state
    metric = typed_state.metric.updated()
    step_size = rescale_step_size(typed_state.step_size, typed_state.metric.inverse_mass, metric.inverse_mass)
    return eqx.tree_at(lambda s: (s.metric, s.step_size), state, (metric, step_size))


def share_metric(states: S) -> S:
    """Return the states with an inverse mass and a step size that are the same for all chains.

    The inverse mass is the mean of the variances that each chain computed from its own positions. Chains in different
    modes therefore do not enlarge the inverse mass. The step size is the median over the chains. The states must have
    the attributes `metric` and `step_size`.
    """
    typed_states: Any = states
    old_inverse_mass = typed_states.metric.inverse_mass
    new_inverse_mass = jnp.broadcast_to(jnp.mean(old_inverse_mass, 0), old_inverse_mass.shape)
    steps = rescale_step_size(typed_states.step_size, old_inverse_mass, new_inverse_mass)
    shared = eqx.tree_at(lambda s: s.metric.inverse_mass, states, new_inverse_mass)
    return share_step_size(shared, steps)


def share_step_size(states: S, step_sizes: Float[Array, " chain"]) -> S:
    """Return the states of all chains, in which each step size is the median of `step_sizes`."""
    typed_states: Any = states
    median = jnp.full_like(typed_states.step_size, jnp.median(step_sizes))
    return eqx.tree_at(lambda s: s.step_size, states, median)
