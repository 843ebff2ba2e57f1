"""Do chains agree in every direction? The R-hat of the linear combination of tested quantities that mixes worst.

Each quantity alone may mix while a combination of them does not. The multivariate R-hat of Brooks and Gelman 1998 is
the largest over all combinations, but found and computed on the same draws it is above 1 for chains that have mixed,
the more so the more quantities there are. So the combination is found on one half of every chain, and its R-hat is
computed on the other half, where chains that have mixed give it the law of a single quantity's R-hat.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg, special, stats

FALSE_ALARM = 1e-3
"""Probability that chains that have mixed are beyond `Combination.limit`; docs/correctness.md has it measured."""
FEWEST_DRAWS = 80
"""Draws of a chain below which nothing is tested: its quarters are compared."""
_MOST_COLUMNS, _MOST_ROWS = 200, 8000
"""Quantities, evenly spaced, and draws of all chains that are looked at."""


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
    z = _normal_scores(thinned[:, : 2 * half, columns])
    halves = z[:, :half], z[:, half:]
    found = [_measured(*pair, false_alarm / 2) for pair in (halves, halves[::-1])]
    worst = max(found, key=lambda c: (c.rhat - 1) / (c.limit - 1))
    return worst._replace(column=int(columns[worst.column]))


def rhat_and_limit(z: Float[np.ndarray, "chain draw"], false_alarm: float) -> tuple[float, float]:
    """The split R-hat of one quantity with normal tails, and the largest that chance explains.

    R-hat^2 is about 1 + (F - 1) / n, F the variance of the halves' means over the square of its standard error and n
    the effective draws of a half. In chains that have mixed F (k - 1) has a chi-squared law with k - 1 degrees of
    freedom, k the number of halves.
    """
    parts = _split(z[..., None])[..., 0]
    count, length = parts.shape
    within = parts.var(1, ddof=1).mean()
    between = parts.mean(1).var(ddof=1)
    if not within > 0:
        return np.inf, 1.0
    effective = min(_effective(parts), float(length))
    f = stats.chi2.isf(false_alarm, count - 1) / (count - 1)
    return float(np.sqrt((length - 1) / length + between / within)), float(np.sqrt(1 + max(f - 1, 0.0) / effective))


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

    W is shrunk towards its diagonal by p / (p + n), p quantities and n effective draws: what n draws do not tell of p
    quantities would else be taken for directions without variance.
    """
    means = parts.mean(1)
    centred = parts - means[:, None]
    flat = centred.reshape(-1, parts.shape[2])
    scale = np.maximum(flat.std(0), 1e-12)
    flat, means = flat / scale, (means - means.mean(0)) / scale
    within = flat.T @ flat / len(flat)
    # As of a first-order autoregression: a rough number is enough here.
    lag = np.einsum("cdv,cdv->v", centred[:, 1:], centred[:, :-1]) / np.einsum("cdv,cdv->v", centred, centred)
    effective = max(len(flat) * float(np.median((1 - lag) / (1 + lag))), 1.0)
    size = within.shape[0]
    shrinkage = size / (size + effective)
    within = (1 - shrinkage) * within + (shrinkage + 1e-6) * np.eye(size)
    between = means.T @ means
    _, vectors = linalg.eigh(between, within, subset_by_index=[size - 1, size - 1])
    return vectors[:, 0] / scale


def _effective(parts: Float[np.ndarray, "part draw"]) -> float:
    """Effective draws of the mean of one part, by the autocorrelation within parts (Geyer 1992)."""
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    centred = parts - parts.mean(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = float(array_stats.ess(centred, chain_axis=0, draw_axis=1, method="mean"))
    return max(total / len(parts), 1.0) if np.isfinite(total) else 1.0


def _split(values: Float[np.ndarray, "chain draw value"]) -> Float[np.ndarray, "part draw value"]:
    """Both halves of every chain as parts of their own."""
    chains, draws, size = values.shape
    half = draws // 2
    return values[:, : 2 * half].reshape(2 * chains, half, size)


def _normal_scores(values: Float[np.ndarray, "chain draw value"]) -> Float[np.ndarray, "chain draw value"]:
    """Each quantity by the normal scores of its ranks over all draws: heavy tails have a variance then."""
    flat = values.reshape(-1, values.shape[2])
    order: Int[np.ndarray, "draw value"] = stats.rankdata(flat, axis=0)
    return special.ndtri((order - 0.375) / (len(flat) + 0.25)).reshape(values.shape)
