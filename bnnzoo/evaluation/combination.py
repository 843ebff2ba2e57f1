"""Do chains agree in every direction? The R-hat of the linear combination of tested quantities that mixes worst.

Each quantity alone may mix while a combination of them does not. The multivariate R-hat of Brooks and Gelman 1998 is
the largest over all combinations, but found and computed on the same draws it is above 1 for chains that have mixed,
the more so the more quantities there are. So the combination is found on one half of every chain, and its R-hat is
computed on the other half, where chains that have mixed give it the law of a single quantity's R-hat.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import linalg, special, stats

FALSE_ALARM = 1e-3
"""Probability that chains that have mixed are beyond `Combination.limit`; docs/correctness.md has it measured."""
FEWEST_DRAWS = 80
"""Draws of a chain below which nothing is tested: its quarters are compared."""
_MOST_COLUMNS, _MOST_ROWS = 200, 8000
"""Quantities, evenly spaced, and draws of all chains that are looked at."""
_DRAWS_A_QUANTITY = 5
_ROUNDING = 1e-8
"""Variance below which a direction is rounding, over the largest."""
_CUT = 10.0
_KNOWN, _LOST = 6.0, 2.0
"""Effective draws for one degree of freedom of a standard error, and those that the means of parts take with them."""


class Combination(NamedTuple):
    """The combination of quantities that mixes worst."""

    rhat: float
    """On draws that it was not found on."""
    limit: float
    """The largest R-hat that chance explains at these effective draws, with probability 1 - `FALSE_ALARM`."""
    column: int
    """The quantity that correlates most with it."""


def worst_combination(
    values: Float[np.ndarray, "chain draw value"], *, false_alarm: float = FALSE_ALARM
) -> Combination | None:
    """Find the combination on one half of each chain and measure it on the other, both ways round; the worse of both.

    None where there are too few draws, fewer than two quantities that move in every half, or some that are not finite.
    """
    chains, draws, _ = values.shape
    if draws < FEWEST_DRAWS or not np.isfinite(values).all():
        return None
    every = -(-chains * draws // _MOST_ROWS)
    every = min(every, draws // FEWEST_DRAWS)
    thinned = values[:, ::every]
    half = thinned.shape[1] // 2
    columns = np.flatnonzero((np.ptp(thinned[:, :half], 1) > 0).all(0) & (np.ptp(thinned[:, half:], 1) > 0).all(0))
    if len(columns) < 2:
        return None
    columns = columns[np.linspace(0, len(columns) - 1, min(len(columns), _MOST_COLUMNS)).round().astype(int)]
    z = _standardised(thinned[:, : 2 * half, columns])
    first, second = z[:, :half], z[:, half:]
    found = [_measured(first, second, false_alarm / 2), _measured(second, first, false_alarm / 2)]
    worst = max(found, key=lambda c: (c.rhat - 1) / (c.limit - 1))
    return worst._replace(column=int(columns[worst.column]))


def rhat_and_limit(values: Float[np.ndarray, "chain draw"], false_alarm: float) -> tuple[float, float]:
    """The rank-normalised split R-hat of one quantity, and the largest that chance explains.

    R-hat^2 is about 1 + (F - 1) / n, F the variance of the halves' means over the square of its standard error and n
    the effective draws of a half. In chains that have mixed F has an F law: of k - 1 degrees of freedom, k the number
    of halves, and of those with which the standard error is known, of which there are a few in a hundred effective
    draws. Both numbers were set by simulation (benchmarks/combination.py).
    """
    parts = _split(_normal_scores(values)[..., None])[..., 0]
    count, length = parts.shape
    within = parts.var(1, ddof=1).mean()
    between = parts.mean(1).var(ddof=1)
    if not within > 0:
        return np.inf, 1.0
    effective = min(_effective(parts), float(length))
    f = stats.f.isf(false_alarm, count - 1, max(count * effective / _KNOWN, 2.0))
    limit = np.sqrt(1 + max(f - 1, 0.0) / max(effective - _LOST, 1.0))
    return float(np.sqrt((length - 1) / length + between / within)), float(limit)


def _measured(
    known: Float[np.ndarray, "chain draw value"], fresh: Float[np.ndarray, "chain draw value"], false_alarm: float
) -> Combination:
    direction = _worst_direction(_split(known))
    projected = fresh @ direction
    rhat, limit = rhat_and_limit(projected, false_alarm)
    flat = fresh.reshape(-1, fresh.shape[2])
    against = projected.reshape(-1) - projected.mean()
    centred = flat - flat.mean(0)
    correlation = np.abs(centred.T @ against) / np.maximum(np.linalg.norm(centred, axis=0), 1e-300)
    return Combination(rhat, limit, int(correlation.argmax()))


def _worst_direction(parts: Float[np.ndarray, "part draw value"]) -> Float[np.ndarray, " value"]:
    """The a that maximises a' B a / a' W a, B the covariance of the parts' means and W the one within them.

    Among the leading principal components of W, as many as the effective draws tell: of n draws an inverse of W is
    known for n / 5 quantities.
    """
    means = parts.mean(1)
    centred = parts - means[:, None]
    flat = centred.reshape(-1, parts.shape[2])
    # As of a first-order autoregression: a rough number is enough here.
    variance = np.einsum("cdv,cdv->v", centred, centred)
    lag = np.einsum("cdv,cdv->v", centred[:, 1:], centred[:, :-1]) / np.maximum(variance, 1e-300)
    effective = len(flat) * float(np.median((1 - lag) / np.maximum(1 + lag, 1e-3)))
    sizes, vectors = linalg.eigh(flat.T @ flat / len(flat))
    usable = int((sizes > _ROUNDING * sizes[-1]).sum())
    count = min(usable, max(2, int(effective / _DRAWS_A_QUANTITY)))
    white = vectors[:, -count:] / np.sqrt(sizes[-count:])
    *_, directions = np.linalg.svd((means - means.mean(0)) @ white, full_matrices=False)
    return white @ directions[0]


def _effective(parts: Float[np.ndarray, "part draw"]) -> float:
    """Effective draws of the mean of one part, by the autocorrelation within parts (Geyer 1992)."""
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    centred = parts - parts.mean(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = float(np.asarray(array_stats.ess(centred, chain_axis=0, draw_axis=1, method="mean")).item())
    return max(total / len(parts), 1.0) if np.isfinite(total) else 1.0


def _split(values: Float[np.ndarray, "chain draw value"]) -> Float[np.ndarray, "part half value"]:
    """Both halves of every chain as parts of their own."""
    chains, draws, size = values.shape
    half = draws // 2
    return values[:, : 2 * half].reshape(2 * chains, half, size)


def _standardised(values: Float[np.ndarray, "chain draw value"]) -> Float[np.ndarray, "chain draw value"]:
    """Each quantity in units of its spread, with the far ends of heavy tails cut off: they need no variance then."""
    low, centre, high = np.quantile(values, [0.25, 0.5, 0.75], axis=(0, 1))
    spread = np.where(high > low, (high - low) / 1.349, values.std((0, 1)))
    return np.clip((values - centre) / np.maximum(spread, 1e-300), -_CUT, _CUT)


def _normal_scores(values: Float[np.ndarray, "chain draw"]) -> Float[np.ndarray, "chain draw"]:
    """The normal scores of the ranks over all draws."""
    ranks = stats.rankdata(values).reshape(values.shape)
    return special.ndtri((ranks - 0.375) / (values.size + 0.25))
