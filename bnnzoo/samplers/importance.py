"""Self-normalised importance sampling from the prior."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.statistics import DIVERGING, LOG_DENSITY, Statistic


class ImportanceState(eqx.Module):
    position: Float[Array, " dim"]


class Importance(AbstractSampler[ImportanceState]):
    """Independent draws of the prior, with weights that make their averages those of the posterior.

    Owen, Monte Carlo theory, chapter 9. theta ~ prior, log w = beta sum_i l_i(theta)
    (the statistic `log_weight`, without its constant). E f is estimated by sum_s w_s f(theta_s) / sum_s w_s, which is
    right for many draws and biased by O(1 / draws): approximate. A draw without its weight is a draw of the prior.
    """

    exactness: ClassVar[Exactness] = "approximate"
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, DIVERGING, Statistic("log_weight"))

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> ImportanceState:
        del posterior, num_warmup, key
        return ImportanceState(theta)

    def step(
        self, posterior: AbstractPosterior, state: ImportanceState, *, key: PRNGKeyArray
    ) -> tuple[ImportanceState, Stats]:
        del state
        theta = posterior.sample_prior(key=key)
        log_weight = posterior.likelihood_power * jnp.sum(posterior.log_likelihoods(theta))
        finite = jnp.isfinite(log_weight)
        log_weight = jnp.where(finite, log_weight, -jnp.inf)
        return ImportanceState(theta), {
            "lp": posterior.log_prior(theta) + log_weight,
            "log_weight": log_weight,
            "diverging": ~finite,
        }

    @property
    def guarded(self) -> bool:
        """By the tail of its weights, which are judged together."""
        return True

    def check(self, posterior: AbstractPosterior) -> None:
        eqx.filter_eval_shape(posterior.sample_prior, key=jax.random.key(0))
