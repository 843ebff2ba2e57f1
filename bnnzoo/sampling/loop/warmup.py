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


def windows(num_warmup: int, planned: int | None = None) -> tuple[int, ...]:
    """Return the steps at which the windows (phases) of warm-up end.

    The first half of warm-up has ten windows of equal length. The second half is the final window, in which only the
    step size is adapted. A warm-up of 40 to 199 steps has two windows, and a shorter one has a single window. `settle`
    and `tune` of the sampler are called at the end of each window.

    Args:
        num_warmup: number of warm-up steps.
        planned: number of steps that were planned, if warm-up ended early. The windows in the first half then have the
            planned length, and there are fewer of them.
    """
    if planned is not None and planned > num_warmup:
        return (*(end for end in windows(planned)[:-1] if 2 * end <= num_warmup), num_warmup)
    if num_warmup < 40:
        return (num_warmup,) if num_warmup else ()
    if num_warmup < 200:
        return num_warmup // 2, num_warmup
    return (*(num_warmup * part // 20 for part in range(1, 11)), num_warmup)


class AbstractWarmup(eqx.Module):
    """Adaptation of numbers in the sampler's state, such as the step size. A method call handles a single chain."""

    @abc.abstractmethod
    def init(self, state: Any, constraints: int) -> Any:
        """Return the tuning at the start of a window.

        Args:
            state: the sampler's state.
            constraints: number of values that the sampler's `headroom` returns.
        """

    @abc.abstractmethod
    def update(self, tuning: Any, state: Any, headroom: Float[Array, " constraint"]) -> tuple[Any, Any]:
        """Return the new tuning and the new state after a step."""

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
    """Adaptation of the step size to the largest eta at which, on average, no limit of the sampler is exceeded.

    The sampler's `headroom` returns the margin to each limit, such as a target acceptance rate. If all margins
    are positive, the step size may become larger. The method is stochastic approximation (Robbins and Monro 1951):
    log eta_{t+1} = log eta_t + gain t^-0.6 h_t. There is a running mean of each margin, and h_t is the smallest of
    these means. The result is the average of log eta over the steps t, with weights t (Polyak and Juditsky 1992). If
    `headroom` is empty, nothing is adapted: the sampler has no step size, or adapts it itself.
    """

    gain: Annotated[Number, Gt(0)] = number(1.0)

    def init(self, state: Any, constraints: int) -> StepSizeTuning:
        """Return the tuning at the start of a window, with the step size of `state`."""
        log_step = jnp.log(state.step_size) if constraints else jnp.zeros(())
        zero = jnp.zeros((), log_step.dtype)
        return StepSizeTuning(zero, jnp.zeros((constraints,), log_step.dtype), log_step, log_step)

    def update(
        self, tuning: StepSizeTuning, state: Any, headroom: Float[Array, " constraint"]
    ) -> tuple[StepSizeTuning, Any]:
        """Move log eta by gain t^-0.6 h_t (see `StepSize`), at most by 1, and set the step size of the next step."""
        if not headroom.size:
            return tuning, state
        count = tuning.count + 1
        # The mean is exponentially weighted, because the step size changes within a window.
        mean = tuning.headroom + (headroom - tuning.headroom) * jnp.maximum(1 / count, 0.1)
        # Limit the change of eta to a factor e, so that one extreme proposal cannot decide the result of the window.
        move = jnp.clip(self.gain * count**-0.6 * jnp.min(mean), -1.0, 1.0)
        log_step = tuning.log_step + move
        average = tuning.average + (log_step - tuning.average) * 2 / (count + 1)
        return StepSizeTuning(count, mean, log_step, average), replace(state, step_size=jnp.exp(log_step))

    def final(self, tuning: StepSizeTuning, state: Any) -> Any:
        """Return the state with the averaged step size."""
        if not tuning.headroom.size:
            return state
        # Use the average over the window, not the latest value: the noise of the acceptances cancels in the average.
        return replace(state, step_size=jnp.exp(tuning.average))
