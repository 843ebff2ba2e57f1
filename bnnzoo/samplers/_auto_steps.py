"""Step size, batch size and control variate of a sampler on mini-batch gradients, chosen by the problem.

A short pilot run measures the curvature and the noise of the gradient. Of the batch sizes and control variates that
are open, the ones are taken at which a step goes farthest for its cost. The step size is the largest that is predicted
to widen the posterior's stiffest direction by no more than `TARGET`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

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
_PILOT_STEPS, _STAGES = 100, 6
_PILOT_ROWS = 256
_MOST_ROWS = 8192
_ROW_OVERHEAD = 256
"""Rows that a step costs beside those of its batch."""
_QUICKLY_COMPILED = {"xla_backend_optimization_level": 0}
_LENGTHS = np.logspace(-9, 0, 181)
"""Step sizes that are tried, in units of the stiffest direction's variance."""


class Measured(NamedTuple):
    """Curvature and noise of mini-batch gradients, in units of the sampler's metric."""

    stiffest: Float[Array, ""]
    """The largest curvature of a mini-batch's log density."""
    curvature: Float[Array, ""]
    noise: Float[Array, ""]
    plain_noise: Float[Array, ""]
    """Means over theta's coordinates of the curvature and of the variance of the gradient, with the sampler's control
    variate and without one."""


def choose_fields(sampler: Any, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> dict[str, Any]:
    """Choose the fields of `sampler` that are `auto`.

    Returns:
        Their values; nothing where the problem has no curvature that a step size could be measured by.
    """
    free = sampler.control_variate == "auto"
    order = "first" if free else sampler.control_variate
    rows = sampler.batch_size if sampler.batch_size != "auto" else min(_PILOT_ROWS, posterior.num_data)
    trial = dataclasses.replace(sampler, batch_size=rows, control_variate=order)
    measured = jax.tree.map(np.asarray, _pilot(trial, posterior, thetas[:STARTS], jax.random.key(0)))
    stiffest = float(np.max(measured.stiffest))
    curvature, noise, plain = (float(np.mean(each)) for each in measured[1:])
    if not (math.isfinite(stiffest + curvature + noise + plain) and stiffest > 0 and curvature > 0):
        return {}
    best_worth, fields, relative = 0.0, dict[str, Any](), math.inf
    noises = {"none": plain, "first": noise} if free else {order: noise}
    for candidate, variance in noises.items():
        for size in _sizes(sampler, posterior.num_data, rows):
            fewer = _noise_of(sampler, size, posterior.num_data) / max(
                _noise_of(sampler, rows, posterior.num_data), 1e-12
            )
            ratio = variance / curvature * fewer
            # As far as a Langevin step goes for what it costs; momentum changes this alike for every batch.
            worth = 1 / (TARGET + ratio) / (size * (1 + ORDER[candidate]) + _ROW_OVERHEAD)
            if worth > best_worth:
                best_worth, fields, relative = worth, {"batch_size": size, "control_variate": candidate}, ratio
    length = longest(dataclasses.replace(sampler, **fields), relative, posterior.num_data, TARGET)
    if not length > 0:
        return {}
    open_fields = {name: value for name, value in fields.items() if getattr(sampler, name) == "auto"}
    return {"step_size": _rounded_down(length / stiffest), **open_fields}


def longest(sampler: Any, relative_noise: float, num_data: int, target: float) -> float:
    """The largest eta a at which the stationary variance is at most `target` times the posterior's; 0 if none is.

    Args:
        relative_noise: V / a, the variance of the gradient over the curvature.
    """
    within = np.asarray(_ratios(sampler, jnp.asarray(relative_noise), num_data)) <= target
    return float(_LENGTHS[within].max(initial=0.0))


@eqx.filter_jit
def _ratios(sampler: Any, relative_noise: Float[Array, ""], num_data: int) -> Float[Array, " length"]:
    return jax.vmap(lambda length: sampler.variance_ratio(length, length * relative_noise, num_data=num_data))(
        jnp.asarray(_LENGTHS)
    )


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


# Compiled quickly rather than well: it runs once. Types do not say that Equinox hands options on to JAX's jit.
@functools.partial(cast(Any, eqx.filter_jit), compiler_options=_QUICKLY_COMPILED)
def _pilot(
    sampler: Any, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], key: PRNGKeyArray
) -> Measured:
    """Curvature and noise where short runs from `thetas` end, each with its anchor where it began."""

    def gradient(theta: Float[Array, " dim"], anchor: Any, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return sampler.gradient(posterior, theta, anchor, sampler.batch(posterior, key=key))[1]

    def measure(state: Any, key: PRNGKeyArray) -> Measured:
        key_noise, key_curvature = jax.random.split(key)
        metric = sampler.metric(state)
        noise, plain = (
            gradient_noise(lambda t, k, at=at: gradient(t, at, k), state.position, metric, key=key_noise)
            for at in (state.anchor, None)
        )
        steepest = greatest_curvature(lambda t, k: gradient(t, None, k), state.position, metric, key=key_curvature)
        return Measured(steepest, *(jnp.mean(v) for v in (*noise, plain.variance)))

    def run(theta_and_key: tuple[Array, Array]) -> Measured:
        theta, key = theta_and_key
        key_init, key_stages = jax.random.split(key)
        state = sampler.init(posterior, theta, num_warmup=_PILOT_STEPS * _STAGES, key=key_init)
        starts = jnp.zeros((), state.position.dtype)

        def stage(carry: tuple[Any, Array], steps_and_key: tuple[Array, Array]) -> tuple[tuple[Any, Array], Measured]:
            (state, eta), (steps, key) = carry, steps_and_key
            key_settle, key_steps, key_measure = jax.random.split(key, 3)
            moving = dataclasses.replace(sampler, step_size=eta)

            def step(number: Array, state: Any) -> Any:
                return moving.warmup_step(posterior, state, key=jax.random.fold_in(key_steps, number))[0]

            # Training leaves a chain several standard deviations from the mode, and an anchor there would be noisy.
            state = sampler.settle(posterior, state, final=False, key=key_settle)
            state = jax.lax.fori_loop(0, steps, step, state)
            found = measure(state, key_measure)
            ratios = _ratios(sampler, found.noise / jnp.maximum(found.curvature, 1e-30), posterior.num_data)
            length = jnp.max(jnp.where(ratios <= _PILOT_RATIO, _LENGTHS, 0.0))
            eta = jnp.minimum(length, _PILOT_LENGTH) / found.stiffest
            return (state, jnp.where(jnp.isfinite(eta), eta, 0.0).astype(starts.dtype)), found

        # The first measures the curvature for a step size; each of the others has its anchor nearer to the mode. One
        # with short steps finds little noise near its anchor, and the next takes longer ones: the largest counts.
        stages = (jnp.asarray([0, *[_PILOT_STEPS] * _STAGES]), jax.random.split(key_stages, _STAGES + 1))
        _, found = jax.lax.scan(stage, (state, starts), stages)
        return Measured(jnp.max(found.stiffest), found.curvature[-1], jnp.max(found.noise[-3:]), found.plain_noise[-1])

    return jax.lax.map(run, (thetas, jax.random.split(key, len(thetas))))


def _rounded_down(value: float) -> float:
    """Two digits: what machines round differently is the same then."""
    power = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / power) * power:.2g}")
