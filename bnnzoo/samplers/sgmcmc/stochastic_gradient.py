"""The gradient, the anchor and the step size of samplers that use mini-batch gradients without an accept step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Gt, Le
from jaxtyping import Array, Float, PRNGKeyArray, UInt32
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, as_number, number
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.common.control_variate import ORDER, Anchor, Order, make_anchor, next_anchor, refuse_large
from bnnzoo.samplers.common.gradient_noise import gradient_noise, jackknife, worst_directions
from bnnzoo.samplers.sgmcmc.auto_steps import TARGET, choose_fields
from bnnzoo.samplers.sgmcmc.schedule import Schedule, scheduled_step_size, typical_steps
from bnnzoo.samplers.statistics import DIVERGING, LOG_DENSITY_ESTIMATE, STEP_SIZE, Statistic

S = TypeVar("S")

_STEP_SIZE, _ROWS = 1e-5, 50
"""Step size and batch size that are used if the fields are `auto` and there was no pilot run."""
_STEP_FRACTIONS = np.logspace(-8, 1, 181, dtype=np.float32)
"""Factors by which `inspect` multiplies the step size, to find the largest step size with a small bias."""


class AbstractStochasticGradientSampler(AbstractSampler[S]):
    """A sampler whose steps follow a mini-batch gradient. Its state has `position`, `count` and `anchor`.

    The gradient is grad log p(theta) + beta (N / n) sum_batch grad l_i(theta), where p is the prior, l_i the
    log-likelihood of datum i, and beta the likelihood power. A control variate subtracts from grad l_i the gradient of
    a Taylor polynomial of l_i, and adds the sum of these gradients over all data (first order: Baker et al. 2019, Stat.
    Comput. 29, 599). The estimate stays unbiased, and only the remainder of the polynomial is noisy. The point at which
    the polynomials are expanded is called the anchor. The first anchor is the initial position of the chain. At the end
    of each warm-up window the anchor moves to the position of the chain. (At second order, the anchor then makes a
    Newton step if this step increases the density.)

    A pilot run selects the values of `auto` fields. If the user sets the step size, or if there is no warm-up, there is
    no pilot run. `auto` then means a batch of 50 rows, no control variate, and a step size of 1e-5. (With fewer than 50
    rows, `sampling: disjoint` uses all rows.)
    """

    exactness: ClassVar[Exactness] = "biased"
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY_ESTIMATE, DIVERGING, STEP_SIZE)
    chain_state: ClassVar[tuple[str, ...]] = ("count",)

    step_size: Annotated[
        Number | Literal["auto"], Gt(0), Doc("eta; auto: a pilot run selects a value with a small predicted bias")
    ] = eqx.field(converter=as_number, default="auto")
    batch_size: Annotated[int | Literal["auto"], Ge(1), Doc("n: rows per step; auto: selected with the step size")] = (
        "auto"
    )
    sampling: Annotated[
        Literal["replacement", "disjoint"],
        Doc("replacement: rows are drawn independently; disjoint: no row occurs twice in a batch"),
    ] = "replacement"
    control_variate: Annotated[
        Order | Literal["auto"],
        Doc(
            "order of the Taylor polynomial subtracted from gradients; auto: none or first, selected with the step size"
        ),
    ] = "auto"
    schedule: Annotated[Schedule, Doc("schedule of the step size")] = "constant"
    decay: Annotated[Number, Gt(0), Le(1), Doc("for schedule decreasing: exponent of the decrease")] = number(0.55)
    delay: Annotated[
        Number, Gt(0), Doc("for schedule decreasing: steps before a clear decrease, eta (1 + step / delay)^-decay")
    ] = number(1000.0)
    cycle: Annotated[int, Ge(1), Doc("for schedule cyclical: number of steps per cycle")] = 1000

    def eta(self, count: UInt32[Array, ""], like: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return the step size of step `count`, in the dtype of `like`."""
        eta = jnp.asarray(_STEP_SIZE if isinstance(self.step_size, str) else self.step_size, like.dtype)
        return scheduled_step_size(self.schedule, eta, count, decay=self.decay, delay=self.delay, cycle=self.cycle)

    def mean_eta(self, count: UInt32[Array, ""], like: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return the mean step size over the steps with stored draws, for a chain that has made `count` steps."""
        if self.schedule == "constant":
            return self.eta(count, like)
        steps = typical_steps(self.schedule, count, cycle=self.cycle, exploration=getattr(self, "exploration", 0.0))
        return jnp.mean(jax.vmap(lambda step: self.eta(step, like))(steps))

    def batch_rows(self, num_data: int) -> int:
        """Return the number of rows in a mini-batch.

        If `batch_size` is `auto` and `sampling` is not `replacement`, the result is at most the number of data.
        """
        if not isinstance(self.batch_size, str):
            return self.batch_size
        return _ROWS if self.sampling == "replacement" else min(_ROWS, num_data)

    @property
    def order(self) -> Order:
        """Order of the control variate; "none" while `control_variate` is `auto`."""
        return "none" if self.control_variate == "auto" else self.control_variate

    def choose(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> dict[str, Any]:
        """Return the values of the `auto` fields from a pilot run; no values if the user set the step size."""
        return choose_fields(self, posterior, thetas) if isinstance(self.step_size, str) else {}

    def anchor(self, posterior: AbstractPosterior, theta: Float[Array, " dim"]) -> Anchor | None:
        """Return the first anchor of a chain that begins at `theta`; None if there is no control variate."""
        if self.order == "none":
            return None
        return make_anchor(posterior, theta, second=self.order == "second")

    def settle(self, posterior: AbstractPosterior, state: S, *, final: bool, key: PRNGKeyArray) -> S:
        """Move the anchor, if there is one, to the chain's position."""
        del final, key
        typed_state: Any = state
        if typed_state.anchor is None:
            return state
        return eqx.tree_at(lambda s: s.anchor, state, next_anchor(typed_state.anchor, posterior, typed_state.position))

    def batch(self, posterior: AbstractPosterior, *, key: PRNGKeyArray) -> Any:
        """Draw the mini-batch of a step."""
        return posterior.minibatch(self.batch_rows(posterior.num_data), replace=self.sampling == "replacement", key=key)

    def gradient(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], anchor: Anchor | None, batch: Any
    ) -> tuple[Float[Array, ""], Float[Array, " dim"]]:
        """Return the mini-batch estimates of the log posterior density and of its gradient."""
        scale = posterior.likelihood_power * (posterior.num_data / self.batch_rows(posterior.num_data))

        def log_density(t: Float[Array, " dim"]) -> Float[Array, ""]:
            return posterior.log_prior(t) + scale * jnp.sum(posterior.log_likelihood(t, batch))

        lp_estimate, gradient = jax.value_and_grad(log_density)(theta)
        if anchor is not None:
            anchor_slope = posterior.likelihood_power * anchor.slope(theta)
            gradient = gradient - scale * anchor.batch_slope(posterior, theta, batch) + anchor_slope
        return lp_estimate, gradient

    def metric(self, state: S) -> Float[Array, " dim"] | Float[Array, ""]:
        """Return the metric G. Apart from its noise, a step changes theta by eta_t G times the gradient."""
        del state
        return jnp.ones(())

    def variance_ratio(self, length: Float[Array, ""], noise: Float[Array, ""], *, num_data: int) -> Float[Array, ""]:
        """Return the stationary variance of the draws, divided by the variance of a Gaussian target.

        This method returns (1 + eta V / 2) / (1 - eta a / 2). The formula holds for the step theta' = theta + eta grad
        + sqrt(2 eta) eps. Samplers with another step must override the method. The ratio is infinite if the step is
        unstable.

        Args:
            length: eta a, the step size times the precision of the target.
            noise: eta V, the step size times the variance of the mini-batch gradient.
            num_data: number of data from which the batches are drawn.
        """
        del num_data
        return jnp.where(length < 2, (1 + noise / 2) / jnp.maximum(1 - length / 2, 0.0), jnp.inf)

    def inspect(self, posterior: AbstractPosterior, state: S, *, key: PRNGKeyArray) -> Stats:
        """Estimate the chain's bias from the curvature and the gradient noise at its final position.

        A variance ratio is the variance of the draws divided by the variance of the posterior.

        - `variance_ratio`: the ratio in an average direction. It is computed from the means of curvature and noise over
          the coordinates of theta.
        - `variance_ratio_se`: the standard error of `variance_ratio`.
        - `variance_ratio_worst`: the largest of three ratios: in an average direction, in the direction of the largest
          curvature, and in the direction of the largest noise.
        - `unbiased_step_size`: the largest tested value of `step_size` for which none of the three ratios exceeds
          `TARGET`; 0 if there is none.

        The ratios are computed for the mean step size of the schedule.
        """
        typed_state: Any = state
        metric, eta = self.metric(state), self.mean_eta(typed_state.count, typed_state.position)
        key_mean, key_worst = jax.random.split(key)

        def gradient(theta: Float[Array, " dim"], key: PRNGKeyArray) -> Float[Array, " dim"]:
            return self.gradient(posterior, theta, typed_state.anchor, self.batch(posterior, key=key))[1]

        def ratio(curvature: Float[Array, ""], variance: Float[Array, ""]) -> Float[Array, ""]:
            return self.variance_ratio(eta * curvature, eta * variance, num_data=posterior.num_data)

        noise = gradient_noise(gradient, typed_state.position, metric, key=key_mean)
        value, error = jackknife(ratio, noise)
        worst_noise = worst_directions(gradient, typed_state.position, metric, key=key_worst)
        # Because of the noise, the estimated curvature in a flat direction can be negative. It is then set to 0.
        curvature = jnp.append(jnp.maximum(jnp.mean(worst_noise.curvature, 1), 0.0), jnp.mean(noise.curvature))
        variance = jnp.append(jnp.mean(worst_noise.variance, 1), jnp.mean(noise.variance))

        def largest_ratio(fraction: Float[Array, ""]) -> Float[Array, ""]:
            return jnp.max(jax.vmap(ratio)(fraction * curvature, fraction * variance))

        largest_fraction = jnp.max(
            jnp.where(jax.vmap(largest_ratio)(jnp.asarray(_STEP_FRACTIONS)) <= TARGET, _STEP_FRACTIONS, 0.0)
        )
        return {
            "variance_ratio": value,
            "variance_ratio_se": error,
            "variance_ratio_worst": largest_ratio(jnp.ones(())),
            "unbiased_step_size": largest_fraction * self.eta(jnp.zeros_like(typed_state.count), typed_state.position),
        }

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the number of evaluations of a step.

        Each row of the batch counts 1 for the gradient, plus the order (0, 1 or 2) of the control variate.
        """
        del warmup
        return self.batch_rows(posterior.num_data) * (1.0 + ORDER[self.order]) * means.get("n_steps", 1.0)

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse a batch without replacement that has more rows than the data, and a Hessian that is too large.

        Raises:
            UsageError: if the batch or the Hessian is too large.
        """
        rows = self.batch_rows(posterior.num_data)
        if self.sampling == "disjoint" and rows > posterior.num_data:
            raise UsageError(
                f"[[sampler.batch_size]]: must be at most {posterior.num_data}, the number of rows (got "
                f"{rows}); use a smaller value, or [[sampler.sampling=replacement]]"
            )
        refuse_large(self.order, posterior)
