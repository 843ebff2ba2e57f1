"""Step-size schedules of stochastic-gradient samplers."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from bnnzoo.posterior.hyperparameter import Number

Schedule = Literal["constant", "decreasing", "cyclical"]

_TYPICAL = 256
"""Steps that represent all steps of a schedule."""


def scheduled_step_size(
    schedule: Schedule,
    eta: Float[Array, ""],
    count: UInt32[Array, ""],
    *,
    decay: Number,
    delay: Number,
    cycle: int,
) -> Float[Array, ""]:
    """Return the step size of step `count`, counted from 0 at the start of warm-up.

    decreasing: eta (1 + t / delay)^-decay, Welling and Teh 2011. cyclical: eta (1 + cos(pi (t mod cycle) / cycle)) / 2,
    Zhang et al. 2020 (arXiv 1902.03932). Each cycle begins with steps long enough to leave a mode and ends with steps
    near 0.
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
    """Return evenly spaced steps of a cycle without its exploration, or of all steps that were made.

    They represent the steps whose draws a run keeps. All steps include warm-up, because the state does not distinguish
    its steps.
    """
    parts = (jnp.arange(_TYPICAL) + 0.5) / _TYPICAL
    if schedule == "cyclical":
        return (cycle * (exploration + (1 - exploration) * parts)).astype(jnp.uint32)
    return (count.astype(parts.dtype) * parts).astype(jnp.uint32)
