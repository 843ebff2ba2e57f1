"""Convergence of chains: R-hat, effective sample sizes and between-chain variance of arrays [chain, draw, value]."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

# ArviZ is imported inside the functions: its import takes half a second, and predictions do not need it.

FEWEST = 4
"""Smallest number of draws per chain for which diagnostics are computed; the R-hat of one chain needs twice as many."""


def rhats(values: Float[np.ndarray, "chain draw value"]) -> Float[np.ndarray, " value"]:
    """Return the rank-normalised split R-hat of each value; infinite for constant values or too few draws.

    ArviZ does not compute the R-hat of a single chain. A single chain is therefore split into two halves first. If its
    number of draws is odd, the last draw is left out.
    """
    if len(values) == 1:
        half = values.shape[1] // 2
        values = values[0, : 2 * half].reshape(2, half, -1)
    if values.shape[1] < FEWEST:
        return np.full(values.shape[2], np.inf)
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    rhat: Any = array_stats.rhat
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat_values = np.asarray(rhat(np.asarray(values, float), chain_axis=0, draw_axis=1))
    return np.where(np.isnan(rhat_values), np.inf, rhat_values)


def worst_rhat(values: Float[np.ndarray, "chain draw value"]) -> float:
    """Return the largest R-hat of the values that vary.

    The result is infinite if no value varies, if a varying value is not finite, or if there are too few draws.
    """
    moving = _varying_values(values)
    return np.inf if moving is None else float(np.max(rhats(moving)))


class WorstDiagnostics(NamedTuple):
    """Worst diagnostics of several values, and the indices of the values with the largest R-hat and smallest ESS."""

    numbers: dict[str, float]
    places: dict[str, int]


def convergence(values: Float[np.ndarray, "chain draw value"]) -> dict[str, float]:
    """Return the diagnostics that `worst_diagnostics` computes, without the indices of the worst values."""
    return worst_diagnostics(values).numbers


def worst_diagnostics(values: Float[np.ndarray, "chain draw value"]) -> WorstDiagnostics:
    """Return the worst diagnostics of the values that vary.

    - `rhat`: largest rank-normalised split R-hat.
    - `ess_bulk`, `ess_tail`: smallest bulk and tail effective sample size of all chains together.
    - `mcse`: largest Monte Carlo standard error of a mean.
    - `mcse_over_sd`: largest Monte Carlo standard error of a mean, in units of the sd of the value.

    See Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021, Bayesian Analysis 16(2). Constant values, such as a
    probability that rounds to one, are left out. If all values are constant, if a varying value is not finite, or with
    fewer than four draws per chain, R-hat and the errors are infinite and the effective sample sizes 0.
    """
    if (varying := _varying_values(values)) is None:
        no_estimates = {"rhat": np.inf, "ess_bulk": 0.0, "ess_tail": 0.0, "mcse": np.inf, "mcse_over_sd": np.inf}
        return WorstDiagnostics(no_estimates, dict.fromkeys(("rhat", "ess_bulk", "ess_tail"), 0))
    import arviz_stats  # noqa: F401 (the accessor `azstats`)

    accessor = xr.Dataset({"f": (("chain", "draw", "value"), varying)}).azstats
    with np.errstate(divide="ignore", invalid="ignore"):
        mcse = np.asarray(accessor.mcse()["f"].values)
    bulk, tail = (np.asarray(accessor.ess(method=method)["f"].values) for method in ("bulk", "tail"))
    rhat_values = rhats(varying)
    numbers = {
        "rhat": float(np.max(rhat_values)),
        "ess_bulk": float(np.min(bulk)),
        "ess_tail": float(np.min(tail)),
        "mcse": float(np.max(mcse)),
        "mcse_over_sd": float(np.max(mcse / varying.std((0, 1)))),
    }
    positions = {"rhat": np.argmax(rhat_values), "ess_bulk": np.argmin(bulk), "ess_tail": np.argmin(tail)}
    varying_columns = np.flatnonzero(np.ptp(np.asarray(values, float), axis=(0, 1)) != 0)
    return WorstDiagnostics(numbers, {key: int(varying_columns[place]) for key, place in positions.items()})


def _varying_values(values: Float[np.ndarray, "chain draw value"]) -> Float[np.ndarray, "chain draw moving"] | None:
    """Return the values that vary; None if no value varies, if one of them is not finite, or with too few draws."""
    values = np.asarray(values, float)
    with np.errstate(invalid="ignore"):
        moving = values[:, :, np.ptp(values, axis=(0, 1)) != 0]
    return moving if moving.shape[2] and moving.shape[1] >= FEWEST and np.isfinite(moving).all() else None


def between_chains(values: Float[np.ndarray, "chain draw value"]) -> dict[str, int | float]:
    """Measure how well the chains agree.

    `between_share` is the fraction of the variance of a value that is between the means of the chains, averaged over
    the values. `between_share` is 0 if the chains have equal means. `modes` is the number of groups of chains. Two
    chains are in the same group if the root mean square over values of (difference of their means) / (sd within chains)
    is at most 1, or if such pairs connect them.
    """
    means, variances = values.mean(1), values.var(1)
    between, within = means.var(0), variances.mean(0)
    is_varying = between + within > 0
    if not is_varying.any():
        return {"between_share": 0.0, "modes": 1}
    between_fraction = float(np.mean(between[is_varying] / (between + within)[is_varying]))
    scale = np.maximum(within, np.finfo(float).eps * between)[is_varying]
    squares = np.mean((means[:, None, is_varying] - means[None, :, is_varying]) ** 2 / scale, 2)
    group = np.arange(len(means))
    for i, j in np.argwhere(squares <= 1):
        group[group == group[j]] = group[i]
    return {"between_share": between_fraction, "modes": len(np.unique(group))}
