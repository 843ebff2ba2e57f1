"""The penalty's guard: is the noise where the correction is worth its name?"""

from __future__ import annotations

import math
from collections.abc import Mapping

MOST_SIGMA2 = 2.0
"""Mean variance of the noise that the series is trusted with."""

MOST_SKEW_BIAS = 0.015
"""Mean of acceptance x |skewness| sigma^3 / 6. With outliers or lognormal data runs below it keep mean and variance
to a few percent; at 0.03 to 0.04 the mean is off by 0.15 to 0.35 standard deviations
(`tests/test_batch_invariance.py`)."""


def regime(
    means: Mapping[str, float], *, num_data: int, size: int, batches: int, disjoint: bool, langevin: bool
) -> str:
    """What is wrong with a run, given the means of its statistics over all steps; empty if nothing is.

    Args:
        size: data a batch, n; `batches` of them a step, M.
        disjoint: no datum twice in a step.
        langevin: the noise's sigma2 grows like the step size, else like its square.
    """
    sigma2, eta = means["sigma2"], means["step_size"]
    if not math.isfinite(sigma2):
        return f"mean sigma2 {sigma2}: a step was not finite; use a --sampler.step-size below {eta:.2g}"
    if sigma2 > MOST_SIGMA2:
        share = 1 / num_data if disjoint else 0.0
        used = 1 / (share + (1 / (size * batches) - share) * 1.5 / sigma2)
        shrink = (1.5 / sigma2) ** (1.0 if langevin else 0.5)
        return (
            f"mean sigma2 {sigma2:.2g}, trusted up to 2; use --sampler.num-batches {-(-used // size):.0f}, a longer "
            f"--warmup, or --sampler.step-size {eta * shrink:.2g} with --warmup 0"
        )
    if means["regime_dof"] > 0.01:
        return (
            f"{means['regime_dof']:.1%} of steps have sigma2 > dof/4, where the correction means nothing; "
            "use --sampler.variance pooled, or more --sampler.num-batches"
        )
    if means["regime_skew"] > 0.5 or means["skew_bias"] > MOST_SKEW_BIAS:
        return (
            f"the differences are skewed: {means['regime_skew']:.0%} of steps are biased by more than 0.05 "
            f"(|skewness| sigma^3 / 6), by {means['skew_bias']:.2g} on average times their acceptance (trusted up to "
            f"half of them and {MOST_SKEW_BIAS}); use a larger --sampler.batch-size than {size}, or a smaller step"
        )
    if means["acceptance_rate"] < 0.01:
        rate = f"{means['acceptance_rate']:.2%}"
        return f"acceptance {rate}; use a --sampler.step-size below {eta:.2g}, or a longer --warmup"
    return ""
