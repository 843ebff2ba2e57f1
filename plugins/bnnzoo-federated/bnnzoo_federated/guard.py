"""Checks of a federated run, from the means of its statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from bnnzoo.finding import Finding, setting
from bnnzoo.samplers.minibatch import LEAST_ACCEPTANCE, MOST_SIGMA2, MOST_SKEW_BIAS


def findings(means: Mapping[str, Float[np.ndarray, " chain"]], known: float) -> tuple[Finding, ...]:
    """Return the penalty's validity findings, with advice that a coordinator can follow.

    Args:
        means: means of each statistic over a chain's kept steps.
        known: part of sigma2 that the parties added. That noise is normal with known variance, so it lowers the
            acceptance and causes no bias.
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
