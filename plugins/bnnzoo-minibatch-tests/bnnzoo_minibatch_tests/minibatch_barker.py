"""Barker's acceptance test on mini-batches. The noise of the batch replaces a part of the test's random variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import jax.numpy as jnp
from annotated_types import Gt, Lt
from jaxtyping import Array, Bool, Float
from typing_extensions import Doc

from bnnzoo.finding import Finding, setting
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Exactness
from bnnzoo.samplers.minibatch import MIN_ACCEPTANCE
from bnnzoo_minibatch_tests.correction import ERROR, barker_rate
from bnnzoo_minibatch_tests.growing_batch import Estimate
from bnnzoo_minibatch_tests.sequential_test import AbstractSequentialTest, Verdict

MAX_ERROR = 0.004
"""Largest valid mean error of the acceptance probability.

At a probability of 1/2, this means an error of 0.016 in the log odds. The penalty sampler has a similar limit for the
log acceptance ratio (`bnnzoo.samplers.minibatch.MAX_SKEW_BIAS`).
"""

_FEWEST = 50
"""Smallest number of rows in a test.

The variance sigma2 is estimated. A test that stops when the estimate is small therefore selects batches with too small
an estimate. With at least this number of rows, the effect is one or two per cent of the log odds.
"""


class MinibatchBarker(AbstractSequentialTest):
    """Draws from the posterior, up to deviations of the noise from normality, by Barker's test on a growing batch.

    Seita, Pan, Chen and Canny 2017 (arXiv 1610.06848). Barker (1965) accepts with probability 1 / (1 + e^-D), where D
    is the log posterior ratio. This is equivalent to accepting if D + X > 0, where X is logistic. The noise of D_batch,
    a batch's estimate of D, is used as a part of X if the variance sigma2 of the noise is below 1:

        accept if D_batch + X_nc + X_corr > 0,   X_nc ~ N(0, 1 - sigma2),   N(0, 1) + X_corr logistic.

    Rows are added until there are 50 and sigma2 < 1. X_nc and X_corr are integrated out, which gives an acceptance
    probability (`correction.py`). For normal noise of known variance, this probability is exact up to an error of 2e-7
    of the correction. The statistic `test_error` is 2e-7 plus the leading term of the error due to the skewness
    of the noise: |skewness| sigma^3 / 6 times 1/8, the largest third derivative of 1 / (1 + e^-D).
    """

    exactness: ClassVar[Exactness] = "noise-corrected"

    target_acceptance: Annotated[
        Number,
        Gt(0),
        Lt(0.5),
        Doc("target acceptance rate of the warm-up; Barker's test accepts less than half of the proposals"),
    ] = number(0.35)

    def is_enough(self, estimate: Estimate, u: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether sigma2 is below 1 and the batch has at least 50 rows (or all rows, if there are fewer)."""
        del u
        return (estimate.sigma2 < 1) & (estimate.num_seen >= min(_FEWEST, estimate.total))

    def decide(self, estimate: Estimate, u: Float[Array, ""]) -> Verdict:
        """Accept with Barker's probability for the noisy log ratio."""
        rate = barker_rate(estimate.log_ratio, estimate.sigma2)
        skewed = jnp.abs(estimate.skewness) * estimate.sigma2**1.5 / 6
        return Verdict(u < rate, rate, ERROR + skewed / 8)

    def findings(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> tuple[Finding, ...]:
        """Report skewed noise that biases the acceptance, and an acceptance rate below the limit."""
        del posterior
        problems: list[Finding] = []
        if not means["test_error"] <= MAX_ERROR:
            advice = (
                f"use a larger {setting('sampler.batch_size')} than {self.batch_size}, "
                f"or a higher {setting('sampler.target_acceptance')} (below 0.5)"
            )
            label = "mean error of the acceptance probability due to the skewness of the noise"
            problems.append(Finding("validity", "skewness", label, means["test_error"], MAX_ERROR, advice))
        if means["acceptance_rate"] < MIN_ACCEPTANCE:
            advice = f"use a {setting('sampler.step_size')} below {means['step_size']:.2g}"
            problems.append(
                Finding("validity", "acceptance", "acceptance", means["acceptance_rate"], MIN_ACCEPTANCE, advice)
            )
        return tuple(problems)
