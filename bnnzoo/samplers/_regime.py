"""Checks of the penalty's validity: whether the noise is small enough for the correction."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.finding import Finding, setting
from bnnzoo.samplers._batch_sizes import Sizes
from bnnzoo.samplers._noise import Difference
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.statistics import ACCEPTED, DIVERGING, N_STEPS, STEP_SIZE, Statistic

MOST_SIGMA2 = 2.0
"""Largest mean variance of the noise for which the series is accurate."""

MOST_SKEW_BIAS = 0.015
"""Largest mean of acceptance x |skewness| sigma^3 / 6. With outliers or lognormal data, runs below it keep mean and
variance to a few percent. At 0.03 to 0.04 the mean is off by 0.15 to 0.35 standard deviations
(`tests/test_batch_invariance.py`)."""

MOST_SKEW_OF_A_STEP = 0.05
"""Bias by skewness above which a single step counts as biased."""

LEAST_ACCEPTANCE = 0.01
"""Smallest acceptance; below it a chain hardly moves."""

MOST_UNSEEN = 0.09
"""Largest fraction of the curvature, in the direction that loses most, in rows that steps do not see. At this value
the variance in that direction is a tenth too large (`benchmarks/guard.py`)."""

MOST_SHIFT = 0.6
"""Largest shift of a mean, in standard deviations and in the worst direction, due to rows that steps do not see. The
means of single weights shift about half as much (`benchmarks/guard.py`)."""

_EXACT = "unseen_shift"
"""Diagnostic from all rows that replaces the mini-batch estimate, which is unreliable if the noise has heavy tails."""

STATISTICS = (
    Statistic("sigma2", "mean", "σ² of the log ratio", MOST_SIGMA2, "limit of the mean"),
    Statistic("penalty", "mean", "penalty"),
    Statistic("skew_bias", "mean", "bias by skewness", MOST_SKEW_BIAS, "limit of the mean", _EXACT),
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
"""Statistics of the penalty's steps beyond their acceptance and the log density."""


def told(difference: Difference, penalty: Float[Array, ""], rate: Float[Array, ""]) -> Stats:
    """Return the statistics of a step's noise."""
    skew_bias = jnp.abs(difference.skewness) * difference.sigma2**1.5 / 6
    return {
        "delta": difference.delta,
        "sigma2": difference.sigma2,
        "penalty": penalty,
        "var_dof": jnp.asarray(difference.dof, rate.dtype),
        "delta_skew": difference.skewness,
        "regime_dof": difference.sigma2 > difference.dof / 4,
        "regime_skew": skew_bias > MOST_SKEW_OF_A_STEP,
        "skew_bias": rate * skew_bias,
    }


def regime(
    means: Mapping[str, float],
    sizes: Sizes,
    *,
    num_data: int,
    budget: int,
    tuned: bool,
    target_sigma2: float,
    pooled: bool,
    langevin: bool,
    importance: bool,
) -> tuple[Finding, ...]:
    """Return the problems found in a run, most severe first, given the means of its statistics over all steps.

    Args:
        means: means of the statistics, and the values of `inspect`.
        sizes: batches of a step.
        num_data: number of data.
        budget: largest number of data that a step may use.
        tuned: whether warm-up adapted the step size, and would find a longer one with more data.
        target_sigma2: mean sigma2 that warm-up aims at.
        pooled: whether sigma2 is estimated from the spread over data.
        langevin: whether sigma2 is proportional to the step size, rather than to its square.
        importance: whether rows are drawn by their influence.
    """
    eta = means["step_size"]
    way = f", or a longer {setting('warmup')}" if tuned else f" with {setting('warmup', 0)}"
    smaller = f"use a {setting('sampler.step_size')} below {eta:.2g}{way}"
    if not math.isfinite(means["sigma2"]):
        # A single step that is not finite makes the mean sigma2 meaningless, so the other checks are skipped.
        advice = f"a step was not finite: {smaller}"
        return (Finding("validity", "sigma2", "mean sigma2", means["sigma2"], MOST_SIGMA2, advice),)
    excess = max(means["sigma2"] / 1.5, 1.0)
    all_data = f"use {_all_data(num_data)}, which removes the noise" if num_data <= budget else ""
    if tuned:
        less = all_data or f"use {setting('sampler.target_sigma2', f'{target_sigma2 / excess:.2g}')}"
    else:
        shorter = setting("sampler.step_size", f"{eta * excess ** (-1.0 if langevin else -0.5):.2g}")
        more = _more(sizes, excess, num_data) if 2 * sizes.used * excess <= num_data else ""
        less = (
            f"use {more}, or {shorter}" if more else f"{all_data}; or use {shorter}" if all_data else f"use {shorter}"
        )
    pooling = f"use {setting('sampler.variance', 'pooled')}"
    twice = f"use {setting('sampler.batch_size', 2 * sizes.size)} {setting('sampler.num_batches', sizes.batches)}"
    larger = twice if 4 * sizes.used <= num_data else all_data or smaller
    # Rows can be drawn by their influence only after warm-up has measured it.
    rows = (
        f"use {setting('sampler.sampling', 'importance')}, a larger {setting('sampler.batch_size')} than {sizes.size}, "
        "or a smaller step"
    )
    rows = rows if tuned and not importance else larger
    held = (
        ("sigma2", "sigma2", "mean sigma2", MOST_SIGMA2, less),
        (
            "regime_dof",
            "regime_dof",
            "fraction of steps with sigma2 > dof/4",
            0.01,
            f"the correction is not valid there: {less if pooled else pooling}",
        ),
        ("skewness", "regime_skew", "fraction of steps whose skewed differences cause a bias above 0.05", 0.5, larger),
        ("skewness", "skew_bias", "mean bias from skewed differences", MOST_SKEW_BIAS, larger),
        ("unseen", "unseen", "fraction of the curvature in rows that no step uses", MOST_UNSEEN, rows),
        ("shift", "unseen_shift", "shift of a mean, in sd, from rows that no step uses", MOST_SHIFT, rows),
    )
    guessed = {statistic.name for statistic in STATISTICS if statistic.limit_unless in means}
    found = [
        Finding("validity", kind, label, means[name], limit, advice)
        for kind, name, label, limit, advice in held
        if name not in guessed and not means.get(name, 0.0) <= limit
    ]
    if means["acceptance_rate"] < LEAST_ACCEPTANCE:
        found.append(
            Finding("validity", "acceptance", "acceptance", means["acceptance_rate"], LEAST_ACCEPTANCE, smaller)
        )
    return tuple(found)


def _all_data(num_data: int) -> str:
    """Return the options with which a step uses every datum once, except for fewer than twenty."""
    batches = min(20, num_data)
    sizes = {"batch_size": num_data // batches, "num_batches": batches}
    return " ".join(setting(f"sampler.{name}", value) for name, value in {"sampling": "disjoint", **sizes}.items())


def _more(sizes: Sizes, times: float, num_data: int) -> str:
    """Return the option with which a step's noise variance is `times` smaller."""
    # Without replacement the variance also depends on the fraction of the data that is left out.
    left_over = 1 / num_data if sizes.disjoint else 0.0
    used = 1 / (left_over + (1 / sizes.used - left_over) / times)
    return setting("sampler.num_batches", math.ceil(used / sizes.size))
