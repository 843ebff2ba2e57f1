"""Windows of warm-up, and adaptation of the step size within them."""

from __future__ import annotations

import abc
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from annotated_types import Gt
from jaxtyping import Array, Float

from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.kernel import replace


def windows(num_warmup: int) -> tuple[int, ...]:
    """Return the steps at which the windows of warm-up end: every twentieth of the first half, and the last step.

    `settle` and `tune` run at each end; the last window adapts only the step size. Warm-up of fewer than 200 steps has
    two halves, and of fewer than 40 a single window.
    """
    if num_warmup < 40:
        return (num_warmup,) if num_warmup else ()
    if num_warmup < 200:
        return num_warmup // 2, num_warmup
    return (*(num_warmup * part // 20 for part in range(1, 11)), num_warmup)


class AbstractWarmup(eqx.Module):
    """Adaptation of a state's numbers in one window of warm-up, as pure functions of one chain."""

    @abc.abstractmethod
    def init(self, state: Any, constraints: int) -> Any:
        """Return the tuning at the start of a window, for a sampler with `constraints` limits (`headroom`)."""

    @abc.abstractmethod
    def update(self, tuning: Any, state: Any, headroom: Float[Array, " constraint"]) -> tuple[Any, Any]:
        """Return the tuning and the state after a step."""

    @abc.abstractmethod
    def final(self, tuning: Any, state: Any) -> Any:
        """Return the state at the end of a window, with the tuned numbers."""


class StepSizeTuning(NamedTuple):
    """State of the step size adaptation of one chain."""

    count: Float[Array, ""]
    headroom: Float[Array, " constraint"]
    log_step: Float[Array, ""]
    average: Float[Array, ""]


class StepSize(AbstractWarmup):
    """Adaptation to the largest step size at which the mean headroom of every limit is still positive.

    Stochastic approximation (Robbins and Monro 1951): log eta_{t+1} = log eta_t + gain t^-0.6 h_t. h_t is the smallest
    of the running means of the headrooms. The result is the average of the path of log eta weighted by t (Polyak and
    Juditsky 1992). Samplers without headroom are not adapted: they have no step size, or adapt it themselves.
    """

    gain: Annotated[Number, Gt(0)] = number(1.0)

    def init(self, state: Any, constraints: int) -> StepSizeTuning:
        """Return the tuning that starts at the state's step size."""
        log_step = jnp.log(state.step_size) if constraints else jnp.zeros(())
        zero = jnp.zeros((), log_step.dtype)
        return StepSizeTuning(zero, jnp.zeros((constraints,), log_step.dtype), log_step, log_step)

    def update(
        self, tuning: StepSizeTuning, state: Any, headroom: Float[Array, " constraint"]
    ) -> tuple[StepSizeTuning, Any]:
        """Move log eta by the smallest mean headroom, and set the state's next step size."""
        if not headroom.size:
            return tuning, state
        count = tuning.count + 1
        # An exponentially weighted mean, because the first steps of a window used another step size than its last ones.
        mean = tuning.headroom + (headroom - tuning.headroom) * jnp.maximum(1 / count, 0.1)
        # Limit a move to a factor e, so that one extreme proposal cannot decide the result of the window.
        move = jnp.clip(self.gain * count**-0.6 * jnp.min(mean), -1.0, 1.0)
        log_step = tuning.log_step + move
        average = tuning.average + (log_step - tuning.average) * 2 / (count + 1)
        return StepSizeTuning(count, mean, log_step, average), replace(state, step_size=jnp.exp(log_step))

    def final(self, tuning: StepSizeTuning, state: Any) -> Any:
        """Return the state with the averaged step size."""
        if not tuning.headroom.size:
            return state
        # Use the average of the path instead of its end, because the noise of the acceptances cancels in the average.
        return replace(state, step_size=jnp.exp(tuning.average))
