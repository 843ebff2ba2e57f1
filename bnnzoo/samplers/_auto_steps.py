"""Step size, batch size and control variate of a sampler on mini-batch gradients, chosen by the problem.

A short pilot run measures the curvature and the noise of the gradient. Of the batch sizes and control variates that are open the
ones are taken at which a step goes farthest for its cost, and the step size is the largest that is predicted to widen the
posterior's stiffest direction by no more than `TARGET`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers._control_variate import ORDER
from bnnzoo.samplers._gradient_noise import STARTS, gradient_noise, greatest_curvature

TARGET = 1.08
"""Predicted variance of the stiffest direction over the posterior's; that of an average direction is nearer to 1."""
_PILOT_RATIO, _PILOT_LENGTH = 1.5, 0.2
"""The pilot moves faster: it has little time to get as far from its anchor as the run will be."""
_PILOT_STEPS = 200
_PILOT_ROWS = 256
_MOST_ROWS = 8192
_ROW_OVERHEAD = 256
"""Rows that a step costs beside those of its batch."""
_LENGTHS = np.logspace(-9, 0, 181)
"""Step sizes that are tried, in units of the stiffest direction's variance."""


class Measured(NamedTuple):
    """Curvature and noise of mini-batch gradients, in units of the sampler's metric."""

    stiffest: Float[Array, ""]
    """The largest curvature of a mini-batch's log density."""
    curvature: Float[Array, ""]
    noise: Float[Array, ""]
    """Means over theta's coordinates of the curvature and of the variance of the gradient."""


def choose_fields(sampler: Any, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> dict[str, Any]:
    """Choose the fields of `sampler` that are `auto`.

    Returns:
        Their values; nothing where the problem has no curvature that a step size could be measured by.
    """
    best: tuple[float, dict[str, Any]] = (0.0, {})
    for order in _orders(sampler):
        rows = sampler.batch_size if sampler.batch_size != "auto" else min(_PILOT_ROWS, posterior.num_data)
        trial = dataclasses.replace(sampler, batch_size=rows, control_variate=order)
        measured = jax.tree.map(np.asarray, _pilot(trial, posterior, thetas[:STARTS], jax.random.key(0)))
        stiffest = float(np.max(measured.stiffest))
        curvature, noise = float(np.mean(measured.curvature)), float(np.mean(measured.noise))
        if not (math.isfinite(stiffest + curvature + noise) and stiffest > 0 and curvature > 0):
            continue
        for size in _sizes(sampler, posterior.num_data, rows):
            relative = noise / curvature * _noise_of(sampler, size, posterior.num_data)
            relative /= max(_noise_of(sampler, rows, posterior.num_data), 1e-12)
            length = longest(dataclasses.replace(trial, batch_size=size), relative, posterior.num_data, TARGET)
            worth = length / (size * (1 + ORDER[order]) + _ROW_OVERHEAD)
            if worth > best[0]:
                step_size = _rounded_down(length / stiffest)
                fields = {"step_size": step_size, "batch_size": size, "control_variate": order}
                best = (worth, {name: v for name, v in fields.items() if getattr(sampler, name) == "auto"})
    return best[1]


def longest(sampler: Any, relative_noise: float, num_data: int, target: float) -> float:
    """The largest eta a at which the stationary variance is at most `target` times the posterior's; 0 if none is.

    Args:
        relative_noise: V / a, the variance of the gradient over the curvature.
    """
    lengths = jnp.asarray(_LENGTHS)

    @jax.vmap
    def ratios(length: Float[Array, ""]) -> Float[Array, ""]:
        return sampler.variance_ratio(length, length * relative_noise, num_data=num_data)

    within = np.asarray(ratios(lengths)) <= target
    return float(_LENGTHS[within].max(initial=0.0))


def _orders(sampler: Any) -> list[str]:
    return ["none", "first"] if sampler.control_variate == "auto" else [sampler.control_variate]


def _sizes(sampler: Any, num_data: int, least: int) -> Iterator[int]:
    size = least
    while True:
        yield size
        size = min(2 * size, num_data)
        if sampler.batch_size != "auto" or size > _MOST_ROWS or size <= least or size == num_data:
            break
    if sampler.batch_size == "auto" and least < num_data <= _MOST_ROWS:
        yield num_data


def _noise_of(sampler: Any, size: int, num_data: int) -> float:
    """The noise of the mean of a batch, up to a factor."""
    return 1 / size - (0.0 if sampler.sampling == "replacement" else 1 / num_data)


@eqx.filter_jit
def _pilot(
    sampler: Any, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], key: PRNGKeyArray
) -> Measured:
    """Curvature and noise where short runs from `thetas` end, each with its anchor where it began."""

    def gradient(theta: Float[Array, " dim"], anchor: Any, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return sampler.gradient(posterior, theta, anchor, sampler.batch(posterior, key=key))[1]

    def measure(state: Any, key: PRNGKeyArray) -> Measured:
        key_noise, key_curvature = jax.random.split(key)
        metric = sampler.metric(state)
        noise = gradient_noise(lambda t, k: gradient(t, state.anchor, k), state.position, metric, key=key_noise)
        steepest = greatest_curvature(lambda t, k: gradient(t, None, k), state.position, metric, key=key_curvature)
        return Measured(steepest, jnp.mean(noise.curvature), jnp.mean(noise.variance))

    def run(theta_and_key: tuple[Array, Array]) -> Measured:
        theta, key = theta_and_key
        key_init, key_before, key_after, key_steps = jax.random.split(key, 4)
        state = sampler.init(posterior, theta, num_warmup=_PILOT_STEPS, key=key_init)
        before = measure(state, key_before)
        # Of a Langevin step; momentum makes more of the noise.
        noise = before.noise / jnp.maximum(before.curvature, 1e-30)
        length = 2 * (_PILOT_RATIO - 1) / (_PILOT_RATIO + noise)
        eta = jnp.minimum(length, _PILOT_LENGTH) / before.stiffest
        moving = dataclasses.replace(sampler, step_size=jnp.where(jnp.isfinite(eta), eta, 0.0))

        def step(number: Array, state: Any) -> Any:
            return moving.warmup_step(posterior, state, key=jax.random.fold_in(key_steps, number))[0]

        after = measure(jax.lax.fori_loop(0, _PILOT_STEPS, step, state), key_after)
        return after._replace(stiffest=jnp.maximum(before.stiffest, after.stiffest))

    return jax.lax.map(run, (thetas, jax.random.split(key, len(thetas))))


def _rounded_down(value: float) -> float:
    """Two digits: what machines round differently is the same then."""
    power = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / power) * power:.2g}")
