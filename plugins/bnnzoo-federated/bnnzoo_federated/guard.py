"""What is wrong with a run over parties, by the means of its statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from bnnzoo.finding import Finding, setting
from bnnzoo.samplers.minibatch import LEAST_ACCEPTANCE, MOST_SIGMA2, MOST_SKEW_BIAS


def findings(means: Mapping[str, Float[np.ndarray, " chain"]], known: float) -> tuple[Finding, ...]:
    """The guard of the penalty, with what a coordinator can do about it.

    Args:
        means: of each statistic over a chain's kept steps.
        known: the part of sigma2 that parties added, normal and of known variance: it costs acceptance, and no bias.
    """
    larger = f"use a larger batch_size of the parties, or a smaller {setting('sampler.target_sigma2')}"
    held = (
        ("sigma2", "mean sigma2 of batches", means["sigma2"] - known, MOST_SIGMA2, larger),
        ("regime_dof", "share of steps with a party's sigma2 > dof/4", means["regime_dof"], 0.01, larger),
        ("skewness", "mean bias by skewed differences", means["skew_bias"], MOST_SKEW_BIAS, larger),
    )
    found = [
        Finding("validity", kind, label, float(np.max(values)), limit, advice)
        for kind, label, values, limit, advice in held
        if not np.max(values) <= limit
    ]
    acceptance = float(np.min(means["acceptance_rate"]))
    if acceptance < LEAST_ACCEPTANCE:
        advice = f"use a longer {setting('warmup')}, or less noise_sd of the parties"
        found.append(Finding("validity", "acceptance", "acceptance", acceptance, LEAST_ACCEPTANCE, advice))
    return tuple(found)
