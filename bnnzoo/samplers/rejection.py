"""Rejection sampling from the prior."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Le
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.kernel import choose
from bnnzoo.samplers.statistics import ACCEPTED, DIVERGING, LOG_DENSITY, N_STEPS, Statistic

_PILOT = 2**14
"""Proposals of the pilot at most; fewer where a proposal looks at many data."""
_PILOT_ELEMENTS = 2**22
_FEWEST = 20.0
"""Acceptances that `max_proposals` proposals must promise: with fewer the run would end before its last draw."""


class RejectionState(eqx.Module):
    position: Float[Array, " dim"]
    bounds: Float[Array, " num_data"]


class Rejection(AbstractSampler[RejectionState]):
    """Independent draws from the posterior: theta ~ prior, kept with probability (L(theta) / L_max)^beta.

    von Neumann 1951. log L / L_max = sum_i (l_i(theta) - m_i), with m_i the largest that
    the likelihood of datum i can be at any theta: only likelihoods with such a bound can be used. A step proposes
    until one is accepted; after `max_proposals` proposals the run ends with an error, and no draw is made up.
    """

    exactness: ClassVar[Exactness] = "exact"
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, ACCEPTED, DIVERGING, N_STEPS)

    block: Annotated[int, Ge(1), Doc("proposals looked at together")] = 64
    max_proposals: Annotated[int, Ge(1), Le(10**9), Doc("proposals for a draw, after which the run ends")] = 1_000_000

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> RejectionState:
        del num_warmup, key
        return RejectionState(theta, posterior.over_data(posterior.log_likelihood_bounds))

    def step(
        self, posterior: AbstractPosterior, state: RejectionState, *, key: PRNGKeyArray
    ) -> tuple[RejectionState, Stats]:
        zero = jnp.zeros((), state.position.dtype)

        def searching(carry: Any) -> Bool[Array, ""]:
            tried, accepted, _, _ = carry
            return ~accepted & (tried < self.max_proposals)

        def propose(carry: Any) -> Any:
            tried, _, _, _ = carry
            thetas, log_ratios, accepted = _proposals(
                posterior, state.bounds, self.block, key=jax.random.fold_in(key, tried)
            )
            # The first in order: which one is taken must not depend on anything but acceptance.
            first = jnp.argmax(accepted)
            return (
                tried + jnp.where(accepted[first], first + 1, self.block),
                accepted[first],
                thetas[first],
                log_ratios[first],
            )

        start = (jnp.zeros((), jnp.int32), jnp.zeros((), bool), state.position, zero)
        tried, accepted, theta, log_ratio = jax.lax.while_loop(searching, propose, start)
        position = choose(accepted, theta, state.position)
        return RejectionState(position, state.bounds), {
            "lp": posterior.log_prior(position) + log_ratio + posterior.likelihood_power * jnp.sum(state.bounds),
            "accepted": accepted,
            "diverging": ~jnp.isfinite(log_ratio),
            "n_steps": tried,
        }

    def failure(self, stats: dict[str, np.ndarray]) -> str:
        short = np.argwhere(~(stats["accepted"] >= 1))
        if not len(short):
            return ""
        return (
            f"chain {short[0][0]}: none of {self.max_proposals} proposals was accepted; use a larger "
            "--sampler.max-proposals, or nuts: rejection is for few data"
        )

    def check(self, posterior: AbstractPosterior) -> None:
        bounds = _bounds(posterior)
        if not math.isfinite(bounds):
            raise UsageError(
                "sampler rejection: this likelihood has no upper bound; fix its scale (--likelihood.scale 0.1), "
                "or use importance or nuts"
            )
        proposals = int(min(_PILOT, max(64, _PILOT_ELEMENTS // posterior.num_data)))
        log10 = float(_pilot(posterior, proposals, jax.random.key(0))) / math.log(10)
        if log10 + math.log10(self.max_proposals) < math.log10(_FEWEST):
            rate = f"{10**log10:.1e}" if log10 > -30 else f"1e{log10:.0f}"
            raise UsageError(
                f"sampler rejection: a draw of the prior is accepted with probability {rate} (estimated from "
                f"{proposals}), and --sampler.max-proposals is {self.max_proposals}; use nuts, fewer data, "
                "or a narrower prior"
            )


def _proposals(
    posterior: AbstractPosterior, bounds: Float[Array, " num_data"], count: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "count dim"], Float[Array, " count"], Bool[Array, " count"]]:
    """Draws of the prior, log (L / L_max)^beta of each, and whether it is accepted."""

    def one(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        key_draw, key_accept = jax.random.split(key)
        theta = posterior.sample_prior(key=key_draw)
        log_ratio = posterior.likelihood_power * jnp.sum(posterior.log_likelihoods(theta) - bounds)
        return theta, log_ratio, -jax.random.exponential(key_accept, dtype=log_ratio.dtype) < log_ratio

    return jax.vmap(one)(jax.random.split(key, count))


@eqx.filter_jit
def _bounds(posterior: AbstractPosterior) -> Float[Array, ""]:
    return jnp.sum(posterior.over_data(posterior.log_likelihood_bounds))


@eqx.filter_jit
def _pilot(posterior: AbstractPosterior, count: int, key: PRNGKeyArray) -> Float[Array, ""]:
    """The log of the mean acceptance probability of so many proposals."""
    bounds = posterior.over_data(posterior.log_likelihood_bounds)
    keys = jax.random.split(key, count // 64)
    log_ratios = jax.lax.map(lambda k: _proposals(posterior, bounds, 64, key=k)[1], keys)
    return jax.scipy.special.logsumexp(jnp.nan_to_num(log_ratios, nan=-jnp.inf)) - jnp.log(log_ratios.size)
