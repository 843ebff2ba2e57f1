"""Metropolis with a sequential t test, which uses only as many rows as the test requires."""

from __future__ import annotations

from typing import Annotated, ClassVar

import jax.numpy as jnp
from annotated_types import Gt, Lt
from jax.scipy.special import betainc, ndtr
from jaxtyping import Array, Bool, Float
from typing_extensions import Doc

from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Exactness
from bnnzoo_minibatch_tests.growing_batch import Estimate
from bnnzoo_minibatch_tests.sequential_test import AbstractSequentialTest, Verdict

_MANY = 500.0
"""Degrees of freedom beyond which a normal tail replaces the tail of Student's t, with an accuracy of four digits."""


class Austerity(AbstractSequentialTest):
    """Draws near the posterior: Metropolis with a sequential t test on a growing batch.

    Korattikara, Chen and Welling 2014 (arXiv 1304.5299). Metropolis accepts if the log acceptance ratio D exceeds
    log u, where u is uniform on [0, 1). Let D_batch be the estimate of D from K distinct rows, and s the standard error
    of D_batch. With a Student's t variable T_{K-1},

        t = (D_batch - log u) / s,   stop if P(T_{K-1} > |t|) < error,   accept if D_batch > log u.

    If the test does not stop, n = batch_size more rows are added. With all rows, the test decides as Metropolis does.
    The draws are biased: a decision is wrong with a probability of about `error`. This probability grows with the
    number of tests in a step, and is largest if D is near log u. The statistic `test_error` is P(T > |t|) at the test
    that stops.
    """

    exactness: ClassVar[Exactness] = "biased"

    error: Annotated[Number, Gt(0), Lt(0.5), Doc("error of a decision: the test stops if P(T > |t|) is smaller")] = (
        number(0.05)
    )

    def is_enough(self, estimate: Estimate, u: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether P(T > |t|) is below `error`, so that the test stops."""
        return _tail(estimate, u) < self.error

    def decide(self, estimate: Estimate, u: Float[Array, ""]) -> Verdict:
        """Accept if the estimated log acceptance ratio exceeds log u."""
        accepted = estimate.log_ratio > jnp.log(u)
        return Verdict(accepted, accepted.astype(u.dtype), _tail(estimate, u))


def _tail(estimate: Estimate, u: Float[Array, ""]) -> Float[Array, ""]:
    """Return P(T > |t|) of `Austerity` for Student's t with K - 1 degrees of freedom; 0 if there is no noise.

    For many degrees of freedom, the function uses a normal approximation (Abramowitz and Stegun 1964, 26.7.8), because
    the float32 incomplete beta function fails there.
    """
    dof = jnp.maximum(estimate.num_seen - 1, 1.0)
    square = (estimate.log_ratio - jnp.log(u)) ** 2
    noise = dof * estimate.sigma2
    noise_fraction = jnp.where(jnp.isfinite(square), noise / jnp.maximum(noise + square, jnp.finfo(u.dtype).tiny), 0.0)
    tiny = jnp.finfo(u.dtype).tiny
    normal_score = (1 - 1 / (4 * dof)) * jnp.sqrt(square / jnp.maximum(estimate.sigma2 + square / (2 * dof), tiny))
    normal_tail = jnp.where(jnp.isfinite(square), ndtr(-normal_score), 0.0)
    return jnp.where(dof > _MANY, normal_tail, betainc(jnp.minimum(dof, _MANY) / 2, 0.5, noise_fraction) / 2)
