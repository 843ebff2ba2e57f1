"""Automatic step size, batch size and control variate for samplers that use mini-batch gradients.

A short pilot run measures the curvature of the log posterior and the noise of its mini-batch gradient. Then the batch
size and the control variate are selected, unless the user set these fields. With the selected combination, a step moves
farthest in relation to its cost.

The stiffest direction is the direction with the largest curvature, in which the posterior is narrowest. The step size
is the largest one for which the predicted variance of the draws in this direction is at most `TARGET` times the
variance of the posterior.
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
from bnnzoo.samplers.common.control_variate import ORDER
from bnnzoo.samplers.common.gradient_noise import STARTS, gradient_noise, greatest_curvature

TARGET = 1.08
"""Largest predicted variance of the draws in the stiffest direction, divided by the posterior's variance there.

In an average direction this ratio is closer to 1.
"""
_PILOT_RATIO, _PILOT_LENGTH = 1.5, 0.2
"""Two limits of the pilot's step size. The first is the largest predicted variance of the draws, divided by the
posterior's variance. The second is the largest product of step size and curvature.

The first limit is above `TARGET`. The pilot is short, so it needs longer steps to move as far from the anchor as the
run will.
"""
_PILOT_STEPS, _STAGES = 100, 6
_PILOT_ROWS = 256
_MAX_ROWS = 8192
_ROW_OVERHEAD = 256
"""Fixed cost of a step, in gradients of single rows."""
_QUICKLY_COMPILED = {"xla_backend_optimization_level": 0}


class PilotMeasurement(NamedTuple):
    """Curvature and noise of mini-batch gradients, in units of the sampler's metric G (see `metric`)."""

    stiffest: Float[Array, ""]
    """Largest curvature of a mini-batch's log density."""
    curvature: Float[Array, ""]
    noise: Float[Array, ""]
    plain_noise: Float[Array, ""]
    """The fields `curvature`, `noise` and `plain_noise` are means over theta's coordinates. `noise` is the variance of
    the gradient with the sampler's control variate, and `plain_noise` is its variance without one."""


def choose_fields(sampler: Any, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> dict[str, Any]:
    """Choose the fields of `sampler` that are `auto`.

    Returns:
        A value for each `auto` field. The dictionary is empty if no positive and finite curvature was measured, or if
        no step size has a small enough bias.
    """
    is_order_open = sampler.control_variate == "auto"
    order = "first" if is_order_open else sampler.control_variate
    rows = sampler.batch_size if sampler.batch_size != "auto" else min(_PILOT_ROWS, posterior.num_data)
    pilot_sampler = dataclasses.replace(sampler, batch_size=rows, control_variate=order)
    measurements = jax.tree.map(np.asarray, _pilot(pilot_sampler, posterior, thetas[:STARTS], jax.random.key(0)))
    stiffest = float(np.max(measurements.stiffest))
    curvature, noise, plain_noise = (float(np.mean(values)) for values in measurements[1:])
    if not (math.isfinite(stiffest + curvature + noise + plain_noise) and stiffest > 0 and curvature > 0):
        return {}
    best_speed, fields, relative_noise = 0.0, dict[str, Any](), math.inf
    noise_by_order = {"none": plain_noise, "first": noise} if is_order_open else {order: noise}
    for candidate, variance in noise_by_order.items():
        for size in _sizes(sampler, posterior.num_data, rows):
            noise_factor = _batch_mean_variance(sampler, size, posterior.num_data) / max(
                _batch_mean_variance(sampler, rows, posterior.num_data), 1e-12
            )
            ratio = variance / curvature * noise_factor
            # Distance of a Langevin step, divided by the cost of the step. Momentum would multiply this speed by a
            # factor that is the same for every batch size.
            speed = 1 / (TARGET + ratio) / (size * (1 + ORDER[candidate]) + _ROW_OVERHEAD)
            if speed > best_speed:
                best_speed, fields, relative_noise = speed, {"batch_size": size, "control_variate": candidate}, ratio
    length = longest_step(dataclasses.replace(sampler, **fields), relative_noise, posterior.num_data, TARGET)
    if not length > 0:
        return {}
    open_fields = {name: value for name, value in fields.items() if getattr(sampler, name) == "auto"}
    return {"step_size": _round_down_to_two_digits(length / stiffest), **open_fields}


def longest_step(sampler: Any, relative_noise: float, num_data: int, target: float) -> float:
    """Return the largest step size for which the variance of the draws is small enough; 0 if there is none.

    The step size is in units of 1 / a, where a is the curvature of the log posterior. The variance of the draws must be
    at most `target` times the variance of the posterior.

    Args:
        sampler: a sampler with `variance_ratio`.
        relative_noise: V / a, the variance of the mini-batch gradient divided by the curvature.
        num_data: number of data.
        target: largest accepted ratio of the two variances.
    """
    is_within_target = np.asarray(_ratios(sampler, jnp.asarray(relative_noise), num_data)) <= target
    return float(_lengths()[is_within_target].max(initial=0.0))


def _lengths() -> Float[np.ndarray, " length"]:
    """Return candidate step sizes. The unit of a step size is the posterior's variance in the stiffest direction.

    Each call creates a new array: JAX confuses the dtypes if the same constant array is traced in float32 and in
    float64.
    """
    return np.logspace(-9, 0, 181)


@eqx.filter_jit
def _ratios(sampler: Any, relative_noise: Float[Array, ""], num_data: int) -> Float[Array, " length"]:
    return jax.vmap(lambda length: sampler.variance_ratio(length, length * relative_noise, num_data=num_data))(
        jnp.asarray(_lengths())
    )


def _sizes(sampler: Any, num_data: int, min_size: int) -> Iterator[int]:
    size = min_size
    while True:
        yield size
        size = min(2 * size, num_data)
        if sampler.batch_size != "auto" or size > _MAX_ROWS or size <= min_size or size == num_data:
            break
    if sampler.batch_size == "auto" and min_size < num_data <= _MAX_ROWS:
        yield num_data


def _batch_mean_variance(sampler: Any, size: int, num_data: int) -> float:
    """Return the variance of the mean over a batch of `size` rows, up to a factor that is the same for all sizes."""
    return 1 / size - (0.0 if sampler.sampling == "replacement" else 1 / num_data)


# The pilot runs only once, so it is compiled with little optimisation. The cast is needed because the types of Equinox
# do not declare that `filter_jit` passes options on to JAX's jit.
@functools.partial(cast(Any, eqx.filter_jit), compiler_options=_QUICKLY_COMPILED)
def _pilot(
    sampler: Any, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], key: PRNGKeyArray
) -> PilotMeasurement:
    """Measure curvature and noise in short runs, one from each position in `thetas`.

    A run has several stages. At the beginning of a stage the anchor moves to the position of the run's chain.
    """

    def gradient(theta: Float[Array, " dim"], anchor: Any, key: PRNGKeyArray) -> Float[Array, " dim"]:
        return sampler.gradient(posterior, theta, anchor, sampler.batch(posterior, key=key))[1]

    def measure(state: Any, key: PRNGKeyArray) -> PilotMeasurement:
        key_noise, key_curvature = jax.random.split(key)
        metric = sampler.metric(state)
        noise, plain_noise = (
            gradient_noise(lambda t, k, anchor=anchor: gradient(t, anchor, k), state.position, metric, key=key_noise)
            for anchor in (state.anchor, None)
        )
        steepest = greatest_curvature(lambda t, k: gradient(t, None, k), state.position, metric, key=key_curvature)
        return PilotMeasurement(steepest, *(jnp.mean(v) for v in (*noise, plain_noise.variance)))

    def run(theta_and_key: tuple[Array, Array]) -> PilotMeasurement:
        theta, key = theta_and_key
        key_init, key_stages = jax.random.split(key)
        state = sampler.init(posterior, theta, num_warmup=_PILOT_STEPS * _STAGES, key=key_init)
        start_eta = jnp.zeros((), state.position.dtype)

        def stage(
            carry: tuple[Any, Array], steps_and_key: tuple[Array, Array]
        ) -> tuple[tuple[Any, Array], PilotMeasurement]:
            (state, eta), (steps, key) = carry, steps_and_key
            key_settle, key_steps, key_measure = jax.random.split(key, 3)
            stage_sampler = dataclasses.replace(sampler, step_size=eta)

            def step(number: Array, state: Any) -> Any:
                return stage_sampler.warmup_step(posterior, state, key=jax.random.fold_in(key_steps, number))[0]

            # After the initial training a chain is several standard deviations from the mode. Control variates with an
            # anchor so far away would be noisy, so each stage moves the anchor.
            state = sampler.settle(posterior, state, final=False, key=key_settle)
            state = jax.lax.fori_loop(0, steps, step, state)
            measurement = measure(state, key_measure)
            ratios = _ratios(sampler, measurement.noise / jnp.maximum(measurement.curvature, 1e-30), posterior.num_data)
            length = jnp.max(jnp.where(ratios <= _PILOT_RATIO, _lengths(), 0.0))
            eta = jnp.minimum(length, _PILOT_LENGTH) / measurement.stiffest
            return (state, jnp.where(jnp.isfinite(eta), eta, 0.0).astype(start_eta.dtype)), measurement

        # The first stage makes no steps. It measures the curvature, which gives a step size. The anchor of each later
        # stage is closer to the mode. A stage with short steps stays near its anchor and measures little noise, which
        # gives longer steps in the next stage. The largest noise of the final three stages is used.
        stages = (jnp.asarray([0, *[_PILOT_STEPS] * _STAGES]), jax.random.split(key_stages, _STAGES + 1))
        _, measurement = jax.lax.scan(stage, (state, start_eta), stages)
        return PilotMeasurement(
            jnp.max(measurement.stiffest),
            measurement.curvature[-1],
            jnp.max(measurement.noise[-3:]),
            measurement.plain_noise[-1],
        )

    return jax.lax.map(run, (thetas, jax.random.split(key, len(thetas))))


def _round_down_to_two_digits(value: float) -> float:
    """Round down to two digits, so that different rounding errors of two machines rarely change the result."""
    power = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / power) * power:.2g}")
