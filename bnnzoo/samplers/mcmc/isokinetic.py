"""The isokinetic integrator of microcanonical samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers.mcmc.low_rank import LowRankMetric

_B = 0.1931833275037836
"""Coefficient of McLachlan 1995. It gives the smallest error among the splittings B A B A B.

B turns the direction, and A moves the position.
"""
GRADIENTS = 2
"""Number of gradients of a step."""
Density = Callable[[Float[Array, " dim"]], tuple[Float[Array, ""], Float[Array, " num_data"], Float[Array, " dim"]]]
"""A function that returns the log prior, each datum's log-likelihood, and the gradient of the log density."""


class Point(NamedTuple):
    """Position and direction of a trajectory, with the log density and gradient at the position."""

    position: Float[Array, " dim"]
    direction: Float[Array, " dim"]
    log_prior: Float[Array, ""]
    log_likelihoods: Float[Array, " num_data"]
    gradient: Float[Array, " dim"]


def integrate(
    density: Density, point: Point, *, step_size: Float[Array, ""], metric: LowRankMetric, num_steps: int = 1
) -> tuple[Point, Float[Array, ""]]:
    """Make steps of the splitting B A B A B. Return the end point and the gain of kinetic energy.

    Robnik, De Luca, Silverstein and Seljak 2023, arXiv 2212.08549, equation 13. The trajectory moves in coordinates z
    with position = A z, where A is the map of the metric. The direction of the point and the step size refer to z.

    The last turn of a step and the first turn of the next step have the same gradient. The code therefore makes one
    turn of twice the duration.
    """

    def turned(point: Point, duration: Float[Array, ""]) -> tuple[Point, Float[Array, ""]]:
        direction, gain = turn(point.direction, metric.project(point.gradient), duration)
        return point._replace(direction=direction), gain

    def half_step(state: tuple[Point, Float[Array, ""]], duration: Float[Array, ""]) -> tuple[Point, Float[Array, ""]]:
        point, kinetic = state
        position = point.position + step_size / 2 * metric.correlate(point.direction)
        point, gain = turned(Point(position, point.direction, *density(position)), duration)
        return point, kinetic + gain

    def step(i: Any, state: tuple[Point, Float[Array, ""]]) -> tuple[Point, Float[Array, ""]]:
        state = half_step(state, (1 - 2 * _B) * step_size)
        return half_step(state, jnp.where(i == num_steps - 1, _B, 2 * _B) * step_size)

    state = turned(point, _B * step_size)
    return step(0, state) if num_steps == 1 else jax.lax.fori_loop(0, num_steps, step, state)


def check_dim(posterior: AbstractPosterior) -> None:
    """Refuse a posterior with a single parameter, because a direction cannot turn in one dimension.

    Raises:
        UsageError: if there are fewer than two parameters.
    """
    if (dim := posterior.layout.dim) < 2:
        raise UsageError(f"microcanonical samplers need at least 2 parameters (got {dim}); use the sampler nuts")


def normalise(vector: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """Return the unit vector in the direction of `vector`."""
    return vector / jnp.linalg.norm(vector)


def turn(
    u: Float[Array, " dim"], gradient: Float[Array, " dim"], time: Float[Array, ""]
) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
    """Return the direction after `time` under a constant gradient, and the gain of kinetic energy.

    Let g be the gradient, e = g / |g|, d = time |g| / (dim - 1) and z = exp(-d). The new direction is the normalised
    vector u + (sinh d + u'e (cosh d - 1)) e. The code normalises 2 z u + (1-z) (1+z + u'e (1-z)) e instead. This vector
    has the same direction and cannot overflow.

    Args:
        u: the direction before the turn, a unit vector.
        gradient: gradient of the log density.
        time: duration.
    """
    num_other_axes = u.shape[0] - 1
    size = jnp.maximum(jnp.linalg.norm(gradient), jnp.finfo(u.dtype).tiny)
    e = gradient / size
    d = time * size / num_other_axes
    z, along = jnp.exp(-d), u @ e
    gain = num_other_axes * (d + jnp.log((1 + along + (1 - along) * z**2) / 2))
    return normalise(2 * z * u + (1 - z) * (1 + z + along * (1 - z)) * e), gain
