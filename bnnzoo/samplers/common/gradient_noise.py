"""Noise and curvature of mini-batch gradients, which determine the bias of samplers without an accept step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

_PAIRS = 64
"""Number of pairs of mini-batches. The variance that they estimate has a relative error of 18 %."""
_STABLE = 0.5
STARTS = 4
"""Number of chains for which the curvature is computed. For a large network, one chain costs hundreds of steps."""
_BATCHES, _ITERATIONS = 4, 10
"""Numbers of mini-batches and of power iterations in `greatest_curvature`. The remaining error is smaller than the
safety factors with which step sizes are computed from the curvature."""


class GradientNoise(NamedTuple):
    """Curvature and gradient noise, one estimate for each pair of mini-batches.

    Curvature and variance are means over the coordinates of theta, in units of the metric G. A step with the step size
    eta moves theta by eta G times the gradient.
    """

    curvature: Float[Array, " pair"]
    """tr(G A) / dim, where A is minus the Hessian of the log posterior."""
    variance: Float[Array, " pair"]
    """tr(G V) / dim, where V is the covariance of a mini-batch's gradient."""


def gradient_noise(
    gradient: Callable[[Float[Array, " dim"], PRNGKeyArray], Float[Array, " dim"]],
    theta: Float[Array, " dim"],
    metric: Float[Array, " dim"] | Float[Array, ""],
    *,
    key: PRNGKeyArray,
) -> GradientNoise:
    """Estimate curvature and noise from gradients of new mini-batches at `theta`.

    The trace of the curvature is estimated with random vectors of signs (Hutchinson 1990).

    Args:
        gradient: function of a point and a key. It estimates the gradient of the log posterior at the point, on the
            mini-batch that the key selects.
        theta: the point.
        metric: G, the diagonal of a matrix, or a number.
        key: random key.
    """
    root = jnp.sqrt(metric)

    def measure_pair(key: PRNGKeyArray) -> GradientNoise:
        key_one, key_other, key_signs = jax.random.split(key, 3)
        probe = root * jax.random.rademacher(key_signs, theta.shape, theta.dtype)
        first_gradient, curvature_product = jax.jvp(lambda t: gradient(t, key_one), (theta,), (probe,))
        second_gradient = gradient(theta, key_other)
        return GradientNoise(
            -jnp.mean(probe * curvature_product), jnp.mean((root * (first_gradient - second_gradient)) ** 2) / 2
        )

    return jax.lax.map(measure_pair, jax.random.split(key, _PAIRS))


def worst_directions(
    gradient: Callable[[Float[Array, " dim"], PRNGKeyArray], Float[Array, " dim"]],
    theta: Float[Array, " dim"],
    metric: Float[Array, " dim"] | Float[Array, ""],
    *,
    key: PRNGKeyArray,
) -> GradientNoise:
    """Estimate curvature and noise in two directions: that of the largest curvature, and that of the largest noise.

    The results have the shape [direction, pair]. Power iteration computes the directions: eigenvectors of G A and of
    G V with the largest eigenvalue (see `GradientNoise`). Curvature and noise are then estimated from new mini-batches.
    With the same mini-batches the estimates would be too large.
    """
    root = jnp.sqrt(metric)
    key_start, key_stiff, key_noisy, key_pairs = jax.random.split(key, 4)
    start = jax.random.normal(key_start, theta.shape, theta.dtype)

    def unit(direction: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return direction / jnp.maximum(jnp.linalg.norm(direction), jnp.finfo(direction.dtype).tiny)

    def curvature_product(direction: Float[Array, " dim"], key: PRNGKeyArray) -> Float[Array, " dim"]:
        return root * jax.jvp(lambda t: gradient(t, key), (theta,), (root * direction,))[1]

    def difference(key: PRNGKeyArray) -> Float[Array, " dim"]:
        first_gradient, second_gradient = (gradient(theta, k) for k in jax.random.split(key))
        return root * (first_gradient - second_gradient)

    def noise_product(direction: Float[Array, " dim"], key: PRNGKeyArray) -> Float[Array, " dim"]:
        def add(total: Float[Array, " dim"], key: PRNGKeyArray) -> tuple[Float[Array, " dim"], None]:
            change = difference(key)
            return total + change * jnp.dot(change, direction), None

        return jax.lax.scan(add, jnp.zeros_like(direction), jax.random.split(key, _PAIRS // 4))[0]

    def power_iteration(
        change: Callable[..., Float[Array, " dim"]], iterations: int, key: PRNGKeyArray
    ) -> Float[Array, " dim"]:
        keys = jax.random.split(key, iterations)
        return jax.lax.scan(lambda direction, k: (unit(change(direction, k)), None), unit(start), keys)[0]

    directions = jnp.stack(
        [
            power_iteration(curvature_product, 2 * _ITERATIONS, key_stiff),
            power_iteration(noise_product, _BATCHES, key_noisy),
        ]
    )

    def measure_pair(key: PRNGKeyArray) -> GradientNoise:
        key_bend, key_change = jax.random.split(key)  # one mini-batch gives the curvature in both directions
        jacobian_product = jax.linearize(lambda t: gradient(t, key_bend), theta)[1]
        curvature_products = root * jax.vmap(jacobian_product)(root * directions)
        change = directions @ difference(key_change)
        return GradientNoise(-jnp.sum(directions * curvature_products, 1), change**2 / 2)

    return jax.tree.map(jnp.transpose, jax.lax.map(measure_pair, jax.random.split(key_pairs, _PAIRS)))


def greatest_curvature(
    gradient: Callable[[Float[Array, " dim"], PRNGKeyArray], Float[Array, " dim"]],
    theta: Float[Array, " dim"],
    metric: Float[Array, " dim"] | Float[Array, ""],
    *,
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """Return the largest absolute eigenvalue of G A (see `GradientNoise`), the maximum over a few mini-batches.

    Power iteration approaches the eigenvalue from below. A is computed from mini-batches, because a step uses a
    mini-batch, whose largest curvature can exceed the largest curvature of all data.
    """
    root = jnp.sqrt(metric)

    def batch_curvature(key: PRNGKeyArray) -> Float[Array, ""]:
        key_batch, key_start = jax.random.split(key)

        def iterate(_: Any, direction: Float[Array, " dim"]) -> Float[Array, " dim"]:
            step = root * direction / jnp.linalg.norm(direction)
            return root * jax.jvp(lambda t: gradient(t, key_batch), (theta,), (step,))[1]

        return jnp.linalg.norm(jax.lax.fori_loop(0, _ITERATIONS, iterate, jax.random.normal(key_start, theta.shape)))

    return jnp.max(jax.lax.map(batch_curvature, jax.random.split(key, _BATCHES)))


def stable_power_of_ten(steepest: Float[np.ndarray, " start"]) -> float:
    """Return the largest power of ten whose product with each of the curvatures `steepest` is at most 1/2.

    A step size is unstable if its product with a curvature is 2 or more. Curvatures that are 0 or not finite are
    ignored. If none is left, the result is infinite.
    """
    with np.errstate(divide="ignore"):
        power = np.floor(np.log10(_STABLE / np.asarray(steepest, float)))
    return float(10.0 ** np.min(power, initial=np.inf, where=np.isfinite(power)))


def jackknife(
    function: Callable[[Float[Array, ""], Float[Array, ""]], Float[Array, ""]], noise: GradientNoise
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return `function` at the mean curvature and the mean variance, and the jackknife standard error of this value.

    The jackknife leaves out one pair of mini-batches at a time.
    """
    leave_one_out_means = [(jnp.sum(values) - values) / (_PAIRS - 1) for values in noise]
    leave_one_out_values = jax.vmap(function)(*leave_one_out_means)
    error = jnp.sqrt((_PAIRS - 1) * jnp.mean((leave_one_out_values - jnp.mean(leave_one_out_values)) ** 2))
    return function(*(jnp.mean(values) for values in noise)), error
