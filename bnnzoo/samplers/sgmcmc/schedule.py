"""Step-size schedules of stochastic-gradient samplers."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from bnnzoo.posterior.hyperparameter import Number

Schedule = Literal["constant", "decreasing", "cyclical"]

_TYPICAL = 256
"""Number of steps that `typical_steps` returns."""


def scheduled_step_size(
    schedule: Schedule,
    eta: Float[Array, ""],
    count: UInt32[Array, ""],
    *,
    decay: Number,
    delay: Number,
    cycle: int,
) -> Float[Array, ""]:
    """Return the step size of step t = `count`, where step 0 is the first step of warm-up.

    - `constant`: eta.
    - `decreasing` (Welling and Teh 2011): eta (1 + t / delay)^-decay.
    - `cyclical` (Zhang et al. 2020, arXiv 1902.03932): eta (1 + cos(pi (t mod cycle) / cycle)) / 2. At the beginning of
      each cycle the steps are long enough to leave a mode. At the end of the cycle they are near 0.
    """
    if schedule == "constant":
        return eta
    if schedule == "decreasing":
        return eta * (1 + count.astype(eta.dtype) / delay) ** -decay
    phase = (count % jnp.uint32(cycle)).astype(eta.dtype) / cycle
    return eta * (1 + jnp.cos(jnp.pi * phase)) / 2


def typical_steps(
    schedule: Schedule, count: UInt32[Array, ""], *, cycle: int, exploration: Number
) -> UInt32[Array, " step"]:
    """Return the indices of some evenly spaced steps, which represent the steps whose draws a run keeps.

    For a cyclical schedule the steps are from one cycle, without its exploration part. For other schedules they are
    from all `count` steps so far, including those of warm-up, because the state does not record the length of warm-up.
    """
    fractions = (jnp.arange(_TYPICAL) + 0.5) / _TYPICAL
    if schedule == "cyclical":
        return (cycle * (exploration + (1 - exploration) * fractions)).astype(jnp.uint32)
    return (count.astype(fractions.dtype) * fractions).astype(jnp.uint32)
