"""The penalty's guard: is the noise where the correction is worth its name?"""

from __future__ import annotations

import math
from collections.abc import Mapping

from bnnzoo.finding import Finding
from bnnzoo.samplers.statistics import ACCEPTED, DIVERGING, N_STEPS, STEP_SIZE, Statistic

MOST_SIGMA2 = 2.0
"""Mean variance of the noise that the series is trusted with."""

MOST_SKEW_BIAS = 0.015
"""Mean of acceptance x |skewness| sigma^3 / 6. With outliers or lognormal data runs below it keep mean and variance
to a few percent; at 0.03 to 0.04 the mean is off by 0.15 to 0.35 standard deviations
(`tests/test_batch_invariance.py`)."""

MOST_UNSEEN = 0.1
"""Share of the curvature, in the direction that loses most, of rows that steps do not see: the variance there is a
ninth too large (`benchmarks/guard.py`)."""

STATISTICS = (
    Statistic("sigma2", "mean", "σ² of the log ratio", MOST_SIGMA2, "trusted up to here, in the mean"),
    Statistic("penalty", "mean", "penalty"),
    Statistic("skew_bias", "mean", "bias by skewness", MOST_SKEW_BIAS, "trusted up to here, in the mean"),
    ACCEPTED,
    DIVERGING,
    STEP_SIZE,
    N_STEPS,
    Statistic("delta"),
    Statistic("var_dof"),
    Statistic("delta_skew"),
    Statistic("regime_dof", "mean"),
    Statistic("regime_skew", "mean"),
)
"""What the penalty's steps tell, beyond their acceptance and the log density."""


def regime(
    means: Mapping[str, float], *, num_data: int, size: int, batches: int, disjoint: bool, langevin: bool
) -> tuple[Finding, ...]:
    """What is wrong with a run, the worst first, given the means of its statistics over all steps.

    Args:
        size: data a batch, n; `batches` of them a step, M.
        disjoint: no datum twice in a step.
        langevin: the noise's sigma2 grows like the step size, else like its square.
    """
    eta = means["step_size"]
    smaller = f"use a --sampler.step-size below {eta:.2g}"
    if not math.isfinite(means["sigma2"]):
        # One such step and no mean says anything: the others are not asked.
        advice = f"a step was not finite: {smaller}"
        return (Finding("validity", "sigma2", "mean sigma2", means["sigma2"], MOST_SIGMA2, advice),)
    # What would bring sigma2 to 1.5: more data a step (with none twice, by the share of them that is left over), or a
    # shorter step, by the law of its proposal.
    excess = max(means["sigma2"] / 1.5, 1.0)
    left_over = 1 / num_data if disjoint else 0.0
    used = 1 / (left_over + (1 / (size * batches) - left_over) / excess)
    shorter = eta * excess ** (-1.0 if langevin else -0.5)
    more = (
        f"use --sampler.num-batches {-(-used // size):.0f}, a longer --warmup, or --sampler.step-size {shorter:.2g} "
        "with --warmup 0"
    )
    meaningless = "the correction means nothing there: use --sampler.variance pooled, or more --sampler.num-batches"
    larger = f"use a larger --sampler.batch-size than {size}, or a smaller step"
    rows = f"use --sampler.sampling importance, a larger --sampler.batch-size than {size}, or a smaller step"
    held = (
        ("sigma2", "sigma2", "mean sigma2", MOST_SIGMA2, more),
        ("regime_dof", "regime_dof", "share of steps with sigma2 > dof/4", 0.01, meaningless),
        ("skewness", "regime_skew", "share of steps that skewed differences bias by more than 0.05", 0.5, larger),
        ("skewness", "skew_bias", "mean bias by skewed differences", MOST_SKEW_BIAS, larger),
        ("unseen", "unseen", "share of the curvature in rows that steps do not see", MOST_UNSEEN, rows),
    )
    found = [
        Finding("validity", kind, label, means[name], limit, advice)
        for kind, name, label, limit, advice in held
        if means.get(name, 0.0) > limit
    ]
    if means["acceptance_rate"] < 0.01:
        advice = f"{smaller}, or a longer --warmup"
        found.append(Finding("validity", "acceptance", "acceptance", means["acceptance_rate"], 0.01, advice))
    return tuple(found)
