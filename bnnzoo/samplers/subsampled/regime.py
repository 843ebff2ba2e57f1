"""Checks whether the mini-batch noise is so small that the noise penalty is valid."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from bnnzoo.finding import Finding, setting
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.statistics import ACCEPTED, DIVERGING, N_STEPS, STEP_SIZE, Statistic
from bnnzoo.samplers.subsampled.batch_sizes import Sizes
from bnnzoo.samplers.subsampled.noise_penalty import Difference

MAX_SIGMA2 = 2.0
"""Largest mean variance of the noise, sigma2, for which the penalty is accurate."""

MAX_SKEW_BIAS = 0.015
"""Largest mean over the steps of acceptance x |skewness| sigma^3 / 6.

In tests with outliers and with lognormal data, the mean and the variance of the draws are wrong by a few percent at
values up to this limit. At values of 0.03 to 0.04 the mean is wrong by 0.15 to 0.35 standard deviations
(`tests/samplers/test_batch_invariance.py`)."""

MAX_STEP_SKEW = 0.05
"""Largest value of |skewness| sigma^3 / 6 in a single step. Above this limit the step counts as biased."""

MIN_ACCEPTANCE = 0.01
"""Smallest acceptance rate. Below this limit a chain hardly moves."""

MAX_UNSEEN = 0.09
"""Largest fraction of the log posterior's curvature, in the worst direction, that the steps may miss.

The steps miss the curvature of rows without effect on the draws. An example is a row that causes a rejection in every
step that draws the row.

At this value the variance in that direction is a tenth too large (`benchmarks/guard.py`).
"""

MAX_SHIFT = 0.6
"""Largest shift of the draws' mean in the worst direction, in standard deviations, due to rows that the steps miss.

The means of single weights shift about half as much (`benchmarks/guard.py`).
"""

WARMUP = 500
"""Number of warm-up steps that the advice recommends if there was no warm-up and the user's step size is too large."""

_EXACT = "unseen_shift"
"""Name of a diagnostic that uses all rows. If a run has this diagnostic, `skew_bias` is not tested: the skewness of
mini-batches is an unreliable estimate if the noise has heavy tails."""

STATISTICS = (
    Statistic("sigma2", "mean", "σ² of the log ratio", MAX_SIGMA2, "limit of the mean"),
    Statistic("penalty", "mean", "penalty"),
    Statistic("skew_bias", "mean", "skewness bias", MAX_SKEW_BIAS, "limit of the mean", _EXACT),
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
"""Statistics of the penalty's steps, in addition to the acceptance rate and the log density."""


def noise_statistics(difference: Difference, penalty: Float[Array, ""], rate: Float[Array, ""]) -> Stats:
    """Return the statistics that describe the noise of a step and its penalty."""
    skew_bias = jnp.abs(difference.skewness) * difference.sigma2**1.5 / 6
    return {
        "delta": difference.delta,
        "sigma2": difference.sigma2,
        "penalty": penalty,
        "var_dof": jnp.asarray(difference.dof, rate.dtype),
        "delta_skew": difference.skewness,
        "regime_dof": difference.sigma2 > difference.dof / 4,
        "regime_skew": skew_bias > MAX_STEP_SKEW,
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
    """Return the problems found in a chain, most severe first.

    Args:
        means: the mean of each statistic over all steps, and the values of `inspect`.
        sizes: batches of a step.
        num_data: number of data.
        budget: largest number of data that a step may use.
        tuned: whether warm-up adapted the step size. If so, more data per step do not reduce the noise: warm-up would
            choose a larger step size.
        target_sigma2: upper limit of the mean sigma2 in the adaptation of the step size.
        pooled: True if sigma2 is estimated from the variance over data, False if from the variance of batch means.
        langevin: True if sigma2 is proportional to the step size, False if it is proportional to its square.
        importance: whether influential rows are drawn more often.
    """
    eta = means["step_size"]
    smaller_steps = (
        f"use a {setting('sampler.step_size')} below {eta:.2g}, or a longer {setting('warmup')}"
        if tuned
        else f"use {setting('warmup', WARMUP)}, which chooses the step size, "
        f"or {setting('sampler.step_size', f'{eta / 10:.2g}')}"
    )
    if not math.isfinite(means["sigma2"]):
        # A single step that is not finite makes the mean sigma2 meaningless, so the other checks are skipped.
        advice = f"a step was not finite: {smaller_steps}"
        return (Finding("validity", "sigma2", "mean sigma2", means["sigma2"], MAX_SIGMA2, advice),)
    all_data = f"use {_all_data_setting(num_data)}, which removes the noise" if num_data <= budget else ""
    excess = max(means["sigma2"] / 1.5, 1.0)
    if tuned:
        noise_advice = all_data or f"use {setting('sampler.target_sigma2', f'{target_sigma2 / excess:.2g}')}"
    else:
        shorter_steps = setting("sampler.step_size", f"{eta * excess ** (-1.0 if langevin else -0.5):.2g}")
        noise_advice = _untuned_noise_advice(sizes, excess, num_data, shorter_steps, all_data)
    double_batch = (
        f"use {setting('sampler.batch_size', 2 * sizes.size)} {setting('sampler.num_batches', sizes.batches)}"
    )
    larger_batch = double_batch if 4 * sizes.num_used <= num_data else all_data or smaller_steps
    # Influential rows can be drawn more often only if warm-up has measured their influence.
    influence_advice = (
        f"use {setting('sampler.sampling', 'importance')}, a larger {setting('sampler.batch_size')} than {sizes.size}, "
        "or a smaller step"
    )
    findings = _exceeded_limits(
        means,
        noise_advice=noise_advice,
        dof_advice=noise_advice if pooled else f"use {setting('sampler.variance', 'pooled')}",
        skewness_advice=larger_batch,
        row_advice=influence_advice if tuned and not importance else larger_batch,
    )
    if means["acceptance_rate"] < MIN_ACCEPTANCE:
        findings.append(
            Finding("validity", "acceptance", "acceptance", means["acceptance_rate"], MIN_ACCEPTANCE, smaller_steps)
        )
    return tuple(findings)


def _exceeded_limits(
    means: Mapping[str, float], *, noise_advice: str, dof_advice: str, skewness_advice: str, row_advice: str
) -> list[Finding]:
    """Return one finding for each statistic whose mean exceeds its limit.

    Each argument `*_advice` is the text for the findings about this problem.
    """
    limits = (
        ("sigma2", "sigma2", "mean sigma2", MAX_SIGMA2, noise_advice),
        (
            "regime_dof",
            "regime_dof",
            "fraction of steps in which sigma2 exceeds a quarter of its degrees of freedom",
            0.01,
            f"the noise penalty is not valid in steps with such a large sigma2: {dof_advice}",
        ),
        (
            "skewness",
            "regime_skew",
            "fraction of steps in which the skewness of the noise biases the log acceptance ratio by more than 0.05",
            0.5,
            skewness_advice,
        ),
        (
            "skewness",
            "skew_bias",
            "mean bias of the acceptance probability due to the skewness of the noise",
            MAX_SKEW_BIAS,
            skewness_advice,
        ),
        (
            "unseen",
            "unseen",
            "fraction of the log posterior's curvature that the steps miss, because some rows have no effect on draws",
            MAX_UNSEEN,
            row_advice,
        ),
        (
            "shift",
            "unseen_shift",
            "estimated shift of a mean of the draws, in standard deviations, because the steps miss the effect of some "
            "rows",
            MAX_SHIFT,
            row_advice,
        ),
    )
    replaced_limits = {statistic.name for statistic in STATISTICS if statistic.limit_unless in means}
    return [
        Finding("validity", kind, label, means[name], limit, advice)
        for kind, name, label, limit, advice in limits
        if name not in replaced_limits and not means.get(name, 0.0) <= limit
    ]


def _untuned_noise_advice(sizes: Sizes, excess: float, num_data: int, shorter_steps: str, all_data: str) -> str:
    """Return advice for a run with the user's step size, in which the noise variance is `excess` times too large."""
    if 2 * sizes.num_used * excess <= num_data:
        return f"use {_more_batches_setting(sizes, excess, num_data)}, or {shorter_steps}"
    return f"{all_data}; or use {shorter_steps}" if all_data else f"use {shorter_steps}"


def _all_data_setting(num_data: int) -> str:
    """Return options with which a step uses every datum once, in at most twenty batches."""
    batches = max(count for count in range(1, 21) if num_data % count == 0)
    sizes = {"batch_size": num_data // batches, "num_batches": batches}
    return " ".join(setting(f"sampler.{name}", value) for name, value in {"sampling": "disjoint", **sizes}.items())


def _more_batches_setting(sizes: Sizes, factor: float, num_data: int) -> str:
    """Return the option with the number of batches that divides the noise variance of a step by `factor`."""
    # Without replacement the variance also depends on the fraction of the data that a step does not use.
    disjoint_correction = 1 / num_data if sizes.disjoint else 0.0
    num_used = 1 / (disjoint_correction + (1 / sizes.num_used - disjoint_correction) / factor)
    return setting("sampler.num_batches", math.ceil(num_used / sizes.size))
