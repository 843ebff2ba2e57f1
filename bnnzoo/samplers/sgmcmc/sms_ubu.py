"""Underdamped Langevin dynamics with symmetric sweeps over the mini-batches."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Gt, Lt
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt32
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.posterior.permutation import distinct_indices
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.common.control_variate import Anchor
from bnnzoo.samplers.kernel import choose, standard_normal
from bnnzoo.samplers.sgmcmc.stochastic_gradient import AbstractStochasticGradientSampler


class _Sweep(NamedTuple):
    """Response of (position, momentum) to the gradient errors of the batches, after some steps of a sweep.

    The error of a batch's gradient is constant within a sweep and has the variance 1. The response B_k to the error of
    batch k is a vector: the change of position and momentum per unit of this error.
    """

    power: Float[Array, "2 2"]
    """Product of the step matrices so far: it maps a deviation before the sweep to the deviation after these steps."""
    mean: Float[Array, "2"]
    """Mean b of the responses B_k over all batches."""
    spread: Float[Array, "2 2"]
    """Sum over the batches of (B_k - b)(B_k - b)'."""
    first: Float[Array, "2"]
    """Response to the first use of a batch. In the reverse half of a sweep, the next step uses this batch again."""
    within: Float[Array, ""]
    """Variance of the position due to the errors of this sweep, summed over the steps so far."""
    power_squares: Float[Array, "2 2"]
    """Sum, over the steps so far, of r' r, where r is the first row of `power`."""


class SmsUbuState(eqx.Module):
    """State of a chain."""

    position: Float[Array, " dim"]
    momentum: Float[Array, " dim"]
    count: UInt32[Array, ""]
    anchor: Anchor | None
    seed: UInt32[Array, ""]
    """Seed of the chain's random partitions."""


class SmsUbu(AbstractStochasticGradientSampler[SmsUbuState]):
    """Draws near the posterior: Langevin dynamics with momentum. A sweep uses the batches in order, then in reverse.

    Paulin, Whalley, Chada and Leimkuhler 2024 (arXiv 2410.19780). The N rows are split at random into floor(N / n)
    batches of n rows. The remaining rows are not used in this sweep. Each step uses one batch. A sweep uses all batches
    in order, and then all of them in reverse order. For the next sweep a new random split is drawn. Within a sweep the
    errors of the batches' gradients cancel, to second order in the step size.

    The field `momentum` is c, the fraction of the momentum p that a step keeps. Let eta_t be the step size, and
    h = sqrt(2 eta_t). The friction is gamma = -log(c) / h. Let U be the exact solution of dtheta = p dt,
    dp = -gamma p dt + sqrt(2 gamma) dW over a time of h / 2. A step is

        U;  p <- p + h grad log p_batch(theta);  U
    """

    chain_state: ClassVar[tuple[str, ...]] = ("momentum", "count")

    sampling: Annotated[
        Literal["symmetric"], Doc("order of the batches: a sweep uses each batch once forwards and once backwards")
    ] = "symmetric"
    momentum: Annotated[Number, Gt(0), Lt(1), Doc("c: fraction of the momentum that a step keeps")] = number(0.9)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> SmsUbuState:
        """Return the state at `theta`, with a random momentum and a seed for the partitions."""
        del num_warmup
        key_momentum, key_seed = jax.random.split(key)
        momentum, seed = standard_normal(theta, key=key_momentum), jax.random.bits(key_seed, dtype=jnp.uint32)
        return SmsUbuState(theta, momentum, jnp.zeros((), jnp.uint32), self.anchor(posterior, theta), seed)

    def step(self, posterior: AbstractPosterior, state: SmsUbuState, *, key: PRNGKeyArray) -> tuple[SmsUbuState, Stats]:
        """Make one UBU step on the next mini-batch of the sweep."""
        key_before, key_after, key_fresh = jax.random.split(key, 3)
        eta = self.eta(state.count, state.position)
        h = jnp.sqrt(2 * eta)
        position, momentum = self._flow(h / 2, state.position, state.momentum, key=key_before)
        batch = self._next_batch(posterior, state)
        lp_estimate, gradient = self.gradient(posterior, position, state.anchor, batch)
        finite = jnp.isfinite(jnp.sum(gradient))
        next_values = self._flow(h / 2, position, momentum + h * gradient, key=key_after)
        # A chain whose gradient is not finite stays in place and gets a new momentum.
        fresh_momentum = standard_normal(state.position, key=key_fresh)
        position, momentum = choose(finite, next_values, (state.position, fresh_momentum))
        stats = {"lp_estimate": lp_estimate, "diverging": ~finite, "step_size": eta}
        return SmsUbuState(position, momentum, state.count + 1, state.anchor, state.seed), stats

    def _next_batch(self, posterior: AbstractPosterior, state: SmsUbuState) -> Any:
        size = self.batch_rows(posterior.num_data)
        batches = posterior.num_data // size
        sweep, place = state.count // (2 * batches), state.count % (2 * batches)
        number = jnp.where(place < batches, place, 2 * batches - 1 - place)
        key = jax.random.fold_in(jax.random.key(state.seed), sweep)
        rows = distinct_indices(size, posterior.num_data, start=number * size, key=key)
        return jax.lax.optimization_barrier(posterior.take(rows))

    def _flow(
        self, time: Float[Array, ""], theta: Float[Array, " dim"], p: Float[Array, " dim"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
        """Return theta and p after motion with friction and noise, but without a force, for half of a step.

        The product a = gamma time depends only on `momentum`, not on the step size.
        """
        a = -jnp.log(jnp.asarray(self.momentum, time.dtype)) / 2
        decayed_fraction = -jnp.expm1(-a)
        # Variance of the position's noise, 2 a - 3 + 4 e^-a - e^-2a. For small a this formula loses its digits by
        # cancellation, so its series is used.
        series, term = jnp.zeros_like(a), a**2 / 2
        for k in range(3, 13):
            term = -term * a / k
            series = series + term * (4 - 2**k)
        var_theta = jnp.where(a < 0.5, series, 2 * a - 2 * decayed_fraction - decayed_fraction**2)
        var_p, covariance = -jnp.expm1(-2 * a), decayed_fraction**2
        first, second = (standard_normal(theta, key=k) for k in jax.random.split(key))
        noise_p = jnp.sqrt(var_p) * first
        noise_theta = covariance / jnp.sqrt(var_p) * first + jnp.sqrt(var_theta - covariance**2 / var_p) * second
        return theta + time / a * (decayed_fraction * p + noise_theta), (1 - decayed_fraction) * p + noise_p

    def variance_ratio(self, length: Float[Array, ""], noise: Float[Array, ""], *, num_data: int) -> Float[Array, ""]:
        """Return the variance of the draws divided by the variance of a Gaussian target (see the base class).

        Let theta be in units of the target's standard deviation, and h = sqrt(2 `length`). On a Gaussian target a step
        is a linear map S plus noise. Without errors of the gradients, the stationary covariance of position and
        momentum is I + E, where E = S E S' + D. D is the change of the covariance in a step that begins with the
        covariance I. The terms of low order in h cancel in D. The code omits them, because rounding errors would
        dominate a float32 difference. `_batch_error_variance` adds the effect of the errors of the gradients.
        """
        h = jnp.sqrt(2 * length)
        a = -jnp.log(jnp.asarray(self.momentum, h.dtype)) / 2
        decayed_fraction, time = -jnp.expm1(-a), h / 2 / a
        flow = _matrix(1.0, time * decayed_fraction, 0.0, 1 - decayed_fraction)
        step = flow @ _matrix(1.0, 0.0, -h, 1.0) @ flow
        flow_variance, flow_covariance = 2 * time**2 * (a - decayed_fraction), time * decayed_fraction
        kicked_covariance = flow_covariance - h * (1 + flow_variance)
        kicked = _matrix(
            flow_variance, kicked_covariance, kicked_covariance, h**2 * (1 + flow_variance) - 2 * h * flow_covariance
        )
        added = flow @ kicked @ flow.T + _matrix(flow_variance, flow_covariance, flow_covariance, 0.0)
        exact_variance = 1 + _stationary(step, added)[0, 0]
        batch_error_variance = self._batch_error_variance(step, h * flow[:, 1], num_data)
        # If this condition holds, the eigenvalues of a 2 x 2 matrix with determinant below 1 are in the unit circle.
        stable = jnp.abs(jnp.trace(step)) < 1 + jnp.linalg.det(step)
        return jnp.where(stable, exact_variance + noise / length * batch_error_variance, jnp.inf)

    def _batch_error_variance(
        self, step: Float[Array, "2 2"], push: Float[Array, "2"], num_data: int
    ) -> Float[Array, ""]:
        """Return the variance of the position due to gradient errors of variance 1, as a mean over a sweep's steps.

        The sweep has M disjoint batches, each with n of the N data. The errors of two batches have the correlation
        -n / (N - n). After some step of the sweep, let B_k be the response to the error of batch k (see `_Sweep`), and
        b the mean of all B_k. `step` is the matrix of a step, and `push` the response to the error of the step's batch.
        The covariance of position and momentum due to the errors is then

            N / (N - n) sum_k (B_k - b)(B_k - b)' + M (N - M n) / (N - n) b b'
        """
        size = self.batch_rows(num_data)
        num_other_rows, batches = num_data - size, num_data // size
        if not num_other_rows:
            return jnp.zeros(())
        single_batch_factor = num_data / num_other_rows
        sweep_factor = batches * (num_data - batches * size) / num_other_rows

        def next_place(carry: _Sweep, is_reverse: Bool[Array, ""]) -> tuple[_Sweep, None]:
            # In the reverse half of the sweep, the batch of this step has been used before, and `first` is the response
            # to this first use. In the first reverse step, the first use was one step ago. In each further reverse
            # step, it was two steps longer ago than in the step before.
            earlier_response = step @ (jnp.where(is_reverse, carry.first, 0.0) - carry.mean)
            mean = step @ carry.mean + push / batches
            cross_term = jnp.outer(earlier_response, push)
            spread = (
                step @ carry.spread @ step.T + cross_term + cross_term.T + (1 - 1 / batches) * jnp.outer(push, push)
            )
            first = jnp.where(is_reverse, step @ (step @ carry.first), carry.first)
            power = step @ carry.power
            within = carry.within + single_batch_factor * spread[0, 0] + sweep_factor * mean[0] ** 2
            power_squares = carry.power_squares + jnp.outer(power[0], power[0])
            return _Sweep(power, mean, spread, first, within, power_squares), None

        zeros = jnp.zeros_like(step)
        start = _Sweep(jnp.eye(2), 0 * push, zeros, push, jnp.zeros(()), zeros)
        end, _ = jax.lax.scan(next_place, start, jnp.arange(2 * batches) >= batches)
        across_sweeps = _stationary(
            end.power, single_batch_factor * end.spread + sweep_factor * jnp.outer(end.mean, end.mean)
        )
        return (end.within + jnp.sum(across_sweeps * end.power_squares)) / (2 * batches)

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse a batch size that exceeds the number of rows.

        Raises:
            UsageError: if the batch size exceeds the number of rows, or if the Hessian of a control variate is not
                affordable.
        """
        super().check(posterior)
        rows = self.batch_rows(posterior.num_data)
        if rows > posterior.num_data:
            raise UsageError(
                f"[[sampler.batch_size]]: must be at most {posterior.num_data}, the number of rows (got {rows}); "
                "use a smaller value"
            )


def _matrix(*entries: Array | float) -> Float[Array, "2 2"]:
    return jnp.stack([jnp.asarray(entry, jnp.zeros(()).dtype) for entry in entries]).reshape(2, 2)


def _stationary(step: Float[Array, "2 2"], fresh: Float[Array, "2 2"]) -> Float[Array, "2 2"]:
    """Solve P = step P step' + fresh for P."""
    return jnp.linalg.solve(jnp.eye(4) - jnp.kron(step, step), fresh.reshape(4)).reshape(2, 2)
