"""Common parts of acceptance tests on growing batches: the proposal, the batch and the statistics of a step."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt, Lt
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.kernel import choose, replace, standard_normal
from bnnzoo.samplers.minibatch import (
    ORDER,
    AbstractPreconditionedSampler,
    Anchor,
    Order,
    Preconditioner,
    PreconditionerShape,
    anchor_at,
    identity_preconditioner,
    next_anchor,
    refuse_large_hessian,
    update_precision,
)
from bnnzoo.samplers.statistics import LOG_DENSITY_ESTIMATE, METROPOLIS, Statistic
from bnnzoo_minibatch_tests.growing_batch import Estimate, Moments, estimate_ratio, grow_batch


class SequentialState(eqx.Module):
    """State of a chain: the position, the step size, the preconditioner, and the anchor of the control variate."""

    position: Float[Array, " dim"]
    step_size: Float[Array, ""]
    preconditioner: Preconditioner
    anchor: Anchor | None


class Verdict(NamedTuple):
    """The decision of an acceptance test."""

    accepted: Bool[Array, ""]
    rate: Float[Array, ""]
    """Acceptance probability given the batch."""
    error: Float[Array, ""]
    """Error of the decision. Each test has its own definition and estimate of this error."""


class AbstractSequentialTest(AbstractPreconditionedSampler[SequentialState]):
    """Random-walk proposals theta' = theta + eta F eps, tested on a batch that grows until the test can decide.

    eta is the step size, F the preconditioner and eps a standard normal vector. Each step puts the rows in a new random
    order. The test uses the log-likelihoods of the first n = batch_size rows at theta and theta', and then adds n rows
    at a time. With all rows there is no noise.
    """

    statistics: ClassVar[tuple[Statistic, ...]] = (
        *METROPOLIS,
        Statistic("sigma2", "mean", "σ² of the log ratio"),
        Statistic("rows_seen", "mean", "rows that a step uses"),
        Statistic("grown", "mean"),
        Statistic("test_error", "mean", "error of the test"),
        Statistic("delta"),
        LOG_DENSITY_ESTIMATE,
    )

    step_size: Annotated[Number, Gt(0), Doc("eta: the proposal's standard deviation")] = number(0.01)
    batch_size: Annotated[int, Ge(2), Doc("rows of the first batch; the batch grows by the same number")] = 50
    control_variate: Annotated[Order, Doc("order of the Taylor polynomial subtracted from the differences")] = "none"
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up")] = number(0.35)
    preconditioner: Annotated[PreconditionerShape, Doc("shape of the proposal's covariance")] = "auto"

    @abc.abstractmethod
    def is_enough(self, estimate: Estimate, u: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether the rows so far suffice for a decision; `u` is the uniform number on [0, 1) of the step."""

    @abc.abstractmethod
    def decide(self, estimate: Estimate, u: Float[Array, ""]) -> Verdict:
        """Decide whether to accept the proposal, given a finite log ratio."""

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> SequentialState:
        """Return the initial state of a chain at the position `theta`."""
        del key
        order = self.control_variate
        return SequentialState(
            theta,
            jnp.asarray(self.step_size, theta.dtype),
            identity_preconditioner(self.preconditioner if num_warmup else "identity", theta),
            None if order == "none" else anchor_at(posterior, theta, second=order == "second"),
        )

    def settle(
        self, posterior: AbstractPosterior, state: SequentialState, *, final: bool, key: PRNGKeyArray
    ) -> SequentialState:
        """Update the preconditioner and the anchor, except at the end of warm-up."""
        del key
        if final:
            return state
        anchor = None if state.anchor is None else next_anchor(state.anchor, posterior, state.position)
        shape = update_precision(state.preconditioner, posterior, state.position)
        return replace(state, preconditioner=shape, anchor=anchor)

    def step(
        self, posterior: AbstractPosterior, state: SequentialState, *, key: PRNGKeyArray
    ) -> tuple[SequentialState, Stats]:
        """Propose, enlarge the batch until the test can decide, then accept or reject."""
        key_propose, key_batch, key_accept = jax.random.split(key, 3)
        eps = standard_normal(state.position, key=key_propose)
        proposal = state.position + state.step_size * state.preconditioner.correlate(eps)
        u = jax.random.uniform(key_accept, dtype=eps.dtype)
        estimate, density, proposal_density = self.estimate_ratio(posterior, state, proposal, u, key=key_batch)

        # As in `kernel.metropolis`, a proposal with density zero, whose log ratio is -inf, is an ordinary rejection.
        diverging = jnp.isnan(estimate.log_ratio) | (estimate.log_ratio == jnp.inf)
        is_finite = jnp.isfinite(estimate.log_ratio)
        verdict = self.decide(estimate, u)
        accepted = verdict.accepted & is_finite
        state = replace(state, position=choose(accepted, proposal, state.position))
        return state, {
            "lp_estimate": jnp.where(accepted, proposal_density, density),
            "accepted": accepted,
            "acceptance_rate": jnp.where(is_finite, verdict.rate, 0.0),
            "diverging": diverging,
            "step_size": state.step_size,
            "sigma2": estimate.sigma2,
            "rows_seen": estimate.num_seen,
            "grown": estimate.num_tests > 1,
            "test_error": jnp.where(is_finite, verdict.error, 0.0),
            "delta": -estimate.log_ratio,
        }

    def estimate_ratio(
        self,
        posterior: AbstractPosterior,
        state: SequentialState,
        proposal: Float[Array, " dim"],
        u: Float[Array, ""],
        *,
        key: PRNGKeyArray,
    ) -> tuple[Estimate, Float[Array, ""], Float[Array, ""]]:
        """Return the estimate from a batch that suffices, and estimated log densities at position and proposal."""
        total, power, dtype = posterior.num_data, posterior.likelihood_power, state.position.dtype
        log_prior, new_log_prior = posterior.log_prior(state.position), posterior.log_prior(proposal)
        scale = jnp.asarray(power, dtype) * float(total)
        polynomial = jnp.zeros((), dtype)
        if state.anchor is not None:
            polynomial = power * state.anchor.whole_part(state.position, proposal)
        known_change = new_log_prior - log_prior + polynomial

        def difference(rows: Any) -> tuple[Float[Array, " block"], Float[Array, " block"]]:
            here = posterior.log_likelihood(state.position, rows)
            d = posterior.log_likelihood(proposal, rows) - here
            if state.anchor is not None:
                d = d - state.anchor.batch_part(posterior, state.position, proposal, rows)
            return d, here

        def make_estimate(moments: Moments, num_tests: Int[Array, ""]) -> Estimate:
            return estimate_ratio(moments, known_change, num_tests, scale=scale, total=total)

        size = min(self.batch_size, total)
        moments, mean, num_tests = grow_batch(
            posterior, size, difference, lambda m, j: self.is_enough(make_estimate(m, j), u), key=key
        )
        estimate = make_estimate(moments, num_tests)
        density = log_prior + scale * mean
        return estimate, density, density + estimate.log_ratio

    def check(self, posterior: AbstractPosterior) -> None:
        """Raise `UsageError` if the Hessian of the control variate would be too large."""
        refuse_large_hessian(self.control_variate, posterior)

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the likelihood evaluations in a step, on average over the steps.

        Each used row needs two evaluations, plus the derivatives of the control variate at the anchor.
        """
        del warmup
        return means.get("rows_seen", float(posterior.num_data)) * (2.0 + ORDER[self.control_variate])
