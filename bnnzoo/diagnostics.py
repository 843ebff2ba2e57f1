"""Has a run converged, and was it right? Numbers from its draws and statistics, and the limits a gate holds them to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import arviz_stats  # noqa: F401 (the accessor `azstats`)
import numpy as np
import xarray as xr
from arviz_stats.base.array import array_stats
from jaxtyping import Float, Shaped


class Limits(NamedTuple):
    """What the gate asks for."""

    rhat: float = 1.05
    """The largest R-hat of predictions."""
    ess: float = 100.0
    """The smallest bulk ESS of predictions, over all chains."""
    diverging: float = 0.01
    """The largest share of diverging steps."""


def convergence(values: Float[np.ndarray, "chain draw value"]) -> dict[str, float]:
    """The worst rank-normalised split R-hat, bulk and tail ESS over `values`, and the worst MCSE in their sd.

    Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021, Bayesian Analysis 16(2). Fewer than four draws, or a value
    that never changes, count as not converged: an infinite R-hat.
    """
    values = np.asarray(values, float)
    moving = np.ptp(values, axis=(0, 1)) > 0
    if not moving.all() or values.shape[1] < 4:
        return {"rhat": np.inf, "ess_bulk": 0.0, "ess_tail": 0.0, "mcse_over_sd": np.inf}
    tree = xr.Dataset({"f": (("chain", "draw", "value"), values)})
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = float(np.max(tree.azstats.rhat()["f"].values))
    bulk, tail = (float(np.min(tree.azstats.ess(method=method)["f"].values)) for method in ("bulk", "tail"))
    return {"rhat": rhat, "ess_bulk": bulk, "ess_tail": tail, "mcse_over_sd": bulk**-0.5}


def still_chains(positions: Float[np.ndarray, "chain draw dim"]) -> int:
    """How many chains never moved."""
    return int(np.sum((positions == positions[:, :1]).all((1, 2))))


def statistics(stats: Mapping[str, Shaped[Any, "..."]]) -> dict[str, float]:
    """Means of what the sampler reported of its steps."""
    names = ("acceptance_rate", "sigma2", "penalty", "var_dof", "skew_bias", "n_steps")
    found = {name: float(np.mean(np.asarray(stats[name]))) for name in names if name in stats}
    if "diverging" in stats:
        found["diverging"] = float(np.mean(np.asarray(stats["diverging"])))
    return found


def failures(found: Mapping[str, Any], limits: Limits) -> list[str]:
    """What a gate has against the numbers, one sentence each; empty if nothing."""
    said = []
    if not found["rhat"] <= limits.rhat:
        said.append(
            f"R-hat of predictions {found['rhat']:.3g}, at most {limits.rhat:g}: run longer (--draws, --warmup)"
        )
    if not found["ess_bulk"] >= limits.ess:
        said.append(f"bulk ESS of predictions {found['ess_bulk']:.3g}, at least {limits.ess:g}: run longer (--draws)")
    if found.get("diverging", 0.0) > limits.diverging:
        said.append(f"{found['diverging']:.1%} of draws diverging, at most {limits.diverging:.0%}: a smaller step size")
    if found["still_chains"]:
        said.append(f"{found['still_chains']} chains never moved: a smaller step size, or a longer --warmup")
    if not found["regime_ok"]:
        said.append(f"regime: {found['regime']}")
    if not found["complete"]:
        said.append("the run is not finished: bnnzoo resume")
    return said


def pareto_k(log_weights: Float[np.ndarray, "*draws"]) -> float:
    """The shape of the weights' tail, by a generalised Pareto fit to the largest; infinite where there is none.

    Vehtari, Simpson, Gelman, Yao and Gabry 2024, J. Mach. Learn. Res. 25(72).
    """
    finite = np.sort(log_weights[np.isfinite(log_weights)].astype(np.float64))
    tail = finite[-1 - int(np.ceil(min(finite.size / 5, 3 * finite.size**0.5))) :]
    # Fewer than 25 have no tail to fit, equal ones no shape, and beyond e^700 the smallest is 0 to a float.
    if finite.size < 25 or not 0 < tail[-1] - tail[0] < 700:
        return float("inf")
    # ArviZ takes what the weights are the inverse of.
    return float(array_stats.psislw(-finite)[1])


def verdict_of_weights(log_weights: Float[np.ndarray, "*draws"]) -> str:
    """What is wrong with weighted draws; empty if nothing is."""
    k, size = pareto_k(log_weights), log_weights.size
    trusted = min(1 - 1 / np.log10(max(size, 11)), 0.7)
    if k <= trusted:
        return ""
    shares = np.exp(log_weights - log_weights.max()) if np.isfinite(log_weights).any() else np.zeros(1)
    effective = shares.sum() ** 2 / max((shares**2).sum(), np.finfo(float).tiny)
    return (
        f"Pareto k of the weights is {k:.2f}, trusted up to {trusted:.2f}: {effective:.1f} of {size} draws carry "
        "the weight; use more --draws, or nuts"
    )
