"""Measurement of the time of a step before warm-up. The measured steps are not part of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

_SECONDS, _MAX_STEPS = 0.25, 64
"""The number of steps per call doubles until a call takes `_SECONDS` seconds or has `_MAX_STEPS` steps."""
_SLOW_STEP_SECONDS = 10.0
"""Largest duration, in seconds, of a first call that is repeated. Later calls can be faster than the first call."""


def measure_step(run_steps: Callable[[int], Any]) -> float:
    """Return the measured seconds of a step.

    Args:
        run_steps: function that runs a number of steps from the first state of the chains and returns arrays. The
            program must be compiled before.
    """
    count, seconds = 1, _seconds_of(run_steps, 1)
    while seconds < _SLOW_STEP_SECONDS:
        seconds = _seconds_of(run_steps, count)
        if seconds >= _SECONDS or count >= _MAX_STEPS:
            break
        count *= 2
    return seconds / count


def _seconds_of(run_steps: Callable[[int], Any], count: int) -> float:
    start_time = time.perf_counter()
    jax.block_until_ready(run_steps(count))
    return time.perf_counter() - start_time
