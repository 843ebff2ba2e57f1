"""Ascent to a mode of the posterior from a position near it, using all data."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bnnzoo.posterior import AbstractPosterior

_STEPS = 10
_MIN_STEP_FRACTION = 2.0**-10
"""Smallest fraction of the full step. A step is halved until the density increases enough. If a halved step is this
short, the ascent ends."""
_TOLERANCE = 1e-4
"""The ascent ends if the squared distance to the mode, per parameter and in standard deviations, is below this value.
"""


@runtime_checkable
class Factor(Protocol):
    """The factor F of a Gaussian N(0, F F')."""

    def correlate(self, eps: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F eps."""
        ...

    def project(self, gradient: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F' g for a gradient g."""
        ...


class _Climb(NamedTuple):
    theta: Float[Array, " dim"]
    slope: Float[Array, " dim"]
    direction: Float[Array, " dim"]
    steps: Int[Array, ""]
    moved: Bool[Array, ""]


def slope(posterior: AbstractPosterior, theta: Float[Array, " dim"], factor: Factor) -> Float[Array, " dim"]:
    """Return F' grad log p(theta).

    For a Gaussian with F F' = (-Hessian)^-1, the length of this vector is the distance to the mode in standard
    deviations.
    """
    return factor.project(jax.grad(posterior.log_density)(theta))


def climb_to_mode(posterior: AbstractPosterior, theta: Float[Array, " dim"], factor: Factor) -> Float[Array, " dim"]:
    """Return the mode that an ascent from theta reaches. If ten steps do not reach a mode, return the final position.

    The method is conjugate gradients (Polak and Ribiere 1969) in the coordinates z of theta = F z. If F F' is the
    inverse of minus the Hessian, the first step is a Newton step. Each step first goes to the maximum of a parabola.
    The parabola has the slope and the curvature of the log density along the direction of the step. If the density does
    not increase enough, the step is halved. The increase is computed as a sum over the data of differences of
    log-likelihoods. The difference of two float32 sums over many data would be dominated by rounding errors.
    """

    def ascend(state: _Climb) -> _Climb:
        step = factor.correlate(state.direction)
        log_likelihoods = posterior.log_likelihoods(state.theta)

        def rise(step_length: Float[Array, ""]) -> Float[Array, ""]:
            new_theta = state.theta + step_length * step
            change = jnp.sum(posterior.log_likelihoods(new_theta) - log_likelihoods)
            return (
                posterior.log_prior(new_theta) - posterior.log_prior(state.theta) + posterior.likelihood_power * change
            )

        directional_curvature = -step @ jax.jvp(jax.grad(posterior.log_density), (state.theta,), (step,))[1]
        directional_slope = state.slope @ state.direction
        best = jnp.where(directional_curvature > 0, directional_slope / directional_curvature, 1.0)
        # Require a quarter of the increase that the slope alone predicts. At the maximum of a parabola the increase is
        # half of this prediction.
        step_length = jax.lax.while_loop(
            lambda s: (s > _MIN_STEP_FRACTION * best) & ~(rise(s) >= s * directional_slope / 4), lambda s: s / 2, best
        )
        has_moved = step_length > _MIN_STEP_FRACTION * best
        theta = jnp.where(has_moved, state.theta + step_length * step, state.theta)
        new_slope = slope(posterior, theta, factor)
        beta = jnp.maximum(new_slope @ (new_slope - state.slope) / (state.slope @ state.slope), 0.0)
        direction = new_slope + beta * state.direction
        direction = jnp.where(direction @ new_slope > 0, direction, new_slope)
        return _Climb(theta, new_slope, direction, state.steps + 1, has_moved)

    def is_climbing(state: _Climb) -> Bool[Array, ""]:
        return (state.steps < _STEPS) & state.moved & (state.slope @ state.slope > _TOLERANCE * len(theta))

    start_slope = slope(posterior, theta, factor)
    start = _Climb(theta, start_slope, start_slope, jnp.zeros((), jnp.int32), jnp.ones((), bool))
    return jax.lax.while_loop(is_climbing, ascend, start).theta
