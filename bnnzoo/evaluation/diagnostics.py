"""Has a run converged, and was it right? Numbers from its draws and statistics."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping
from typing import Any

import arviz_stats  # noqa: F401 (the accessor `azstats`)
import numpy as np
import xarray as xr
from arviz_stats.base.array import array_stats
from jaxtyping import Float, Shaped

from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.evaluation.record import Record
from bnnzoo.finding import Finding

_DENSITY_ROWS = 500
"""Of how many training rows, evenly through the data, the log density is judged."""
_MEANS, _DENSITY = "predictive means", "the training rows' log density"
_BLOCK_WEIGHTS = 50
"""Of how many weights a block's R-hat is the largest."""


def summary(record: Record) -> dict[str, Any]:
    """A run in a dozen numbers."""
    about, stats = record.attributes, record.statistics
    posterior = record.tree["posterior"]
    told = [
        name for name in stats if name in ("acceptance_rate", "step_size") or "limit" in record.declared.get(name, {})
    ]
    means = {name: float(np.mean(stats[name])) for name in told}
    return {
        **{key: about[key] for key in ("model", "sampler", "exactness", "task", "likelihood", "rows") if key in about},
        "chains": posterior.sizes["chain"],
        "draws": about["draws_done"],
        "parameters": sum(variable[0, 0].size for variable in posterior.data_vars.values()),
        **means,
        "divergences": int(np.sum(stats["diverging"])) if "diverging" in stats else 0,
        **{key: about[key] for key in ("restarted", "stuck_chains") if about.get(key) not in (None, 0, "[]")},
        **{key: about[key] for key in ("regime_ok", "complete")},
        **{f"seconds_{of}": round(float(about[f"seconds_{of}"]), 2) for of in ("compile", "warmup", "sampling")},
        **{key: about[key] for key in ("budget", "ended", "rhat", "ess_bulk", "verdict") if key in about},
    }


def of_run(predictor: Predictor, *, num_probes: int = 50) -> dict[str, Any]:
    """Every number below. Weights are told of, and not judged: a network's symmetries make their R-hat large
    without harm.
    """
    # Draws that left the data overflow; the numbers then say so.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return _of_run(predictor, num_probes)


def _of_run(predictor: Predictor, num_probes: int) -> dict[str, Any]:
    record = predictor.record
    chains, count = record.shape
    about, positions = record.attributes, predictor.draws.reshape(chains, count, -1)
    judged = quantities(predictor, num_probes)
    return {
        "exactness": about["exactness"],
        "complete": about["complete"],
        "chains": chains,
        "draws": count,
        "draws_requested": about["draws_requested"],
        **of_quantities(judged, exactness=about["exactness"], weights=record.weights),
        **against_data(predictor, judged),
        "weights_rhat": max(row["rhat"] for row in blocks(predictor)),
        "still_chains": still_chains(positions),
        **of_statistics(record.statistics, averaged=record.averaged, thin=record.thin),
        "regime_ok": about["regime_ok"],
        "regime": about.get("regime", ""),
        **of_last_look(about.get("inspected", "{}")),
    }


def quantities(predictor: Predictor, num_probes: int) -> dict[str, Float[np.ndarray, "chain draw *value"]]:
    """What convergence is judged by, by name; first what is predicted, in original units.

    The mean and the log standard deviation, or the probability of every class, at the first test rows (training rows
    where there are none); the log density of (at most 500) training rows; the likelihood's own parameters. A mean can
    agree between chains that disagree about the noise. Of a posterior made in Python, its parameters.
    """
    record = predictor.record
    if not record.names_a_model:
        return {"the parameters": predictor.draws.reshape(*record.shape, -1)}
    probes = record.probes(num_probes)[1]
    if predictor.classifies:
        found = {"class probabilities": predictor.functions(probes)}
    else:
        found = {_MEANS: predictor.functions(probes) * predictor.scaler.y_sd}
    if not is_chain(record.attributes["exactness"]):
        return found
    if not predictor.classifies:
        scales = predictor.log_scales(probes)
        # Heavy tails may have no variance: then there is nothing to compare.
        found["predictive log sds"] = scales[..., np.isfinite(scales).all((0, 1, 3)), :]
    rows = record.training_rows(_DENSITY_ROWS)
    values = predictor.log_likelihoods(*rows, np.arange(record.shape[1]))
    found[_DENSITY] = values.sum(2, dtype=np.float64)
    own = [name for name in predictor.blocks if name.startswith("likelihood_")]
    return found | {name: record.array("posterior", name) for name in own}


def against_data(
    predictor: Predictor, quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]]
) -> dict[str, float]:
    """How far predictions are from the data on the data's own scale; nothing of weighted draws or a posterior made in
    Python.

    `remoteness` of a regression: the median over draws and rows of the distance between a predictive mean and the mean
    of the training targets, in their standard deviations. `surprise` of a classification: the mean negative log
    probability of training rows' labels over that of guessing.
    """
    record = predictor.record
    if not record.names_a_model or record.weights is not None:
        return {}
    x, y = record.training_rows(_DENSITY_ROWS)
    if predictor.classifies:
        density = quantities.get(_DENSITY)
        if density is None:
            density = predictor.log_likelihoods(x, y, np.arange(record.shape[1])).sum(2, dtype=np.float64)
        return {"surprise": float(-np.mean(density) / len(x) / np.log(len(predictor.signature.class_names)))}
    targets = y.astype(np.float64)
    distances = np.abs(quantities[_MEANS] - targets.mean(0)) / np.maximum(targets.std(0), np.finfo(float).tiny)
    return {"remoteness": float(np.max(np.median(distances, (0, 1, 2))))}


def blocks(predictor: Predictor) -> list[dict[str, Any]]:
    """A row for each block of parameters: its size, and norm, mean, sd and R-hat over the draws."""
    chains, count = predictor.record.shape
    draws = predictor.draws.reshape(chains, count, -1)
    group = predictor.record.tree["posterior"]
    sizes = [group[name].size // (chains * count) for name in predictor.blocks]
    pairs = zip(predictor.blocks, itertools.pairwise(np.cumsum([0, *sizes])), strict=True)
    return [{"block": name, **of_block(draws[:, :, a:b])} for name, (a, b) in pairs]


def is_chain(exactness: str) -> bool:
    """Whether draws are those of a Markov chain, which can converge; those of an approximation are made."""
    return exactness != "approximate"


def convergence(values: Float[np.ndarray, "chain draw value"]) -> dict[str, float]:
    """The worst rank-normalised split R-hat, bulk and tail ESS over `values`, and the worst MCSE, also in their sd.

    Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021, Bayesian Analysis 16(2). A value that is the same in every
    draw (a probability that rounds to one) is left out. Nothing that moves, or fewer than four draws, count as not
    converged: an infinite R-hat.
    """
    values = np.asarray(values, float)
    values = values[:, :, np.ptp(values, axis=(0, 1)) > 0]
    if not values.shape[2] or values.shape[1] < 4:
        return {"rhat": np.inf, "ess_bulk": 0.0, "ess_tail": 0.0, "mcse": np.inf, "mcse_over_sd": np.inf}
    found = xr.Dataset({"f": (("chain", "draw", "value"), values)}).azstats
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = float(np.max(found.rhat()["f"].values))
        mcse = np.asarray(found.mcse()["f"].values)
    bulk, tail = (float(np.min(found.ess(method=method)["f"].values)) for method in ("bulk", "tail"))
    return {
        "rhat": rhat,
        "ess_bulk": bulk,
        "ess_tail": tail,
        "mcse": float(np.max(mcse)),
        "mcse_over_sd": float(np.max(mcse / values.std((0, 1)))),
    }


def of_quantities(
    quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]],
    *,
    exactness: str,
    weights: Float[np.ndarray, " sample"] | None = None,
) -> dict[str, Any]:
    """The worst R-hat and ESS over all quantities and whose they are; of the first, the MCSE and what chains share.

    What never moves is left out, but not all of it. Of draws of an approximation R-hat and ESS would say nothing: they
    are not numbers then. Weighted draws count as 1 / sum_s w_s^2.
    """
    flat = {name: np.asarray(v, float).reshape(*v.shape[:2], -1) for name, v in quantities.items()}
    moving = {name: values for name, values in flat.items() if values.size and np.ptp(values, axis=(0, 1)).any()}
    first = next(iter(flat))
    each = {name: convergence(values) for name, values in (moving or {first: flat[first]}).items()}
    found: dict[str, Any] = {}
    for key, sign in (("rhat", 1), ("ess_bulk", -1), ("ess_tail", -1)):
        badness = {name: np.nan_to_num(sign * numbers[key], nan=np.inf) for name, numbers in each.items()}
        worst = max(badness, key=lambda name: badness[name])
        found |= {key: each[worst][key], f"{key}_of": worst}
    found |= {key: each.get(first, {}).get(key, 0.0) for key in ("mcse", "mcse_over_sd")}
    if not is_chain(exactness):
        found = {key: "" if key.endswith("_of") else np.nan for key in found}
    if weights is not None:
        found["weights_ess"] = float(1 / np.sum(weights**2))
    return {"judged": int(is_chain(exactness)), **found, **between_chains(flat[first])}


def between_chains(values: Float[np.ndarray, "chain draw value"]) -> dict[str, int | float]:
    """Do chains predict the same?

    `between_share` is the part of the predictions' variance over draws that lies between the chains' means: 0 where
    they agree. `modes` is the number of groups of chains, where two chains are in one group if their means differ, as
    a root mean square over predictions, by no more than the sd within chains.
    """
    means, spread = values.mean(1), values.var(1)
    between, within = means.var(0), spread.mean(0)
    moving = between + within > 0
    if not moving.any():
        return {"between_share": 0.0, "modes": 1}
    share = float(np.mean(between[moving] / (between + within)[moving]))
    scale = np.maximum(within, np.finfo(float).eps * (between + within))[moving]
    distance = np.mean((means[:, None, moving] - means[None, :, moving]) ** 2 / scale, 2) ** 0.5
    group = np.arange(len(means))
    for i, j in np.argwhere(distance <= 1):
        group[group == group[j]] = group[i]
    return {"between_share": share, "modes": len(np.unique(group))}


def of_block(draws: Float[np.ndarray, "chain draw weight"]) -> dict[str, int | float]:
    """A block of parameters: its size; the mean Euclidean norm; mean and sd over weights and draws; R-hats.

    `rhat` is the largest over (at most 50, evenly spaced) weights; `rhat_norm`, of the norm, does not see in which
    order a layer's units are.
    """
    size = draws.shape[2]
    norm = np.sqrt(np.sum(draws**2, 2, dtype=np.float64))
    chosen = np.linspace(0, size - 1, min(size, _BLOCK_WEIGHTS)).round().astype(int)
    return {
        "parameters": size,
        "norm": float(norm.mean()),
        "mean": float(draws.mean(dtype=np.float64)),
        "sd": float(draws.std(dtype=np.float64)),
        "rhat": convergence(draws[:, :, chosen])["rhat"],
        "rhat_norm": convergence(norm[:, :, None])["rhat"],
    }


def still_chains(positions: Float[np.ndarray, "chain draw dim"]) -> int:
    """How many chains stood still for half of the draws or more, in one piece."""
    found = 0
    for chain in positions:
        moved = np.flatnonzero((chain[1:] != chain[:-1]).any(1))
        longest = np.diff(np.concatenate([[-1], moved, [len(chain) - 1]])).max()
        found += int(len(chain) > 1 and longest >= len(chain) / 2 and longest > 1)
    return found


def of_statistics(
    stats: Mapping[str, Shaped[Any, "..."]], *, averaged: Collection[str] = (), thin: int = 1
) -> dict[str, float]:
    """What the sampler reported of its steps: means, convergence of the log density, E-BFMI.

    `lp_rhat` and `lp_ess` are of `lp`; an estimate of it on mini-batches is too noisy to be judged. E-BFMI compares the
    energies of successive steps, so a thinned run has none.

    Args:
        averaged: whose mean over the run says something, as their sampler declares.
    """
    found = {name: float(np.mean(np.asarray(stats[name]))) for name in stats if name in averaged}
    if "acceptance_rate" in stats:
        found["acceptance_rate_min"] = float(np.min(np.mean(np.asarray(stats["acceptance_rate"]), 1)))
    if "diverging" in stats:
        found["diverging"] = float(np.mean(np.asarray(stats["diverging"])))
    if "lp" in stats:
        density = convergence(np.asarray(stats["lp"], float)[:, :, None])
        found["lp_rhat"], found["lp_ess"] = density["rhat"], density["ess_bulk"]
    if "energy" in stats and thin == 1:
        energy = np.asarray(stats["energy"], float)
        with np.errstate(divide="ignore", invalid="ignore"):
            found["ebfmi"] = float(np.min(np.mean(np.diff(energy) ** 2, 1) / np.var(energy, 1)))
    return found


def of_last_look(inspected: str) -> dict[str, float]:
    """What the sampler saw in a last look at each chain, from the attribute `inspected`.

    `unseen` and `unseen_shift` are what is judged, the mean or half of the worst; `variance_ratio`, the variance
    of an average direction over the posterior's that a sampler without an accept step estimates of itself, is the
    mean, and `variance_ratio_se` its standard error.
    """
    seen = json.loads(inspected)
    found = {}
    for name in ("unseen", "unseen_shift"):
        if name in seen:
            found[name] = float(np.maximum(np.mean(seen[name]), np.max(seen[name]) / 2))
    if "variance_ratio" in seen:
        errors = np.asarray(seen["variance_ratio_se"], float)
        found["variance_ratio"] = float(np.mean(seen["variance_ratio"]))
        found["variance_ratio_se"] = float(np.sum(errors**2) ** 0.5 / len(errors))
    return found


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


def of_weights(log_weights: Float[np.ndarray, "*draws"]) -> tuple[Finding, ...]:
    """What is wrong with weighted draws: the tail of their weights, with how many draws carry them."""
    k, size = pareto_k(log_weights), log_weights.size
    trusted = min(1 - 1 / np.log10(max(size, 11)), 0.7)
    if k <= trusted:
        return ()
    shares = np.exp(log_weights - log_weights.max()) if np.isfinite(log_weights).any() else np.zeros(1)
    effective = shares.sum() ** 2 / max((shares**2).sum(), np.finfo(float).tiny)
    advice = f"{effective:.1f} of {size} draws carry the weight: use more --draws, or nuts"
    return (Finding("validity", "weights", "Pareto k of the weights", k, trusted, advice),)
