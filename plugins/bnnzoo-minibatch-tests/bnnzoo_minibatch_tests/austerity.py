"""Metropolis by a sequential t test: decide on as few rows as seem enough."""

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
"""Degrees of freedom beyond which Student's t is taken for a normal law; its tail is then right to four digits."""


class Austerity(AbstractSequentialTest):
    """Draws near the posterior: Metropolis whose decision is a sequential t test on a growing batch.

    Korattikara, Chen and Welling 2014 (arXiv 1304.5299). Metropolis accepts where the log ratio D > log u. With its
    estimate on K rows, none twice, of standard error s,

        t = (D_batch - log u) / s,   stop where P(T_{K-1} > |t|) < error,   accept where D_batch > log u,

    and else n more rows are taken; with all of them the decision is Metropolis' own. Biased: a decision is wrong with
    about the probability `error`, more where the test is asked many times, and most where D is near log u. The
    statistic `test_error` is P(T > |t|) where it stopped.
    """

    exactness: ClassVar[Exactness] = "biased"

    error: Annotated[Number, Gt(0), Lt(0.5), Doc("of a decision: where P(T > |t|) falls below, it is made")] = number(
        0.05
    )

    def enough(self, estimate: Estimate, u: Float[Array, ""]) -> Bool[Array, ""]:
        return _tail(estimate, u) < self.error

    def judge(self, estimate: Estimate, u: Float[Array, ""]) -> Verdict:
        accepted = estimate.log_ratio > jnp.log(u)
        return Verdict(accepted, accepted.astype(u.dtype), _tail(estimate, u))


def _tail(estimate: Estimate, u: Float[Array, ""]) -> Float[Array, ""]:
    """P(T > |t|) of Student's t with K - 1 degrees of freedom; 0 where there is no noise.

    Of many, by the normal law (Abramowitz and Stegun 1964, 26.7.8): float32 has no incomplete beta function there.
    """
    dof = jnp.maximum(estimate.seen - 1, 1.0)
    square = (estimate.log_ratio - jnp.log(u)) ** 2
    noise = dof * estimate.sigma2
    share = jnp.where(jnp.isfinite(square), noise / jnp.maximum(noise + square, jnp.finfo(u.dtype).tiny), 0.0)
    tiny = jnp.finfo(u.dtype).tiny
    normal = (1 - 1 / (4 * dof)) * jnp.sqrt(square / jnp.maximum(estimate.sigma2 + square / (2 * dof), tiny))
    many = jnp.where(jnp.isfinite(square), ndtr(-normal), 0.0)
    return jnp.where(dof > _MANY, many, betainc(jnp.minimum(dof, _MANY) / 2, 0.5, share) / 2)
