"""Metropolis with a concentration bound: the batch grows until the bound excludes one of the two decisions."""

from __future__ import annotations

from typing import Annotated, ClassVar

import jax.numpy as jnp
from annotated_types import Gt, Lt
from jaxtyping import Array, Bool, Float
from typing_extensions import Doc

from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Exactness
from bnnzoo_minibatch_tests.growing_batch import Estimate
from bnnzoo_minibatch_tests.sequential_test import AbstractSequentialTest, Verdict

_KAPPA = 7 / 3 + 3 / 2**0.5


class Confidence(AbstractSequentialTest):
    """Draws near the posterior: Metropolis on a batch that grows until a concentration bound permits a decision.

    Bardenet, Doucet and Holmes 2014 (ICML), with the empirical Bernstein-Serfling bound for rows drawn without
    replacement (Bardenet and Maillard 2015, arXiv 1309.4029, theorem 3). Metropolis accepts if the log acceptance ratio
    D exceeds log u, where u is uniform on [0, 1). Let D_batch be the estimate of D from the batch, beta the likelihood
    power, and d_i the change of row i's log-likelihood. At the j-th test of a step, with K rows of N,

        c = s sqrt(2 r l / K) + (7/3 + 3/sqrt(2)) R l / K,   l = log(5 / error_j),   error_j = error / (j (j + 1)),

    where s is the standard deviation and R the range of the terms N beta d_i, and r = 1 - (K - 1)/N, or
    (1 - K/N)(1 + 1/K) if K > N/2. If |D_batch - log u| >= c, the test decides. Otherwise the batch grows by
    n = batch_size rows, until it contains all rows. The draws are biased. If R were the range over all rows, a decision
    would be wrong with a probability of at most `error`. The range over all rows would cost a pass over the data, so R
    is the range over the batch. The statistic `test_error` is `error`, or 0 if all rows were used.
    """

    exactness: ClassVar[Exactness] = "biased"

    error: Annotated[
        Number,
        Gt(0),
        Lt(1),
        Doc("allowed probability of a wrong decision in a step, for all its tests together"),
    ] = number(0.1)

    def is_enough(self, estimate: Estimate, u: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether the estimated log acceptance ratio differs from log u by at least the bound c."""
        return jnp.abs(estimate.log_ratio - jnp.log(u)) >= self._bound(estimate)

    def decide(self, estimate: Estimate, u: Float[Array, ""]) -> Verdict:
        """Accept if the estimated log acceptance ratio exceeds log u."""
        accepted = estimate.log_ratio > jnp.log(u)
        error = jnp.where(estimate.num_seen < estimate.total, jnp.asarray(self.error, u.dtype), 0.0)
        return Verdict(accepted, accepted.astype(u.dtype), error)

    def _bound(self, estimate: Estimate) -> Float[Array, ""]:
        num_seen, total = estimate.num_seen, estimate.total
        num_tests = estimate.num_tests.astype(num_seen.dtype)
        level = jnp.log(5 * num_tests * (num_tests + 1) / self.error)
        # sigma2 is s^2 / K (1 - K / N), where s^2 has the denominator K - 1. The variance in the bound has K instead.
        unseen_fraction = 1 - num_seen / total
        ratio = jnp.where(2 * num_seen <= total, 1 - (num_seen - 1) / total, unseen_fraction * (1 + 1 / num_seen))
        variance = estimate.sigma2 / jnp.maximum(unseen_fraction, 1e-12) * (1 - 1 / num_seen)
        return jnp.sqrt(2 * ratio * variance * level) + _KAPPA * estimate.width * level / num_seen
