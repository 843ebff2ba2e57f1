"""R-hat of the worst-mixing linear combination of the tested quantities.

It is possible that every quantity mixes but a linear combination of them does not. The multivariate R-hat of Brooks and
Gelman (1998) is the largest R-hat of all linear combinations. If the combination is selected on the same draws, its
R-hat exceeds 1 even for mixed chains, and the excess grows with the number of quantities. Therefore the combination is
selected on one half of every chain, and its R-hat is computed on the other half. For mixed chains, this R-hat has the
same distribution as the R-hat of a single quantity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import linalg, special, stats

FALSE_ALARM = 1e-3
"""Probability that the R-hat of mixed chains exceeds `Combination.limit`; docs/correctness.md has measurements."""
MIN_DRAWS = 80
"""Smallest number of draws per chain for the test, because the test compares quarters of chains."""
_MAX_COLUMNS, _MAX_ROWS = 200, 8000
"""Largest number of tested quantities (evenly spaced), and approximate largest number of tested draws of all chains."""
_DRAWS_A_QUANTITY = 5
"""Effective draws that are needed per principal component."""
_ROUNDING = 1e-8
"""Smallest variance of a used direction, relative to the largest variance; smaller variances are rounding errors."""
_CUT = 10.0
"""Largest standardised value; larger values are clipped."""
DRAWS_PER_FREEDOM = 6.0
"""Effective draws per degree of freedom of a standard error, calibrated by simulation (benchmarks/combination.py)."""
_LOST = 2.0
"""Number subtracted from the effective draws of a half chain, because its mean is estimated from the same draws."""


class Combination(NamedTuple):
    """R-hat of the worst-mixing linear combination of quantities, and its limit."""

    rhat: float
    """R-hat on draws that were not used to select the combination."""
    limit: float
    """Limit that the R-hat of mixed chains exceeds with probability `FALSE_ALARM` at this effective sample size."""
    column: int
    """Index of the quantity whose correlation with the combination is largest in absolute value."""


def worst_combination(values: Float[np.ndarray, "chain draw value"]) -> Combination | None:
    """Select a combination on one half of each chain, and compute its R-hat on the other half.

    Both steps are repeated with exchanged halves, and the worse result is returned. The result is None with fewer than
    80 draws per chain, with non-finite values, or with fewer than two quantities that vary in both halves of every
    chain.
    """
    chains, draws, _ = values.shape
    if draws < MIN_DRAWS or not np.isfinite(values).all():
        return None
    stride = -(-chains * draws // _MAX_ROWS)
    stride = min(stride, draws // MIN_DRAWS)
    thinned = values[:, ::stride]
    half = thinned.shape[1] // 2
    columns = np.flatnonzero((np.ptp(thinned[:, :half], 1) > 0).all(0) & (np.ptp(thinned[:, half:], 1) > 0).all(0))
    if len(columns) < 2:
        return None
    columns = columns[np.linspace(0, len(columns) - 1, min(len(columns), _MAX_COLUMNS)).round().astype(int)]
    z = _standardise(thinned[:, : 2 * half, columns])
    first_half, second_half = z[:, :half], z[:, half:]
    both_ways = [_measure_combination(first_half, second_half), _measure_combination(second_half, first_half)]
    worse = max(both_ways, key=lambda candidate: (candidate.rhat - 1) / (candidate.limit - 1))
    return worse._replace(column=int(columns[worse.column]))


def rhat_and_limit(values: Float[np.ndarray, "chain draw"], false_alarm: float) -> tuple[float, float]:
    """Return the rank-normalised split R-hat of one quantity, and the limit that mixed chains rarely exceed.

    Each chain is split into halves. R-hat^2 is about 1 + (F - 1) / n, where n is the number of effective draws of a
    half. F is the variance of the means of the halves, divided by the squared standard error of such a mean. For mixed
    chains, F has an F distribution. The numerator has k - 1 degrees of freedom for k halves. The denominator has the
    degrees of freedom of the standard error: one per six effective draws of all halves. The constants
    `DRAWS_PER_FREEDOM` and `_LOST` were calibrated by simulation (benchmarks/combination.py).

    Args:
        values: the draws.
        false_alarm: probability with which the R-hat of mixed chains exceeds the limit.
    """
    half_chains = _split(normal_scores(values[..., None]))[..., 0]
    count, length = half_chains.shape
    within = half_chains.var(1, ddof=1).mean()
    between = half_chains.mean(1).var(ddof=1)
    if not within > 0:
        return np.inf, 1.0
    effective_draws = min(_effective_draws(half_chains), float(length))
    f = stats.f.isf(false_alarm, count - 1, max(count * effective_draws / DRAWS_PER_FREEDOM, 2.0))
    limit = np.sqrt(1 + max(f - 1, 0.0) / max(effective_draws - _LOST, 1.0))
    return float(np.sqrt((length - 1) / length + between / within)), float(limit)


def normal_scores(values: Float[np.ndarray, "chain draw value"]) -> Float[np.ndarray, "chain draw value"]:
    """Replace each value by the normal score of its rank among all draws of the quantity.

    The scores are computed by Blom's formula, as in Vehtari et al. 2021.
    """
    chains, draws, size = values.shape
    ranks = stats.rankdata(values.reshape(-1, size), axis=0).reshape(values.shape)
    return special.ndtri((ranks - 0.375) / (chains * draws + 0.25))


def _measure_combination(
    selection_half: Float[np.ndarray, "chain draw value"], test_half: Float[np.ndarray, "chain draw value"]
) -> Combination:
    direction = _worst_direction(_split(selection_half))
    projection = test_half @ direction
    rhat, limit = rhat_and_limit(projection, FALSE_ALARM / 2)
    flat = test_half.reshape(-1, test_half.shape[2])
    centred_projection = projection.reshape(-1) - projection.mean()
    centred = flat - flat.mean(0)
    correlation = np.abs(centred.T @ centred_projection) / np.maximum(np.linalg.norm(centred, axis=0), 1e-300)
    return Combination(rhat, limit, int(correlation.argmax()))


def _worst_direction(parts: Float[np.ndarray, "part draw value"]) -> Float[np.ndarray, " value"]:
    """Return the direction a that maximises (a' B a) / (a' W a).

    `parts` are segments of the chains. B is the covariance matrix of the means of the parts, and W is the covariance
    matrix within parts. The search uses only the leading principal components of W. With n effective draws, n / 5
    components are used, because the inverse of W cannot be estimated for more components.
    """
    means = parts.mean(1)
    centred = parts - means[:, None]
    flat = centred.reshape(-1, parts.shape[2])
    # A rough effective sample size is enough here, so the formula for a first-order autoregression is used.
    variance = np.einsum("cdv,cdv->v", centred, centred)
    lag = np.einsum("cdv,cdv->v", centred[:, 1:], centred[:, :-1]) / np.maximum(variance, 1e-300)
    effective = len(flat) * float(np.median((1 - lag) / np.maximum(1 + lag, 1e-3)))
    sizes, vectors = linalg.eigh(flat.T @ flat / len(flat))
    usable = int((sizes > _ROUNDING * sizes[-1]).sum())
    count = min(usable, max(2, int(effective / _DRAWS_A_QUANTITY)))
    white = vectors[:, -count:] / np.sqrt(sizes[-count:])
    *_, directions = np.linalg.svd((means - means.mean(0)) @ white, full_matrices=False)
    return white @ directions[0]


def _effective_draws(parts: Float[np.ndarray, "part draw"]) -> float:
    """Return the effective number of draws of the mean of one part, from the autocorrelation within parts.

    See Geyer 1992, Statistical Science 7(4).
    """
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    centred = parts - parts.mean(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = float(np.asarray(array_stats.ess(centred, chain_axis=0, draw_axis=1, method="mean")).item())
    return max(total / len(parts), 1.0) if np.isfinite(total) else 1.0


def _split(values: Float[np.ndarray, "chain draw value"]) -> Float[np.ndarray, "part half value"]:
    """Return the two halves of every chain as separate parts."""
    chains, draws, size = values.shape
    half = draws // 2
    return values[:, : 2 * half].reshape(2 * chains, half, size)


def _standardise(values: Float[np.ndarray, "chain draw value"]) -> Float[np.ndarray, "chain draw value"]:
    """Standardise each quantity by its median and interquartile range, and clip the tails.

    The result is meaningful even if the distribution of a quantity has an infinite variance.
    """
    low, centre, high = np.quantile(values, [0.25, 0.5, 0.75], axis=(0, 1))
    spread = np.where(high > low, (high - low) / 1.349, values.std((0, 1)))
    return np.clip((values - centre) / np.maximum(spread, 1e-300), -_CUT, _CUT)
