"""Metropolis within Gibbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Gt, Lt
from jaxtyping import Array, Float, Int, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.posterior.layout import Layout
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.kernel import choose, metropolis, standard_normal
from bnnzoo.samplers.statistics import LOG_DENSITY, METROPOLIS, Statistic

Blocks = Literal["layer", "array", "coordinate"]


class GibbsState(eqx.Module):
    position: Float[Array, " dim"]
    log_prior: Float[Array, ""]
    log_likelihoods: Float[Array, " num_data"]
    scales: Float[Array, " block"]
    """The proposal's standard deviation of each block."""
    count: Float[Array, ""]


class Gibbs(AbstractSampler[GibbsState]):
    """Draws from the posterior. A step goes through the blocks of theta in order, each by one random-walk Metropolis.

    Tierney 1994, section 2.4. For every block b in turn: theta' = theta but
    theta'_b = theta_b + eta_b eps, accepted with min(1, e^-Delta) over all data. Warm-up moves each log eta_b by
    t^-0.6 (acceptance - target) (Robbins and Monro 1951), then they are fixed.
    """

    exactness: ClassVar[Exactness] = "exact"
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, *METROPOLIS)

    blocks: Annotated[Blocks, Doc("what moves together: a layer, one array (weights or bias), or one number")] = "layer"
    step_size: Annotated[Number, Gt(0), Doc("eta of every block at the start")] = number(0.01)
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("acceptance that warm-up tunes each eta to")] = number(0.35)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> GibbsState:
        del num_warmup, key
        number_of_blocks = int(self.members(posterior.layout)[-1]) + 1
        return GibbsState(
            theta,
            posterior.log_prior(theta),
            posterior.log_likelihoods(theta),
            jnp.full((number_of_blocks,), self.step_size, theta.dtype),
            jnp.zeros((), theta.dtype),
        )

    def members(self, layout: Layout) -> Int[np.ndarray, " dim"]:
        """The number of the block that each coordinate is in, from 0."""
        if self.blocks == "coordinate":
            return np.arange(layout.dim)
        if self.blocks == "layer":
            return layout.layer_index()
        return np.repeat(np.arange(len(layout.blocks)), [block.size for block in layout.blocks])

    def warmup_step(
        self, posterior: AbstractPosterior, state: GibbsState, *, key: PRNGKeyArray
    ) -> tuple[GibbsState, Stats]:
        state, stats, rates = self._sweep(posterior, state, key=key)
        count = state.count + 1
        scales = state.scales * jnp.exp(count**-0.6 * (rates - self.target_acceptance))
        return eqx.tree_at(lambda s: (s.scales, s.count), state, (scales, count)), stats

    def step(self, posterior: AbstractPosterior, state: GibbsState, *, key: PRNGKeyArray) -> tuple[GibbsState, Stats]:
        state, stats, _ = self._sweep(posterior, state, key=key)
        return state, stats

    def headroom(self, stats: Stats) -> Float[Array, " constraint"]:
        """None: a sweep adapts its own."""
        del stats
        return jnp.zeros((0,))

    def _sweep(
        self, posterior: AbstractPosterior, state: GibbsState, *, key: PRNGKeyArray
    ) -> tuple[GibbsState, Stats, Float[Array, " block"]]:
        members = jnp.asarray(self.members(posterior.layout))

        def visit(carry: Any, block: Int[Array, ""]) -> Any:
            theta, log_prior, log_likelihoods = carry
            key_propose, key_accept = jax.random.split(jax.random.fold_in(key, block))
            eps = jnp.where(members == block, standard_normal(theta, key=key_propose), 0.0)
            proposal = theta + state.scales[block] * eps
            new_prior, new_likelihoods = posterior.log_prior(proposal), posterior.log_likelihoods(proposal)
            change = jnp.sum(new_likelihoods - log_likelihoods)
            log_ratio = new_prior - log_prior + posterior.likelihood_power * change
            accepted, rate, diverging = metropolis(log_ratio, key=key_accept)
            return choose(accepted, (proposal, new_prior, new_likelihoods), carry), (accepted, rate, diverging)

        number_of_blocks = state.scales.shape[0]
        start = (state.position, state.log_prior, state.log_likelihoods)
        end, (accepted, rates, diverging) = jax.lax.scan(visit, start, jnp.arange(number_of_blocks))
        theta, log_prior, log_likelihoods = end
        return (
            GibbsState(theta, log_prior, log_likelihoods, state.scales, state.count),
            {
                "lp": log_prior + posterior.likelihood_power * jnp.sum(log_likelihoods),
                "accepted": jnp.any(accepted),
                "acceptance_rate": jnp.mean(rates),
                "diverging": jnp.any(diverging),
                "step_size": jnp.mean(state.scales),
            },
            rates,
        )

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> float:
        del means
        return posterior.num_data * (int(self.members(posterior.layout)[-1]) + 1.0)
