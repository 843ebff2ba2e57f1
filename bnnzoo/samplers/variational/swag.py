"""Stochastic weight averaging, Gaussian."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Gt, Lt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.finding import Finding, setting
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.common.gradient_noise import STARTS, greatest_curvature, stable_power_of_ten
from bnnzoo.samplers.kernel import choose, replace, standard_normal
from bnnzoo.samplers.statistics import DIVERGING, LOG_DENSITY_ESTIMATE, Statistic
from bnnzoo.samplers.variational import training


class SwagState(eqx.Module):
    """State of a chain: its position, and the moments of the snapshots.

    In warm-up the position is the current point of gradient descent. Afterwards it is the latest draw.
    """

    position: Float[Array, " dim"]
    velocity: Float[Array, " dim"]
    done: Float[Array, ""]
    """Number of warm-up steps so far. Snapshots are taken only after step `first`."""
    first: Float[Array, ""]
    snapshots: Float[Array, ""]
    mean: Float[Array, " dim"]
    variance: Float[Array, " dim"]
    deviations: Float[Array, "rank dim"]
    """Deviations of the latest snapshots, newest first: snapshot k minus the mean of the snapshots up to k."""


class Swag(training.AbstractTrainedSampler[SwagState]):
    """Draws from a Gaussian fitted to the path of stochastic gradient descent, with low-rank plus diagonal covariance.

    Maddox, Garipov, Izmailov, Vetrov and Wilson 2019, A Simple Baseline for Bayesian Uncertainty in Deep Learning. With
    several chains SWAG is Multi-SWAG (Wilson and Izmailov 2020). Warm-up is gradient descent on mini-batches, with
    momentum and a constant learning rate. In the second half of warm-up every `interval`-th position is a snapshot. The
    state stores the mean and the variance of the snapshots, one value per parameter. It also stores D_k for the latest
    K = `rank` snapshots: the deviation of snapshot k from the mean of the snapshots up to k. A draw is

        theta = mean + sqrt(variance / 2) eps_1 + sum_k D_k eps_2k / sqrt(2 (K - 1)),   eps ~ N(0, I)

    The noise of the mini-batches determines the width of this Gaussian. The width therefore depends on the learning
    rate and the batch size, not only on the posterior.
    """

    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY_ESTIMATE, DIVERGING, Statistic("snapshots"))
    guarded: ClassVar[bool] = True
    budget_field: ClassVar[str] = "learning_rate"

    learning_rate: Annotated[Number, Gt(0), Doc("constant learning rate of the descent on the mean loss per row")] = (
        number(5e-3)
    )
    momentum: Annotated[Number, Ge(0), Lt(1), Doc("momentum of the descent")] = number(0.9)
    batch_size: Annotated[
        int,
        Ge(1),
        Doc("rows per warm-up step, limited to half of all rows, because a batch of all rows has no noise"),
    ] = 128
    interval: Annotated[int, Ge(1), Doc("number of steps between snapshots")] = 10
    rank: Annotated[int, Ge(2), Doc("K: number of snapshots that determine the low-rank part of the covariance")] = 20

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> SwagState:
        """Return the state of a chain whose gradient descent begins at `theta`."""
        del posterior, key
        zero, zero_vector = jnp.zeros(()), jnp.zeros_like(theta)
        deviations = jnp.zeros((self.rank, theta.shape[0]), theta.dtype)
        return SwagState(theta, zero_vector, zero, zero + num_warmup // 2, zero, theta, zero_vector, deviations)

    def warmup_step(
        self, posterior: AbstractPosterior, state: SwagState, *, key: PRNGKeyArray
    ) -> tuple[SwagState, Stats]:
        """Make one step of gradient descent. In the second half of warm-up, take a snapshot every `interval` steps."""
        rows = posterior.minibatch(self._size(posterior), key=key)
        loss, gradient = jax.value_and_grad(lambda t: training.loss(posterior, t, rows))(state.position)
        finite = jnp.isfinite(jnp.sum(gradient))
        velocity = self.momentum * state.velocity + gradient
        velocity, position = choose(
            finite, (velocity, state.position - self.learning_rate * velocity), (state.velocity, state.position)
        )
        num_steps = state.done + 1
        state = replace(state, position=position, velocity=velocity, done=num_steps)
        is_due = (num_steps > state.first) & (jnp.mod(num_steps - state.first, self.interval) == 0)
        return choose(is_due, _with_snapshot(state), state), {
            "lp_estimate": -posterior.num_data * loss,
            "diverging": ~finite,
        }

    def _size(self, posterior: AbstractPosterior) -> int:
        """Return the batch size. It is at most half of the data, because a batch of all data would have no noise."""
        return min(self.batch_size, max(1, posterior.num_data // 2))

    def fit_budget(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], gradients: float) -> float:
        """Return a learning rate, at most the field `learning_rate`, at which gradient descent is stable.

        Momentum multiplies the effective learning rate by 1 / (1 - momentum).
        """
        del gradients
        key = jax.random.key(0)

        @eqx.filter_jit
        def curvatures(self: Any, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> Array:
            def gradient(theta: Float[Array, " dim"], key: PRNGKeyArray) -> Float[Array, " dim"]:
                rows = posterior.minibatch(self._size(posterior), key=key)
                return jax.grad(lambda t: training.loss(posterior, t, rows))(theta)

            def effective_curvature(theta: Float[Array, " dim"]) -> Float[Array, ""]:
                return greatest_curvature(gradient, theta, jnp.ones(()), key=key) / (1 - self.momentum)

            return jax.lax.map(effective_curvature, thetas)

        largest_rate = stable_power_of_ten(np.asarray(curvatures(self, posterior, thetas[:STARTS])))
        return min(largest_rate, float(self.learning_rate))

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the number of rows of a mini-batch in warm-up, and 0 for a draw."""
        del means
        return float(self._size(posterior)) if warmup else 0.0

    def step(self, posterior: AbstractPosterior, state: SwagState, *, key: PRNGKeyArray) -> tuple[SwagState, Stats]:
        """Draw from the Gaussian."""
        del posterior
        key_diagonal, key_low_rank = jax.random.split(key)
        eps = standard_normal(state.mean, key=key_diagonal)
        weights = jax.random.normal(key_low_rank, (self.rank,), state.mean.dtype) / jnp.sqrt(2.0 * (self.rank - 1))
        position = state.mean + jnp.sqrt(state.variance / 2) * eps + weights @ state.deviations
        stats = {"snapshots": state.snapshots, **training.draw_statistics(position)}
        return replace(state, position=position), stats

    def findings(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> tuple[Finding, ...]:
        """Report a run with fewer snapshots than `rank`."""
        del posterior
        num_snapshots = means["snapshots"]
        if num_snapshots >= self.rank:
            return ()
        advice = (
            f"use at least {setting('warmup', 2 * self.rank * self.interval)}, "
            f"or a smaller {setting('sampler.interval')}"
        )
        return (Finding("validity", "snapshots", "number of snapshots", num_snapshots, self.rank, advice),)


def _with_snapshot(state: SwagState) -> SwagState:
    """Add the position of a state as one more snapshot. Welford's formula gives no negative variances."""
    count = state.snapshots + 1
    change = state.position - state.mean
    mean = state.mean + change / count
    variance = (1 - 1 / count) * (state.variance + change**2 / count)
    deviations = jnp.concatenate([(state.position - mean)[None], state.deviations[:-1]])
    return replace(state, snapshots=count, mean=mean, variance=variance, deviations=deviations)
