"""Test whether each chain has mixed within itself, even if the chains disagree.

Chains of a network often settle in different modes, and each chain may sample its mode well. R-hat cannot distinguish
such chains from chains that still drift. This test therefore compares each chain only with itself: the mean of each
chain is subtracted from its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from bnnzoo.evaluation.formulas.combination import DRAWS_PER_FREEDOM, normal_scores

LEVEL = 0.01
"""Probability that the test reports a drift of stationary chains; docs/correctness.md has measurements."""
MIN_EFFECTIVE = 100.0
"""Effective draws per chain that a settled run requires; with fewer draws, a drift of one chain is often missed."""
MIN_DRAWS = 80
"""Smallest number of draws per chain for the test, because the test compares the halves of each chain."""
_MAX_COLUMNS, _MAX_DRAWS = 100, 1000
"""Largest number of values of a quantity, and largest number of draws per chain, that are tested (evenly spaced)."""


class Settling(NamedTuple):
    """Result of the test; a diagnosis contains these numbers under the same names."""

    drift_p: float
    """p-value of the hypothesis that every chain is stationary, corrected for the number of tests."""
    drift_of: str
    """Name of the quantity with the smallest p-value."""
    within_ess: float
    """Smallest number of effective draws of all tested values. The number is per chain, averaged over the chains."""
    within_ess_of: str
    """Name of the quantity with the smallest number of effective draws."""


def measure_settling(quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]]) -> Settling | None:
    """Test each quantity for a drift between the first and the second half of the chains.

    The mean of each chain is subtracted from its values, and the deviations are converted to normal scores. The
    difference of a chain is the mean score of its second half minus the mean score of its first half. Each value is
    tested twice. The first test is a t-test of whether the mean difference of the chains is 0. The t-test detects a
    drift that is common to all chains, and needs at least three chains. The second test is an F-test of whether the
    mean square of the differences is larger than their standard error explains. The standard error comes from the
    autocorrelation within the chains. The F-test detects a drift of single chains. The p-values have a Bonferroni
    correction.

    Args:
        quantities: values of each quantity, by name.

    Returns:
        The result; None with too few draws, with non-finite values, or if no value varies in every chain.
    """
    p_values: dict[str, float] = {}
    effective: dict[str, float] = {}
    num_tests = 0
    for name, values in quantities.items():
        flat = np.asarray(values, float).reshape(*values.shape[:2], -1)
        if flat.shape[1] < MIN_DRAWS or not np.isfinite(flat).all():
            return None
        columns = np.flatnonzero((np.ptp(flat, 1) > 0).all(0))
        if not columns.size:
            continue
        columns = columns[np.linspace(0, len(columns) - 1, min(len(columns), _MAX_COLUMNS)).round().astype(int)]
        stride = -(-flat.shape[1] // _MAX_DRAWS)
        half = flat[:, ::stride].shape[1] // 2
        tested_draws = flat[:, ::stride][:, : 2 * half, columns]
        scores = normal_scores(tested_draws - tested_draws.mean(1, keepdims=True))
        column_p, column_effective = _test_columns(scores.reshape(len(scores), 2, half, -1))
        num_tests += column_p.size
        p_values[name], effective[name] = float(column_p.min()), float(column_effective.min())
    if not p_values:
        return None
    drifting = min(p_values, key=lambda name: p_values[name])
    shortest = min(effective, key=lambda name: effective[name])
    return Settling(min(1.0, p_values[drifting] * num_tests), drifting, effective[shortest], shortest)


def _test_columns(
    scores: Float[np.ndarray, "chain two half value"],
) -> tuple[Float[np.ndarray, "test value"], Float[np.ndarray, " value"]]:
    """Return the p-values of the tests of each value, and the effective draws per chain.

    With fewer than three chains, there is only the F-test.
    """
    chains, _, half, _ = scores.shape
    effective_half = _effective_draws(scores.reshape(2 * chains, half, -1))
    variance = scores.var(2, ddof=1).mean((0, 1))
    differences = scores[:, 1].mean(1) - scores[:, 0].mean(1)
    error = np.sqrt(2 * variance / effective_half)
    f = np.mean((differences / error) ** 2, 0)
    p_single = stats.f.sf(f, chains, np.maximum(2 * chains * effective_half / DRAWS_PER_FREEDOM, 2.0))
    if chains < 3:  # a t-test of two differences has almost no power
        return p_single[None], 2 * effective_half
    spread = differences.std(0, ddof=1) / chains**0.5
    p_common = 2 * stats.t.sf(np.abs(differences.mean(0)) / np.maximum(spread, 1e-300), chains - 1)
    return np.stack([p_common, p_single]), 2 * effective_half


def _effective_draws(parts: Float[np.ndarray, "part draw value"]) -> Float[np.ndarray, " value"]:
    """Return the effective number of draws of the mean of one part, by Geyer's initial monotone sequence.

    The autocovariances are computed by a fast Fourier transform, and averaged over all parts. See Geyer 1992,
    Statistical Science 7(4).
    """
    length = parts.shape[1]
    centred = parts - parts.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * length, axis=1)
    covariance = np.fft.irfft((spectrum * spectrum.conj()).real.mean(0), 2 * length, axis=0)[:length]
    correlation = covariance / np.maximum(covariance[0], 1e-300)
    pairs = correlation[: length // 2 * 2].reshape(length // 2, 2, -1).sum(1)
    is_positive = np.logical_and.accumulate(pairs > 0, 0)
    pairs = np.minimum.accumulate(np.where(is_positive, pairs, 0.0), 0)
    time = np.maximum(2 * pairs.sum(0) - 1, 1 / np.log10(max(length, 11)))
    return np.maximum(length / time, 1.0)
