"""Test whether each chain has mixed within itself, whether or not the chains agree.

Chains of a network often settle in different modes, and each may sample its mode well. R-hat cannot distinguish such
chains from chains that still drift. This test therefore compares each chain only with itself: it uses the values minus
the chain's mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from bnnzoo.evaluation.formulas.combination import DRAWS_PER_FREEDOM, normal_scores

LEVEL = 0.01
"""Probability of a false alarm, a drift reported for stationary chains. docs/correctness.md has
measurements."""
FEWEST_EFFECTIVE = 100.0
"""Effective draws per chain that a settled run needs. With fewer, the drift of a single chain is often missed."""
FEWEST_DRAWS = 80
"""Fewest draws per chain for the test, which compares halves of chains."""
_MOST_COLUMNS, _MOST_DRAWS = 100, 1000
"""Largest numbers of values of a quantity, evenly spaced, and of draws per chain that enter the test."""


class Settling(NamedTuple):
    """Result of the test within chains, with the names that its numbers have in a diagnosis."""

    drift_p: float
    """p value of the hypothesis that every chain is stationary, corrected for the number of tests."""
    drift_of: str
    """Name of the quantity with the smallest p value."""
    within_ess: float
    """Effective draws per chain, averaged over the chains; the smallest value over the quantities."""
    within_ess_of: str
    """Name of the quantity with the fewest effective draws."""


def measure_settling(quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]]) -> Settling | None:
    """Test each quantity for a drift between the halves of the chains.

    Two tests are made of each value, on normal scores of its deviations from the chain's mean. The first is a t test
    of the difference of halves over the chains, which are independent; it finds a drift common to all chains. The
    second is an F test of the mean square of the differences, relative to their standard error from the
    autocorrelation within chains; it finds the drift of single chains. The p values are corrected by Bonferroni.

    Returns:
        None with too few draws, without a value that varies in every chain, or with non-finite values.
    """
    p_values: dict[str, float] = {}
    effective: dict[str, float] = {}
    num_tests = 0
    for name, values in quantities.items():
        flat = np.asarray(values, float).reshape(*values.shape[:2], -1)
        if flat.shape[1] < FEWEST_DRAWS or not np.isfinite(flat).all():
            return None
        columns = np.flatnonzero((np.ptp(flat, 1) > 0).all(0))
        if not columns.size:
            continue
        columns = columns[np.linspace(0, len(columns) - 1, min(len(columns), _MOST_COLUMNS)).round().astype(int)]
        stride = -(-flat.shape[1] // _MOST_DRAWS)
        half = flat[:, ::stride].shape[1] // 2
        used = flat[:, ::stride][:, : 2 * half, columns]
        scores = normal_scores(used - used.mean(1, keepdims=True))
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
    """Return the p values of both tests, and the effective draws per chain."""
    chains, _, half, _ = scores.shape
    effective_half = _effective_draws(scores.reshape(2 * chains, half, -1))
    variance = scores.var(2, ddof=1).mean((0, 1))
    differences = scores[:, 1].mean(1) - scores[:, 0].mean(1)
    error = np.sqrt(2 * variance / effective_half)
    f = np.mean((differences / error) ** 2, 0)
    p_single = stats.f.sf(f, chains, np.maximum(2 * chains * effective_half / DRAWS_PER_FREEDOM, 2.0))
    if chains < 3:  # a t test of two differences has no power
        return p_single[None], 2 * effective_half
    spread = differences.std(0, ddof=1) / chains**0.5
    p_common = 2 * stats.t.sf(np.abs(differences.mean(0)) / np.maximum(spread, 1e-300), chains - 1)
    return np.stack([p_common, p_single]), 2 * effective_half


def _effective_draws(parts: Float[np.ndarray, "part draw value"]) -> Float[np.ndarray, " value"]:
    """Return the effective draws of the mean of a part, by Geyer's initial positive sequence pooled over the parts.

    Geyer 1992, Statistical Science 7(4). The autocovariances are computed by a fast Fourier transform.
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
