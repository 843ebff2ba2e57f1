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
from bnnzoo.samplers.base import AbstractSampler, Exactness, Stats
from bnnzoo.samplers.independent import proposals
from bnnzoo.samplers.statistics import DIVERGING, LOG_DENSITY, Statistic


class ImportanceState(eqx.Module):
    """State of a chain: its latest draw, and the fitted proposal if there is one."""

    position: Float[Array, " dim"]
    fit: proposals.Gaussian | None = None


class Importance(AbstractSampler[ImportanceState]):
    """Independent draws from a proposal q. Weighted averages of the draws estimate averages over the posterior.

    Owen, Monte Carlo theory, chapter 9. Let beta be the likelihood power and l_i the log-likelihood of datum i. A draw
    theta ~ q has the weight w, whose logarithm is the statistic `log_weight`:

        log w = log prior(theta) + beta sum_i l_i(theta) - log q(theta)

    There are three kinds of proposals: the prior, a Gaussian, and, in Python, a user's density with `sample` and
    `log_prob`. If q is the prior, the density of the prior cancels in the weight. The Gaussian is fitted to the
    posterior by each chain before its first draw.

    The posterior expectation of a function f is estimated by sum_s w_s f(theta_s) / sum_s w_s. This estimate is
    consistent, but has a bias of O(1 / draws), so the method is approximate. The draws themselves are from q, not from
    the posterior: their averages must be weighted. The mean of w is an unbiased estimate of the evidence.
    """

    exactness: ClassVar[Exactness] = "approximate"
    statistics: ClassVar[tuple[Statistic, ...]] = (LOG_DENSITY, DIVERGING, Statistic("log_weight"))
    guarded: ClassVar[bool] = True
    """True, because the weights of a failed run have a heavy tail. The run tests the tail of all chains' weights."""

    proposal: Annotated[
        proposals.NamedProposal | proposals.Density,
        Doc("prior; gaussian: mean and covariance of a pilot chain; laplace: Gaussian at the mode, with its curvature"),
    ] = "prior"
    proposal_scale: Annotated[
        Number, Gt(0), Doc("factor by which the standard deviations of a fitted proposal are multiplied")
    ] = number(1.1)
    pilot: Annotated[int, Ge(100), Doc("for proposal gaussian: number of steps of the pilot chain")] = 4000

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> ImportanceState:
        """Fit the proposal if it is a Gaussian, and return the state."""
        del num_warmup
        fit = proposals.fit_proposal(
            self.proposal, posterior, theta, scale=self.proposal_scale, pilot=self.pilot, key=key
        )
        return ImportanceState(theta, fit)

    def step(
        self, posterior: AbstractPosterior, state: ImportanceState, *, key: PRNGKeyArray
    ) -> tuple[ImportanceState, Stats]:
        """Draw from the proposal and compute the weight."""
        density = proposals.proposal_density(self.proposal, state.fit)
        theta = proposals.draw(posterior, density, key=key)
        log_likelihood = posterior.likelihood_power * jnp.sum(posterior.log_likelihoods(theta))
        log_weight = log_likelihood + proposals.log_prior_ratio(posterior, density, theta)
        finite = jnp.isfinite(log_weight)
        return ImportanceState(theta, state.fit), {
            "lp": posterior.log_prior(theta) + jnp.where(finite, log_likelihood, -jnp.inf),
            "log_weight": jnp.where(finite, log_weight, -jnp.inf),
            "diverging": ~finite,
        }

    def check(self, posterior: AbstractPosterior) -> None:
        """Refuse a proposal distribution that cannot be used.

        Raises:
            UsageError: if no draw from the prior is possible, if there are too many parameters for a fitted Gaussian,
                or if a draw of a user's density has a wrong shape.
        """
        proposals.check(self.proposal, posterior, "importance")
