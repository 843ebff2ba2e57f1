"""Rejection sampling."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Gt, Le
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.finding import setting
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, as_number, number
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.independent import proposals as _proposal
from bnnzoo.samplers.kernel import choose, replace
from bnnzoo.samplers.statistics import ACCEPTED, DIVERGING, LOG_DENSITY, N_STEPS, Statistic

_PILOT = 2**14
"""Largest number of proposals from which `check` estimates the acceptance probability; fewer if there are many data."""
_PILOT_ELEMENTS = 2**22
_FEWEST = 20.0
"""Smallest expected number of acceptances in `max_proposals` proposals.

If fewer acceptances were expected, a run would probably fail at some draw.
"""
_SEARCH, _CLIMBERS = 4096, 8
_MARGIN = 0.01
"""Safety margin that is added to log k after a search. It reduces the acceptance probability by 1 %."""
_ROUNDING = 1e-3
"""Tolerance: the log ratio of a proposal may exceed log k by this much, because a float32 sum has rounding errors."""


class RejectionState(eqx.Module):
    """State of a chain: its latest draw, the bound k, and the fitted proposal if there is one.

    The bound k is an upper limit of prior x likelihood^beta / q, where q is the density of the proposals and beta is
    the likelihood power. It is stored in two parts: log k = log_bound + beta sum_i bounds_i.
    """

    position: Float[Array, " dim"]
    bounds: Float[Array, " num_data"]
    """Upper bound of each datum's log-likelihood; 0 if k does not come from these bounds."""
    log_bound: Float[Array, ""]
    excess: Float[Array, ""]
    """Largest log(prior x likelihood^beta / (k q)) over all proposals so far. It exceeds 0 if k is too small."""
    fit: _proposal.Gaussian | None


class Rejection(AbstractSampler[RejectionState]):
    """Independent draws from the posterior: theta ~ q, accepted with probability prior L^beta / (k q).

    von Neumann 1951. L is the likelihood, and beta is its power. There are three kinds of proposals q: the prior, a
    Gaussian, and, in Python, a user's density with `sample` and `log_prob`. The Gaussian is fitted to the posterior by
    each chain before its first draw. The bound k must be at least as large as the ratio prior L^beta / q at every
    theta. There are three ways to determine k:

    - If the prior is the proposal, k is a proved bound. log k is beta times a sum over the data. Each term is the
      largest log-likelihood that the datum has at any theta. The likelihood must have such a maximum.
    - The user can set log k (`log_bound`).
    - Otherwise a search estimates log k. It is the largest log ratio among 4096 proposals and at the ends of ascents
      from the 8 best of them. The ratio may be larger elsewhere, so the draws are approximate.

    Every proposal is compared with k, whether or not it is used. If the ratio of a proposal is larger than k, the run
    ends with an error that states the excess. A step proposes until one proposal is accepted. If none of
    `max_proposals` proposals is accepted, the run ends with an error.
    """

    exactness: ClassVar[Exactness] = "exact"
    chain_state: ClassVar[tuple[str, ...]] = ("excess",)
    statistics: ClassVar[tuple[Statistic, ...]] = (
        *(LOG_DENSITY, ACCEPTED, DIVERGING, N_STEPS),
        Statistic("log_bound"),
        Statistic("log_excess"),
    )

    block: Annotated[int, Ge(1), Doc("number of proposals that are evaluated together")] = 64
    max_proposals: Annotated[
        int,
        Ge(1),
        Le(10**9),
        Doc("largest number of proposals per draw; if all are rejected, the run fails"),
    ] = 1_000_000
    proposal: Annotated[
        _proposal.NamedProposal | _proposal.Density,
        Doc("prior; gaussian: mean and covariance of a pilot chain; laplace: Gaussian at the mode, with its curvature"),
    ] = "prior"
    log_bound: Annotated[
        Number | Literal["auto"], Doc("log of the bound k; auto: proved for proposal prior, estimated for the others")
    ] = eqx.field(converter=as_number, default="auto")
    proposal_scale: Annotated[
        Number, Gt(0), Doc("factor by which the standard deviations of a fitted proposal are multiplied")
    ] = number(1.1)
    pilot: Annotated[int, Ge(100), Doc("for proposal gaussian: number of steps of the pilot chain")] = 4000

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> RejectionState:
        """Fit the proposal if it is a Gaussian, and determine the bound."""
        del num_warmup
        key_fit, key_bound = jax.random.split(key)
        fit = _proposal.fit_proposal(
            self.proposal, posterior, theta, scale=self.proposal_scale, pilot=self.pilot, key=key_fit
        )
        zero = jnp.zeros((), theta.dtype)
        state = RejectionState(theta, jnp.zeros(posterior.num_data, theta.dtype), zero, zero - jnp.inf, fit)
        if not isinstance(self.log_bound, str):
            return replace(state, log_bound=zero + self.log_bound)
        if self._is_bound_proved:
            return replace(state, bounds=posterior.over_data(posterior.log_likelihood_bounds))
        return replace(state, log_bound=_largest_log_ratio(self, posterior, state, key=key_bound) + _MARGIN)

    def step(
        self, posterior: AbstractPosterior, state: RejectionState, *, key: PRNGKeyArray
    ) -> tuple[RejectionState, Stats]:
        """Make proposals until one of them is accepted, or until `max_proposals` proposals are rejected."""
        zero = jnp.zeros((), state.position.dtype)

        def is_searching(carry: Any) -> Bool[Array, ""]:
            num_tries, accepted, *_ = carry
            return ~accepted & (num_tries < self.max_proposals)

        def propose(carry: Any) -> Any:
            num_tries, _, _, _, excess = carry
            thetas, log_ratios, accepted = _proposals(
                self, posterior, state, self.block, key=jax.random.fold_in(key, num_tries)
            )
            # Take the first accepted proposal. A choice that depends on the values of the proposals would be biased.
            first_accepted = jnp.argmax(accepted)
            new_tries = jnp.where(accepted[first_accepted], first_accepted + 1, self.block)
            return (
                num_tries + new_tries.astype(num_tries.dtype),  # in double precision JAX's integers are 64-bit
                accepted[first_accepted],
                thetas[first_accepted],
                log_ratios[first_accepted],
                jnp.maximum(excess, jnp.max(jnp.nan_to_num(log_ratios, nan=-jnp.inf))),
            )

        start = (jnp.zeros((), jnp.int32), jnp.zeros((), bool), state.position, zero, state.excess)
        num_tries, accepted, theta, log_ratio, excess = jax.lax.while_loop(is_searching, propose, start)
        position = choose(accepted, theta, state.position)
        log_bound = state.log_bound + posterior.likelihood_power * jnp.sum(state.bounds)
        log_prior_ratio = _proposal.log_prior_ratio(posterior, self.density(state), position)
        return replace(state, position=position, excess=excess), {
            "lp": posterior.log_prior(position) + log_ratio + log_bound - log_prior_ratio,
            "accepted": accepted,
            "diverging": ~jnp.isfinite(log_ratio),
            "n_steps": num_tries,
            "log_bound": log_bound,
            "log_excess": excess,
        }

    def failure(self, stats: dict[str, np.ndarray]) -> str:
        """Return a message if a log ratio exceeded log k or if all proposals were rejected; else an empty string."""
        above_bound = np.argwhere(stats["log_excess"] > _ROUNDING)
        if len(above_bound):
            place = tuple(above_bound[0])
            bound, excess = float(stats["log_bound"][place]), float(stats["log_excess"][place])
            return (
                f"chain {place[0]}: the log ratio of a proposal exceeded the bound log k = {bound:.6g} by "
                f"{excess:.3g} nats, so the draws would not be from the posterior; use "
                f"{setting('sampler.log_bound', f'{bound + excess + _MARGIN:.6g}')} or more"
                f"{'' if self.proposal == 'prior' else ', or a wider proposal ([[sampler.proposal_scale]])'}"
            )
        unaccepted = np.argwhere(~(stats["accepted"] >= 1))
        if not len(unaccepted):
            return ""
        return (
            f"chain {unaccepted[0][0]}: none of {self.max_proposals} proposals was accepted; use a larger "
            "[[sampler.max_proposals]], fewer data, or the sampler nuts"
        )

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse a likelihood without upper bound, an unusable proposal, or a very small acceptance probability.

        Raises:
            UsageError: if there is no bound, if the proposal cannot be used, or if almost all draws would be rejected.
        """
        if self._is_bound_proved and not math.isfinite(_bounds(posterior)):
            raise UsageError(
                "sampler rejection: this likelihood has no upper bound; fix its scale "
                "([[likelihood.scale=0.1]]), give the log of a bound k ([[sampler.log_bound]]), use another "
                "[[sampler.proposal]], or use the sampler importance or nuts"
            )
        _proposal.check(self.proposal, posterior, "rejection")
        is_prior_proposal = isinstance(self.proposal, str) and self.proposal == "prior"
        proposals = int(min(_PILOT, max(64, _PILOT_ELEMENTS // posterior.num_data)))
        log10_rate = float(_pilot(self, posterior, proposals, jax.random.key(0))) / math.log(10)
        if log10_rate + math.log10(self.max_proposals) < math.log10(_FEWEST):
            rounded_rate = f"1e{log10_rate:.0f}" if log10_rate > -1000 else "0"
            rate = f"{10**log10_rate:.1e}" if log10_rate > -30 else rounded_rate
            raise UsageError(
                f"sampler rejection: a draw of the {'prior' if is_prior_proposal else 'proposal'} is accepted with "
                f"probability {rate} (estimated from {proposals} draws), which is too small for "
                f"{setting('sampler.max_proposals', self.max_proposals)}; use the sampler nuts, fewer data, "
                + ("or a narrower prior" if is_prior_proposal else "or another [[sampler.proposal_scale]]")
            )

    @property
    def stated_exactness(self) -> Exactness:
        """Exactness: `exact` if the bound is proved or set by the user, `approximate` if a search estimates it."""
        return "exact" if self._is_bound_proved or not isinstance(self.log_bound, str) else "approximate"

    @property
    def _is_bound_proved(self) -> bool:
        """Whether k is computed from the upper bounds of the likelihood: for proposal `prior` without `log_bound`."""
        return isinstance(self.log_bound, str) and isinstance(self.proposal, str) and self.proposal == "prior"

    def density(self, state: RejectionState) -> _proposal.Density | None:
        """Return the density q of the proposals; None for the prior."""
        return _proposal.proposal_density(self.proposal, state.fit)


def _proposals(
    sampler: Rejection, posterior: AbstractPosterior, state: RejectionState, count: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "count dim"], Float[Array, " count"], Bool[Array, " count"]]:
    """Return draws from q, log(prior L^beta / (k q)) of each draw, and whether each draw is accepted."""

    def draw_proposal(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        key_draw, key_accept, key_tail = jax.random.split(key, 3)
        theta = _proposal.draw(posterior, sampler.density(state), key=key_draw)
        log_ratio = _log_ratio(sampler, posterior, state, theta)
        uniforms = [jax.random.uniform(k, dtype=log_ratio.dtype) for k in (key_accept, key_tail)]
        return theta, log_ratio, _log_uniform(*uniforms) < log_ratio

    return jax.vmap(draw_proposal)(jax.random.split(key, count))


def _log_uniform(head: Float[Array, ""], tail: Float[Array, ""]) -> Float[Array, ""]:
    """Return the log of a uniform number in (0, 1) on a grid of 2^-46, from two uniform numbers on a grid of 2^-23.

    JAX draws float32 numbers on the grid of 2^-23. With this grid alone, acceptance probabilities below e^-13 would
    have visible rounding errors, and proposals with a probability below e^-16 would never be accepted. In float64 the
    grids are 2^-104 and 2^-52.
    """
    grid = jnp.finfo(head.dtype).eps
    return jnp.log((1 - head - grid) + grid * (1 - tail - grid / 2))


def _log_ratio(
    sampler: Rejection, posterior: AbstractPosterior, state: RejectionState, theta: Float[Array, " dim"]
) -> Float[Array, ""]:
    log_likelihood = posterior.likelihood_power * jnp.sum(posterior.log_likelihoods(theta) - state.bounds)
    return log_likelihood + _proposal.log_prior_ratio(posterior, sampler.density(state), theta) - state.log_bound


def _largest_log_ratio(
    sampler: Rejection, posterior: AbstractPosterior, state: RejectionState, *, key: PRNGKeyArray
) -> Float[Array, ""]:
    """Return the largest log(prior L^beta / (k q)) that a search finds, with the bound k in `state`.

    The search consists of `_SEARCH` proposals and of ascents from the best of them.
    """
    keys = jax.random.split(key, _SEARCH // 64)
    blocks = jax.lax.map(lambda k: _proposals(sampler, posterior, state, 64, key=k)[:2], keys)
    thetas, log_ratios = blocks[0].reshape(_SEARCH, -1), jnp.nan_to_num(blocks[1].reshape(-1), nan=-jnp.inf)
    best = jnp.argsort(-log_ratios)[:_CLIMBERS]
    ratio = partial(_log_ratio, sampler, posterior, state)
    tops = jax.vmap(lambda theta: ratio(_proposal.climb_by_newton(ratio, theta)))(thetas[best])
    return jnp.maximum(jnp.max(log_ratios), jnp.max(jnp.nan_to_num(tops, nan=-jnp.inf)))


@eqx.filter_jit
def _bounds(posterior: AbstractPosterior) -> Float[Array, ""]:
    return jnp.sum(posterior.over_data(posterior.log_likelihood_bounds))


@eqx.filter_jit
def _pilot(sampler: Rejection, posterior: AbstractPosterior, count: int, key: PRNGKeyArray) -> Float[Array, ""]:
    """Return the log of the mean acceptance probability of `count` proposals.

    If the proposal must be fitted, the fit begins at a random position.
    """
    state = sampler.init(posterior, posterior.start(key=key), num_warmup=0, key=key)
    keys = jax.random.split(key, count // 64)
    log_ratios = jax.lax.map(lambda k: _proposals(sampler, posterior, state, 64, key=k)[1], keys)
    return jax.scipy.special.logsumexp(jnp.minimum(jnp.nan_to_num(log_ratios, nan=-jnp.inf), 0.0)) - jnp.log(
        log_ratios.size
    )
