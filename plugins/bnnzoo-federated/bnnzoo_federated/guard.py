"""Checks of a federated run, from the means of its statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from bnnzoo.finding import Finding, setting
from bnnzoo.samplers.minibatch import MAX_SIGMA2, MAX_SKEW_BIAS, MIN_ACCEPTANCE


def findings(means: Mapping[str, Float[np.ndarray, " chain"]], added_noise: float) -> tuple[Finding, ...]:
    """Return the penalty's validity findings, with advice that a coordinator can follow.

    Args:
        means: for each statistic, its mean over the steps of each chain after warm-up.
        added_noise: part of sigma2 that the parties added. This noise is normal with known variance, so it lowers the
            acceptance but causes no bias.
    """
    larger_batch = f"use a larger batch_size of the parties, or a smaller {setting('sampler.target_sigma2')}"
    limits = (
        (
            "sigma2",
            "mean noise variance of the batches (sigma2)",
            means["sigma2"] - added_noise,
            MAX_SIGMA2,
            larger_batch,
        ),
        (
            "regime_dof",
            "fraction of steps in which a party's sigma2 exceeds a quarter of its degrees of freedom",
            means["regime_dof"],
            0.01,
            larger_batch,
        ),
        ("skewness", "mean bias due to the skewness of the noise", means["skew_bias"], MAX_SKEW_BIAS, larger_batch),
    )
    problems = [
        Finding("validity", kind, label, float(np.max(values)), limit, advice)
        for kind, label, values, limit, advice in limits
        if not np.max(values) <= limit
    ]
    acceptance = float(np.min(means["acceptance_rate"]))
    if acceptance < MIN_ACCEPTANCE:
        advice = f"use a longer {setting('warmup')}, or a smaller noise_sd of the parties"
        problems.append(Finding("validity", "acceptance", "acceptance", acceptance, MIN_ACCEPTANCE, advice))
    return tuple(problems)
