"""Metropolis-Hastings on mini-batches: the code that the samplers `penalty` and `batched` share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt, Lt
from jaxtyping import Array, Float, Int, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.finding import Finding
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import AbstractSampler, Stats
from bnnzoo.samplers.common import preconditioner as _preconditioner
from bnnzoo.samplers.common.control_variate import (
    ORDER,
    Order,
    drift_estimator,
    first_anchor,
    known_precision,
    next_anchor,
    refuse_large,
    with_anchor,
)
from bnnzoo.samplers.kernel import choose, metropolis, replace, standard_normal
from bnnzoo.samplers.statistics import ACCEPTANCE_RATE, LOG_DENSITY_ESTIMATE, Statistic
from bnnzoo.samplers.subsampled import batch_sizes, row_probabilities, rows_needed
from bnnzoo.samplers.subsampled import influence as _influence
from bnnzoo.samplers.subsampled.batch_sizes import Sizes, WarmupMeans
from bnnzoo.samplers.subsampled.noise_penalty import Difference, estimate_difference, noise_penalty
from bnnzoo.samplers.subsampled.penalty_state import PenaltyState
from bnnzoo.samplers.subsampled.regime import STATISTICS, noise_statistics, regime
from bnnzoo.samplers.subsampled.row_probabilities import RowProbabilities


class AbstractPenalty(_preconditioner.AbstractPreconditionedSampler[PenaltyState]):
    """Metropolis on mini-batches, with a noise penalty of `correction` terms. See `Penalty` for the formulas."""

    statistics: ClassVar[tuple[Statistic, ...]] = (ACCEPTANCE_RATE, *STATISTICS, LOG_DENSITY_ESTIMATE)

    correction: eqx.AbstractVar[int]
    """Number of terms of the penalty."""
    proposal: eqx.AbstractVar[str]
    sampling: eqx.AbstractVar[str]

    step_size: Annotated[Number, Gt(0), Doc("eta: step size; for hmc, of one leapfrog step")] = number(0.01)
    num_steps: Annotated[int, Ge(1), Doc("for hmc: the number of leapfrog steps is uniform in 1, ..., num_steps")] = 10
    batch_size: Annotated[
        int | Literal["auto"],
        Ge(1),
        Doc("n: rows per batch; auto: 50, then selected by warm-up; for sampling auto, all rows if at most 2000 exist"),
    ] = "auto"
    num_batches: Annotated[
        int | Literal["auto"], Ge(1), Doc("M: batches per step; auto: 20, then selected by warm-up")
    ] = "auto"
    budget: Annotated[int, Ge(40), Doc("largest number of rows per step (n x M) that auto selects")] = 10_000
    variance: Annotated[
        Literal["pooled", "batch-means"],
        Doc("estimate of sigma2, the variance of the noise: from the spread over rows, or over batch means"),
    ] = "pooled"
    control_variate: Annotated[
        Literal["auto", "none", "first", "second"],
        Doc("order of the Taylor polynomial subtracted from differences; auto: second for a subspace, if warm-up > 0"),
    ] = "auto"
    target_acceptance: Annotated[
        Number, Gt(0), Lt(1), Doc("warm-up keeps the acceptance rate at or above this value")
    ] = number(0.45)
    target_sigma2: Annotated[Number, Gt(0), Doc("warm-up keeps the mean sigma2 at or below this value")] = number(1.5)
    preconditioner: Annotated[_preconditioner.Shape, Doc("shape of the proposal's covariance")] = "auto"

    @property
    def order(self) -> Order:
        """Order of the control variate; "none" while `control_variate` is `auto`."""
        return "none" if self.control_variate == "auto" else self.control_variate

    def choose(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"]) -> dict[str, Any]:
        """Return values for the fields `control_variate`, `proposal` and `sampling`, each only if the field is `auto`.

        The values are `second`, `hmc` and `importance`. All fields stay `auto` if `posterior.centre()` is None, or if
        each step uses all data. `sampling` stays `auto` if the user gave `batch_size` or `num_batches`, and with more
        than `MANY_ROWS` rows. The reason is that warm-up evaluates every row many times for `importance`.
        """
        del thetas
        if posterior.centre() is None or self._uses_all_data(posterior.num_data):
            return {}
        choices = {"control_variate": "second", "proposal": "hmc"}
        if self.batch_size == self.num_batches == "auto" and posterior.num_data <= _influence.MANY_ROWS:
            choices["sampling"] = "importance"
        return {name: value for name, value in choices.items() if getattr(self, name) == "auto"}

    def plan(self, num_data: int) -> Sizes:
        """Return the numbers and sizes of the batches of a step."""
        if self._uses_all_data(num_data):
            return batch_sizes.full_batch(num_data)
        return batch_sizes.initial_sizes(self.batch_size, self.num_batches, self.sampling, num_data)

    def _uses_all_data(self, num_data: int) -> bool:
        """Whether each step uses all data, because the data are few, and the sizes and `sampling` are `auto`.

        With a control variate the result is False, because a few dozen data per step then suffice.
        """
        is_open = self.batch_size == self.num_batches == self.sampling == "auto" and self.order == "none"
        return is_open and num_data <= min(batch_sizes.FULL_BATCH_UP_TO, self.budget)

    def resolved_proposal(self, num_data: int) -> str:
        """Return the name of the proposal of a step, with `auto` resolved."""
        if self.proposal != "auto":
            return self.proposal
        return "hmc" if self._uses_all_data(num_data) else "random-walk"

    def step_power(self, posterior: AbstractPosterior) -> int:
        return 2 if self.resolved_proposal(posterior.num_data) == "langevin" else 1

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> PenaltyState:
        del key
        shape = _preconditioner.identity(self.preconditioner if num_warmup else "identity", theta)
        sizes = [self.batch_size == "auto", self.num_batches == "auto"]
        auto = jnp.asarray([*sizes, any(sizes) and self.sampling == "auto"])
        anchor = None if self.order == "none" else first_anchor(posterior, theta, second=self.order == "second")
        rows = row_probabilities.uniform(posterior.num_data) if self.sampling == "importance" else None
        eta = jnp.asarray(self.step_size, theta.dtype)
        return PenaltyState(theta, eta, shape, anchor, WarmupMeans.empty(theta), auto, rows)

    def prepare(self, posterior: AbstractPosterior) -> AbstractPosterior:
        """Compute the anchor at the posterior's centre once, if the posterior has a centre.

        A second-order anchor takes one pass over the rows for each parameter.
        """
        return posterior if self.order == "none" else with_anchor(posterior, second=self.order == "second")

    def settle(
        self, posterior: AbstractPosterior, state: PenaltyState, *, final: bool, key: PRNGKeyArray
    ) -> PenaltyState:
        if final:
            return state
        rows = state.rows
        if rows is not None:
            influence = _influence.row_influence(self, posterior, state, steps_between=0, key=key)
            rows = row_probabilities.update_probabilities(rows, influence.square)
        if state.anchor is not None and posterior.centre() is not None:  # anchor and curvature stay those of the centre
            shape = known_precision(state.preconditioner, posterior, state.anchor)
            return replace(state, preconditioner=shape, rows=rows)
        anchor = None if state.anchor is None else next_anchor(state.anchor, posterior, state.position)
        point, hessian = (state.position, None) if anchor is None else (anchor.point, anchor.hessian)
        shape = _preconditioner.update_precision(state.preconditioner, posterior, point, hessian)
        return replace(state, preconditioner=shape, anchor=anchor, rows=rows)

    def tune(
        self, posterior: AbstractPosterior, states: PenaltyState, *, final: bool, key: PRNGKeyArray, num_steps: int
    ) -> tuple[AbstractSampler[PenaltyState], PenaltyState]:
        del key, num_steps
        states = _preconditioner.pool_chains(states, final=final, power=self.step_power(posterior))
        if states.rows is not None and not final:
            states = replace(states, rows=row_probabilities.pool_chains(states.rows))
        total = posterior.num_data
        proposal, current = self.resolved_proposal(total), self.plan(total)
        auto_size, auto_batches, auto_sampling = map(bool, states.auto[0])
        if not (auto_size or auto_batches):
            return self, states
        if not final:
            resized = batch_sizes.resize_batches(
                current,
                states.seen,
                num_data=total,
                sampling="auto" if auto_sampling else self.sampling,
                target_acceptance=float(self.target_acceptance),
                target_sigma2=float(self.target_sigma2),
                least_factor=2.0 if self.order == "none" and proposal != "random-walk" else 0.0,
                budget=self.budget,
                size=None if auto_size else current.size,
                batches=None if auto_batches else current.batches,
                fewest=1 if self.variance == "pooled" else 2,
            )
            states = replace(states, seen=jax.tree.map(jnp.zeros_like, states.seen))
            # The same sampler needs no new compilation. The final call stores the resolved names in the fields.
            if resized == current:
                return self, states
            current = resized
        fields = current.fields()
        if self.sampling == "importance":
            fields.pop("sampling")  # the sizes do not determine `sampling` here
        return dataclasses.replace(self, proposal=proposal, **fields), states

    def warmup_step(
        self, posterior: AbstractPosterior, state: PenaltyState, *, key: PRNGKeyArray
    ) -> tuple[PenaltyState, Stats]:
        state, stats = self.step(posterior, state, key=key)
        warmup_means = state.seen.with_step(stats, 10 * jnp.asarray(self.target_sigma2, state.position.dtype))
        return eqx.tree_at(lambda s: s.seen, state, warmup_means), stats

    def step(
        self, posterior: AbstractPosterior, state: PenaltyState, *, key: PRNGKeyArray
    ) -> tuple[PenaltyState, Stats]:
        key_propose, key_batch, key_accept = jax.random.split(key, 3)
        proposal, log_proposal_ratio, num_steps = self._propose(posterior, state, key=key_propose)

        batch, weights = self._batch(posterior, state.rows, key=key_batch)
        log_likelihoods = posterior.log_likelihood(state.position, batch)
        new_log_likelihoods = posterior.log_likelihood(proposal, batch)
        log_prior, new_log_prior = posterior.log_prior(state.position), posterior.log_prior(proposal)
        d = new_log_likelihoods - log_likelihoods
        control_variate_change = jnp.zeros(())
        if state.anchor is not None:
            d = d - state.anchor.batch_part(posterior, state.position, proposal, batch)
            control_variate_change = posterior.likelihood_power * state.anchor.whole_part(state.position, proposal)
        if weights is not None:
            d = d * weights
            log_likelihoods, new_log_likelihoods = log_likelihoods * weights, new_log_likelihoods * weights
        difference = self.difference(posterior, d, new_log_prior - log_prior + control_variate_change)
        penalty = noise_penalty(difference.sigma2, difference.dof, self.correction)

        log_ratio = -difference.delta - penalty + log_proposal_ratio
        accepted, rate, diverging = metropolis(log_ratio, key=key_accept)
        scale = posterior.likelihood_power * (posterior.num_data / d.shape[0])
        lp_estimate = jnp.where(
            accepted, new_log_prior + scale * jnp.sum(new_log_likelihoods), log_prior + scale * jnp.sum(log_likelihoods)
        )
        state = eqx.tree_at(lambda s: s.position, state, choose(accepted, proposal, state.position))
        stats = {
            "lp_estimate": lp_estimate,
            "accepted": accepted,
            "acceptance_rate": rate,
            "diverging": diverging | ~jnp.isfinite(difference.sigma2),
            "step_size": state.step_size,
            **noise_statistics(difference, penalty, rate),
        }
        return state, stats | ({"n_steps": num_steps} if self.resolved_proposal(posterior.num_data) == "hmc" else {})

    def _batch(
        self, posterior: AbstractPosterior, rows: RowProbabilities | None, *, key: PRNGKeyArray
    ) -> tuple[Any, Float[Array, " used"] | None]:
        """Return the data of a step, and their weights in a mean over these data (None if all weights are equal)."""
        sizes = self.plan(posterior.num_data)
        if rows is not None:
            return rows.minibatch(posterior, sizes.num_used, key=key)
        return posterior.minibatch(sizes.num_used, replace=not sizes.disjoint, key=key), None

    def _propose(
        self, posterior: AbstractPosterior, state: PenaltyState, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " dim"], Float[Array, ""], Int[Array, ""]]:
        """Return the proposal theta', log q(theta|theta') - log q(theta'|theta), and the number of leapfrog steps."""
        key_noise, key_drift, key_number = jax.random.split(key, 3)
        eta, shape = state.step_size, state.preconditioner
        eps = standard_normal(state.position, key=key_noise)
        kind = self.resolved_proposal(posterior.num_data)
        if kind == "random-walk":
            return state.position + eta * shape.correlate(eps), jnp.zeros((), eta.dtype), jnp.asarray(0)
        drifts_by_polynomial = state.anchor is not None and state.anchor.hessian is not None
        batch, weights = (None, None) if drifts_by_polynomial else self._batch(posterior, state.rows, key=key_drift)
        slope = drift_estimator(posterior, state.anchor, batch, weights)
        number = jnp.asarray(1)
        if kind == "langevin":
            eta = jnp.sqrt(2 * eta)  # a Langevin proposal is one leapfrog step of this length
        else:
            number = jax.random.randint(key_number, (), 1, self.num_steps + 1)

        def leapfrog_step(_: Any, phase_point: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            theta, momentum, force = phase_point
            momentum = momentum + eta / 2 * force
            theta = theta + shape.correlate(eta * momentum)
            force = shape.project(slope(theta))
            return theta, momentum + eta / 2 * force, force

        start = (state.position, eps, shape.project(slope(state.position)))
        end = leapfrog_step(0, start) if kind == "langevin" else jax.lax.fori_loop(0, number, leapfrog_step, start)
        return end[0], (jnp.sum(eps**2) - jnp.sum(end[1] ** 2)) / 2, number

    def difference(
        self, posterior: AbstractPosterior, d: Float[Array, " used"], known_change: Float[Array, ""]
    ) -> Difference:
        """Return the result of `estimate_difference`. If the data have weights, each d includes the weight."""
        sizes, total = self.plan(posterior.num_data), posterior.num_data
        # Sizes are multiplied as floats: N * N overflows an int32 above 46 340 data.
        scale = jnp.asarray(posterior.likelihood_power, d.dtype) * float(total)
        unused_fraction = 1 - sizes.num_used / total if sizes.disjoint else 1.0
        groups = None if self.variance == "pooled" else sizes.batches
        return estimate_difference(d, known_change, scale=scale, unused_fraction=unused_fraction, groups=groups)

    def inspect(self, posterior: AbstractPosterior, state: PenaltyState, *, key: PRNGKeyArray) -> Stats:
        return _influence.unseen_bias(self, posterior, state, key=key) if self.correction else {}

    def remark(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> str:
        return rows_needed.describe(self, posterior, means["rows_needed"]) if "rows_needed" in means else ""

    @property
    def guarded(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.correction > 0

    def headroom(self, stats: Stats) -> Float[Array, " constraint"]:
        """Return the relative margins of the acceptance rate and of sigma2 to their targets.

        The margin of sigma2 is at least -9, so that a single outlier does not dominate the mean over steps.
        """
        acceptance = stats["acceptance_rate"] / self.target_acceptance - 1
        sigma2 = jnp.nan_to_num(stats["sigma2"], nan=jnp.inf)
        return jnp.stack([acceptance, 1 - jnp.minimum(sigma2 / self.target_sigma2, 10.0)])

    def check(self, posterior: AbstractPosterior) -> None:
        sizes = self.plan(posterior.num_data)
        if sizes.disjoint and sizes.num_used > posterior.num_data:
            raise UsageError(
                f"[[sampler.batch_size]] x [[sampler.num_batches]]: must be at most {posterior.num_data}, the "
                f"number of rows (got {sizes.num_used}); use smaller values, or [[sampler.sampling=replacement]]"
            )
        uses_all_data = sizes.disjoint and sizes.num_used == posterior.num_data
        if self.variance == "batch-means" and sizes.batches == 1 and not uses_all_data:
            raise UsageError(
                "[[sampler.num_batches]]: must be at least 2 for [[sampler.variance=batch-means]] (got 1); use a "
                "larger value, or [[sampler.variance=pooled]]"
            )
        if sizes.num_used < 2:
            raise UsageError(
                "[[sampler.batch_size]] x [[sampler.num_batches]]: must be at least 2, because one row gives no "
                f"estimate of sigma2, the variance of the mini-batch noise (got {sizes.num_used}); use "
                "[[sampler.batch_size=2]], or the sampler nuts"
            )
        refuse_large(self.order, posterior)

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the evaluations of a step: likelihoods, derivatives at the anchor, gradients of the proposal."""
        del warmup
        order, gradients = ORDER[self.order], 0.0
        if self.resolved_proposal(posterior.num_data) != "random-walk" and order < 2:
            gradients = 1 + means.get("n_steps", 1.0) + order
        return self.plan(posterior.num_data).num_used * (2.0 + order + gradients)

    def findings(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> tuple[Finding, ...]:
        if not self.guarded:
            return ()
        return regime(
            means,
            self.plan(posterior.num_data),
            num_data=posterior.num_data,
            budget=self.budget,
            tuned=abs(means["step_size"] / float(self.step_size) - 1) > 1e-4,
            target_sigma2=float(self.target_sigma2),
            pooled=self.variance == "pooled",
            langevin=self.resolved_proposal(posterior.num_data) == "langevin",
            importance=self.sampling == "importance",
        )
