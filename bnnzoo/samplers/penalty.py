"""Metropolis-Hastings on mini-batches with a noise penalty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt, Le, Lt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.number import Number, number
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers import _preconditioner
from bnnzoo.samplers._base import AbstractSampler, Exactness, Stats, choose, metropolis, standard_normal


class PenaltyState(eqx.Module):
    position: Float[Array, " dim"]
    step_size: Float[Array, ""]
    preconditioner: _preconditioner.Preconditioner


class Difference(NamedTuple):
    """An estimate of L(theta') - L(theta) from a batch of per-datum differences."""

    delta: Float[Array, ""]
    sigma2: Float[Array, ""]
    dof: int
    skewness: Float[Array, ""]


class Penalty(AbstractSampler[PenaltyState]):
    """Draws from the posterior, to the order of the correction, looking at a few batches of data a step.

    Kawasaki, Holzmann and Adu-Gyamfi, arXiv 2210.09141; Ceperley and Dewing 1999, J. Chem. Phys. 110, 9812.
    On M batches of n data, the same for both points and fresh at every step, K = M n:

        d_i    = l_i(theta') - l_i(theta)
        delta  = -(log p(theta') - log p(theta)) - beta (N / K) sum_i d_i
        sigma2 = estimate of Var(delta)
        accept with probability min(1, exp(-delta - u) q(theta|theta') / q(theta'|theta))

    with the penalty u = sigma2/2 + sigma2^2/(4(m+1)) + sigma2^3/(3(m+1)(m+3)), m = dof + 1, whose later terms make up
    for a variance that is itself estimated. A Langevin proposal takes its drift from another mini-batch, independent
    of the acceptance's, and the same for the move back.
    """

    exactness: ClassVar[Exactness] = "noise-corrected"

    step_size: Annotated[Number, Gt(0), Doc("eta of the proposal")] = number(0.01)
    proposal: Annotated[
        Literal["random-walk", "langevin"],
        Doc("theta + eta F eps, or theta + eta C grad + sqrt(2 eta) F eps"),
    ] = "random-walk"
    batch_size: Annotated[int, Ge(1), Doc("data a batch, n")] = 50
    num_batches: Annotated[int, Ge(1), Doc("batches a step, M")] = 20
    sampling: Annotated[Literal["replacement", "disjoint"], Doc("may a datum be used twice in a step")] = "replacement"
    variance: Annotated[Literal["pooled", "batch-means"], Doc("sigma2 from the spread over data, or over batches")] = (
        "pooled"
    )
    correction: Annotated[int, Ge(0), Le(3), Doc("terms of the penalty; 0 switches it off: biased")] = 3
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("warm-up keeps the acceptance at least here")] = number(0.45)
    target_sigma2: Annotated[Number, Gt(0), Doc("warm-up keeps the mean sigma2 at most here")] = number(1.5)
    preconditioner: Annotated[_preconditioner.Shape, Doc("shape of the proposal's covariance")] = "auto"

    def __check_init__(self) -> None:
        if self.variance == "batch-means" and self.num_batches < 2:
            raise ValueError("num_batches: batch-means of one batch has no variance; use >= 2, or variance pooled")
        if self.num_used < 2:
            raise ValueError("batch_size x num_batches: one datum a step has no variance; use more")

    @property
    def num_used(self) -> int:
        """K = M n, the data a step looks at."""
        return self.batch_size * self.num_batches

    @property
    def stated_exactness(self) -> Exactness:
        return "noise-corrected" if self.correction else "biased"

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> PenaltyState:
        del posterior, key
        shape = _preconditioner.identity(self.preconditioner if num_warmup else "identity", theta)
        return PenaltyState(theta, jnp.asarray(self.step_size, theta.dtype), shape)

    def settle(
        self, posterior: AbstractPosterior, state: PenaltyState, *, final: bool, key: PRNGKeyArray
    ) -> PenaltyState:
        del key
        if final:
            return state
        looked = _preconditioner.look(state.preconditioner, posterior, state.position)
        return eqx.tree_at(lambda s: s.preconditioner, state, looked)

    def tune(
        self,
        posterior: AbstractPosterior,
        states: PenaltyState,
        *,
        final: bool,
        key: PRNGKeyArray,
        num_steps: int,
    ) -> tuple[AbstractSampler[PenaltyState], PenaltyState]:
        del posterior, key, num_steps
        return self, _preconditioner.share(states, final=final)

    def step(
        self, posterior: AbstractPosterior, state: PenaltyState, *, key: PRNGKeyArray
    ) -> tuple[PenaltyState, Stats]:
        key_propose, key_batch, key_accept = jax.random.split(key, 3)
        proposal, log_proposal_ratio = self._propose(posterior, state, key=key_propose)

        batch = posterior.minibatch(self.num_used, replace=self.sampling == "replacement", key=key_batch)
        here = posterior.log_likelihood(state.position, batch)
        there = posterior.log_likelihood(proposal, batch)
        prior_here, prior_there = posterior.log_prior(state.position), posterior.log_prior(proposal)
        difference = self.difference(posterior, there - here, prior_there - prior_here)
        penalty = noise_penalty(difference.sigma2, difference.dof, self.correction)

        log_ratio = -difference.delta - penalty + log_proposal_ratio
        accepted, rate, diverging = metropolis(log_ratio, key=key_accept)
        scale = posterior.likelihood_power * (posterior.num_data / self.num_used)
        kept = jnp.where(accepted, prior_there + scale * jnp.sum(there), prior_here + scale * jnp.sum(here))
        skew_bias = jnp.abs(difference.skewness) * difference.sigma2**1.5 / 6
        state = PenaltyState(choose(accepted, proposal, state.position), state.step_size, state.preconditioner)
        return state, {
            "lp_estimate": kept,
            "accepted": accepted,
            "acceptance_rate": rate,
            "diverging": diverging,
            "step_size": state.step_size,
            "delta": difference.delta,
            "sigma2": difference.sigma2,
            "penalty": penalty,
            "var_dof": jnp.asarray(difference.dof, rate.dtype),
            "delta_skew": difference.skewness,
            "regime_dof": difference.sigma2 > difference.dof / 4,
            "regime_skew": skew_bias > 0.05,
        }

    def _propose(
        self, posterior: AbstractPosterior, state: PenaltyState, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """theta', and log q(theta|theta') - log q(theta'|theta)."""
        key_noise, key_drift = jax.random.split(key)
        eta, shape = state.step_size, state.preconditioner
        eps = standard_normal(state.position, key=key_noise)
        if self.proposal == "random-walk":
            return state.position + eta * shape.correlate(eps), jnp.zeros((), eta.dtype)
        batch = posterior.minibatch(self.num_used, replace=self.sampling == "replacement", key=key_drift)
        scale = posterior.likelihood_power * (posterior.num_data / self.num_used)

        @jax.grad
        def gradient(theta):
            return posterior.log_prior(theta) + scale * jnp.sum(posterior.log_likelihood(theta, batch))

        forward = shape.project(gradient(state.position))
        proposal = state.position + shape.correlate(eta * forward + jnp.sqrt(2 * eta) * eps)
        reverse = eps + jnp.sqrt(eta / 2) * (forward + shape.project(gradient(proposal)))
        return proposal, (jnp.sum(eps**2) - jnp.sum(reverse**2)) / 2

    def difference(
        self, posterior: AbstractPosterior, d: Float[Array, " used"], log_prior_change: Float[Array, ""]
    ) -> Difference:
        """delta and its variance from the per-datum differences `d` of a step's batches.

        With replacement Var(delta) = beta^2 N^2 / K s^2; disjoint batches have (1 - K/N) of it.
        """
        used, total = self.num_used, posterior.num_data
        # Products of sizes are floats: N * N overflows an int32 above 46 340 data.
        scale = posterior.likelihood_power * float(total)
        mean = jnp.mean(d)
        centred = d - mean
        second = jnp.mean(centred**2)
        skewness = jnp.mean(centred**3) / jnp.maximum(second, jnp.finfo(d.dtype).tiny) ** 1.5 / used**0.5
        if self.variance == "pooled":
            sigma2, dof = scale**2 / used * second * (used / (used - 1)), used - 1
        else:
            means = jnp.mean(centred.reshape(self.num_batches, self.batch_size), 1)
            sigma2, dof = scale**2 / self.num_batches * jnp.var(means, ddof=1), self.num_batches - 1
        if self.sampling == "disjoint":
            sigma2 = sigma2 * (1 - used / total)
        return Difference(-log_prior_change - scale * mean, sigma2, dof, skewness)

    def headroom(self, stats: Stats) -> Float[Array, " constraint"]:
        """Acceptance above its target, and sigma2 below its own, capped so that one outlier is one."""
        acceptance = stats["acceptance_rate"] / self.target_acceptance - 1
        sigma2 = jnp.nan_to_num(stats["sigma2"], nan=jnp.inf)
        return jnp.stack([acceptance, 1 - jnp.minimum(sigma2 / self.target_sigma2, 10.0)])

    def check(self, posterior: AbstractPosterior) -> None:
        if self.sampling == "disjoint" and self.num_used > posterior.num_data:
            raise UsageError(
                f"--sampler.batch-size x --sampler.num-batches: {self.num_used} different data a step, but there are "
                f"{posterior.num_data}; use fewer, or --sampler.sampling replacement"
            )

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> float:
        del posterior, means
        return self.num_used * (4.0 if self.proposal == "langevin" else 2.0)

    def verdict(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> str:
        """The guard: is the noise where the penalty is worth its name?"""
        sigma2, acceptance = means["sigma2"], means["acceptance_rate"]
        eta = means["step_size"]
        if not sigma2 <= 2:
            share = 0.0 if self.sampling == "replacement" else 1 / posterior.num_data
            used = 1 / (share + (1 / self.num_used - share) * 1.5 / sigma2)
            batches = -(-used // self.batch_size)
            shrink = (1.5 / sigma2) ** (0.5 if self.proposal == "random-walk" else 1.0)
            return (
                f"mean sigma2 {sigma2:.2g}, trusted up to 2; use --sampler.num-batches {batches:.0f}, a longer "
                f"--warmup, or --sampler.step-size {eta * shrink:.2g} with --warmup 0"
            )
        if means["regime_dof"] > 0.01:
            return (
                f"{means['regime_dof']:.1%} of steps have sigma2 > dof/4, where the correction means nothing; "
                "use --sampler.variance pooled, or more --sampler.num-batches"
            )
        if means["regime_skew"] > 0.5:
            return (
                "the differences are so skewed that most steps are biased by more than 0.05 "
                f"(|skewness| sigma^3 / 6); use a larger --sampler.batch-size than {self.batch_size}"
            )
        if acceptance < 0.01:
            return f"acceptance {acceptance:.2%}; use a --sampler.step-size below {eta:.2g}, or a longer --warmup"
        return ""


def noise_penalty(sigma2: Float[Array, ""], dof: Any, terms: int) -> Float[Array, ""]:
    """u = -log of the function of an estimated variance whose mean is exp(-sigma^2/2), to `terms` terms.

    Ceperley and Dewing 1999, equation 42: -log 0F1(; dof/2; -dof sigma2 / 4). Beyond sigma2 = dof/4 the closed form
    is meaningless and the truncated series, positive and finite, is used as it stands.
    """
    m = dof + 1.0
    series = (sigma2 / 2, sigma2**2 / (4 * (m + 1)), sigma2**3 / (3 * (m + 1) * (m + 3)))
    return sum(series[:terms], start=jnp.zeros_like(sigma2))
