"""Self-normalised importance sampling."""

from __future__ import annotations

from typing import Annotated, ClassVar

import equinox as eqx
import jax.numpy as jnp
from annotated_types import Ge, Gt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers import _proposal
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.statistics import DIVERGING, LOG_DENSITY, Statistic


class ImportanceState(eqx.Module):
    position: Float[Array, " dim"]
    fit: _proposal.Gaussian | None = None


class Importance(AbstractSampler[ImportanceState]):
    """Independent draws of a proposal q, with weights that make their averages those of the posterior.

    Owen, Monte Carlo theory, chapter 9. theta ~ q, log w = log prior(theta) + beta sum_i l_i(theta) - log q(theta)
    (the statistic `log_weight`); q is the prior, which then cancels, a Gaussian fitted to the posterior before the
    first draw, each chain's own, or in Python a density of one's own (`sample`, `log_prob`). E f is estimated by
    sum_s w_s f(theta_s) / sum_s w_s, which is right for many draws and biased by O(1 / draws): approximate. A draw
    without its weight is a draw of q. The mean of w estimates the evidence without bias.
    """

    exactness: ClassVar[Exactness] = "approximate"
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, DIVERGING, Statistic("log_weight"))

    proposal: Annotated[
        _proposal.Named | _proposal.Density,
        Doc("what is drawn from: the prior, the moments of a pilot, or the curvature at a mode"),
    ] = "prior"
    proposal_scale: Annotated[Number, Gt(0), Doc("standard deviations of a fitted proposal, over those fitted")] = (
        number(1.1)
    )
    pilot: Annotated[int, Ge(100), Doc("steps of the chain that proposal gaussian is fitted to")] = 4000

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> ImportanceState:
        del num_warmup
        fit = _proposal.fitted(self.proposal, posterior, theta, scale=self.proposal_scale, pilot=self.pilot, key=key)
        return ImportanceState(theta, fit)

    def step(
        self, posterior: AbstractPosterior, state: ImportanceState, *, key: PRNGKeyArray
    ) -> tuple[ImportanceState, Stats]:
        density = _proposal.density_of(self.proposal, state.fit)
        theta = _proposal.draw(posterior, density, key=key)
        log_likelihood = posterior.likelihood_power * jnp.sum(posterior.log_likelihoods(theta))
        log_weight = log_likelihood + _proposal.log_prior_ratio(posterior, density, theta)
        finite = jnp.isfinite(log_weight)
        return ImportanceState(theta, state.fit), {
            "lp": posterior.log_prior(theta) + jnp.where(finite, log_likelihood, -jnp.inf),
            "log_weight": jnp.where(finite, log_weight, -jnp.inf),
            "diverging": ~finite,
        }

    @property
    def guarded(self) -> bool:
        """By the tail of its weights, which are judged together."""
        return True

    def check(self, posterior: AbstractPosterior) -> None:
        _proposal.check(self.proposal, posterior, "importance")
