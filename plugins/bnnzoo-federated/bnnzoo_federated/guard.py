"""Validity checks of a federated run: limits for the means of the sampler's statistics over all steps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bnnzoo.finding import Finding, setting
from bnnzoo.samplers.minibatch import MAX_SIGMA2, MAX_SKEW_BIAS, MIN_ACCEPTANCE

MAX_CLIPPED = 0.005
"""Largest valid fraction of clipped differences of a party.

This fraction makes the posterior variance about 3 % too large (docs/federated.md).
"""


class Clipped(NamedTuple):
    """The fraction of clipped differences that a private party sent, with the noise of differential privacy."""

    fraction: float
    """The fraction plus noise; NaN if the party's limits did not allow the party to send it."""
    sd: float
    """Standard deviation of the noise in `fraction`."""


def findings(
    means: Mapping[str, Float[np.ndarray, " chain"]],
    added_noise: float,
    clipped: Mapping[str, Clipped] = MappingProxyType({}),
) -> tuple[Finding, ...]:
    """Return the validity problems of a run, with advice for the user of the coordinator.

    Args:
        means: for each statistic, its mean over the steps of each chain after warm-up.
        added_noise: the variance in `sigma2` due to the noise that the parties add. This noise is normal with known
            variance, so it lowers the acceptance but causes no bias.
        clipped: fraction of clipped differences of each private party. A fraction is reported if it is NaN, or exceeds
            `MAX_CLIPPED` by more than two standard deviations of its noise.
    """
    larger_batch = f"use a larger batch_size of the parties, or a smaller {setting('sampler.target_sigma2')}"
    limits = (
        (
            "sigma2",
            "mean variance of the log acceptance ratio due to the batches (sigma2)",
            means["sigma2"] - added_noise,
            MAX_SIGMA2,
            larger_batch,
        ),
        (
            "regime_dof",
            "fraction of steps in which a party's estimated sigma2 exceeds a quarter of the degrees of freedom",
            means["regime_dof"],
            0.01,
            larger_batch,
        ),
        (
            "skewness",
            "mean bias of the acceptance probability due to the skewness of the noise",
            means["skew_bias"],
            MAX_SKEW_BIAS,
            larger_batch,
        ),
    )
    problems = [
        Finding("validity", kind, label, float(np.max(values)), limit, advice)
        for kind, label, values, limit, advice in limits
        if not np.max(values) <= limit
    ]
    problems += [
        Finding(
            "validity",
            "clipped",
            f"fraction of clipped differences of party {name}",
            fraction,
            MAX_CLIPPED,
            f"use a larger clip of the party, or a larger {setting('sampler.target_acceptance')} for shorter steps",
        )
        for name, (fraction, sd) in clipped.items()
        if not fraction - 2 * sd <= MAX_CLIPPED
    ]
    acceptance = float(np.min(means["acceptance_rate"]))
    if acceptance < MIN_ACCEPTANCE:
        advice = f"use a longer {setting('warmup')}, or a smaller noise_sd of the parties"
        problems.append(Finding("validity", "acceptance", "acceptance", acceptance, MIN_ACCEPTANCE, advice))
    return tuple(problems)
