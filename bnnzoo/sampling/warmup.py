"""Warm-up: its windows, and the adaptation of the step size within them."""

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
    """The steps at which warm-up's windows end: every twentieth up to the half, and all.

    At each end `settle` and `tune` run; the last window adapts only the step size. A short warm-up has two halves, a
    very short one is a single window.
    """
    if num_warmup < 40:
        return (num_warmup,) if num_warmup else ()
    if num_warmup < 200:
        return num_warmup // 2, num_warmup
    return (*(num_warmup * part // 20 for part in range(1, 11)), num_warmup)


class AbstractWarmup(eqx.Module):
    """Adapts numbers of a state during one window of warm-up; one chain, pure."""

    @abc.abstractmethod
    def init(self, state: Any, constraints: int) -> Any:
        """The tuning at the start of a window, for a sampler with that many limits (`headroom`)."""

    @abc.abstractmethod
    def update(self, tuning: Any, state: Any, headroom: Float[Array, " constraint"]) -> tuple[Any, Any]:
        """The tuning and the state after a step."""

    @abc.abstractmethod
    def final(self, tuning: Any, state: Any) -> Any:
        """The state at the end of a window, its numbers as the tuning found them."""


class StepSizeTuning(NamedTuple):
    count: Float[Array, ""]
    headroom: Float[Array, " constraint"]
    log_step: Float[Array, ""]
    average: Float[Array, ""]


class StepSize(AbstractWarmup):
    """The largest step size at which the mean of every limit's headroom is still positive.

    Stochastic approximation (Robbins and Monro 1951): log eta_{t+1} = log eta_t + gain t^-0.6 h_t, with h_t the least
    of the running means of the headrooms, and eta the average of its path weighted by t (Polyak and Juditsky 1992).
    Samplers without headroom are left alone: they have nothing to adapt, or adapt it themselves.
    """

    gain: Annotated[Number, Gt(0)] = number(1.0)

    def init(self, state: Any, constraints: int) -> StepSizeTuning:
        log_step = jnp.log(state.step_size) if constraints else jnp.zeros(())
        zero = jnp.zeros((), log_step.dtype)
        return StepSizeTuning(zero, jnp.zeros((constraints,), log_step.dtype), log_step, log_step)

    def update(
        self, tuning: StepSizeTuning, state: Any, headroom: Float[Array, " constraint"]
    ) -> tuple[StepSizeTuning, Any]:
        if not headroom.size:
            return tuning, state
        count = tuning.count + 1
        # A running mean that forgets: the first steps of a window are from another step size than its last.
        mean = tuning.headroom + (headroom - tuning.headroom) * jnp.maximum(1 / count, 0.1)
        # Bounded by a factor e: one proposal far out of range must not decide where the window goes.
        move = jnp.clip(self.gain * count**-0.6 * jnp.min(mean), -1.0, 1.0)
        log_step = tuning.log_step + move
        average = tuning.average + (log_step - tuning.average) * 2 / (count + 1)
        return StepSizeTuning(count, mean, log_step, average), replace(state, step_size=jnp.exp(log_step))

    def final(self, tuning: StepSizeTuning, state: Any) -> Any:
        if not tuning.headroom.size:
            return state
        # The average of the path, not its end: that is where the noise of the acceptances cancels.
        return replace(state, step_size=jnp.exp(tuning.average))
