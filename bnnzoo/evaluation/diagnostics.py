"""Has a run converged, and was it right? Numbers from its draws and statistics."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo.data.bounds import recorded
from bnnzoo.evaluation import effort, identified, noise_scale
from bnnzoo.evaluation.combination import worst_combination
from bnnzoo.evaluation.convergence import between_chains, convergence, extremes
from bnnzoo.evaluation.noise_scales import noise_scales
from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.evaluation.probing import probe_inputs
from bnnzoo.evaluation.record import Record
from bnnzoo.finding import Finding, setting
from bnnzoo.store.schema import SECONDS

_MEANS, _LOG_SDS = "predictive means", "predictive log sds"
_DENSITY, _WEIGHTS = "the training rows' log density", "weights"


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
        "predictions" if record.keeps_predictions else "parameters": sum(
            variable[0, 0].size for variable in posterior.data_vars.values()
        ),
        **noise_scales(record),
        **means,
        "divergences": int(np.sum(np.asarray(stats["diverging"]) > 0)) if "diverging" in stats else 0,
        **{key: about[key] for key in ("restarted", "stuck_chains") if about.get(key) not in (None, 0, "[]")},
        **{key: about[key] for key in ("regime_ok", "complete")},
        **{name: round(float(about[name]), 2) for of in SECONDS if (name := f"seconds_{of}") in about},
        **{key: about[key] for key in ("budget", "ended") if key in about},
        **{key: about.get(key) for key in ("rhat", "ess_bulk")},
        "verdict": record.verdict or None,
    }


def of_run(predictor: Predictor, *, num_probes: int = effort.PROBES) -> dict[str, Any]:
    """Every number below. Weights are tested where no symmetry of the network lets them change places (`identified`);
    elsewhere their R-hat is reported only.
    """
    # Draws that left the data overflow; the numbers then say so.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return _of_run(predictor, num_probes)


def _of_run(predictor: Predictor, num_probes: int) -> dict[str, Any]:
    record = predictor.record
    chains, count = record.shape
    about, looked = record.attributes, effort.for_diagnosis(predictor, num_probes)
    judged, names = quantities(looked, num_probes), dict[str, list[str]]()
    if is_chain(about["exactness"]):
        names = {name: identified.names_of(name, v.shape[2:]) for name, v in judged.items() if name in looked.blocks}
        if (weights := identified.identified_weights(looked)) is not None:
            judged, names = judged | {_WEIGHTS: weights.values}, names | {_WEIGHTS: weights.names}
    return {
        "exactness": about["exactness"],
        "complete": about["complete"],
        "chains": chains,
        "draws": count,
        "draws_requested": about["draws_requested"],
        "draws_judged": looked.record.shape[1],
        **of_quantities(judged, exactness=about["exactness"], weights=looked.record.weights, names=names),
        **against_data(looked, judged, num_probes),
        **noise_scale.of_run(looked, judged.get(_LOG_SDS)),
        **of_parameters(looked),
        **of_statistics(record.statistics, averaged=record.averaged, thin=record.thin),
        "regime_ok": about["regime_ok"],
        "regime": about.get("regime", ""),
        **of_last_look(about.get("inspected", "{}")),
    }


def of_parameters(predictor: Predictor) -> dict[str, Any]:
    """Chains and parameters that stand still, and the largest R-hat of a weight.

    `unmoving` counts the sampled parameters that never move in some chain, `unmoving_of` names some of them;
    `weights_rhat` is reported and not tested. Where predictions are kept there are no parameters.
    """
    found: dict[str, Any] = {"still_chains": predictor.weights.still_chains()}
    if predictor.record.keeps_predictions:
        return found
    found["weights_rhat"] = max(row["rhat"] for row in predictor.weights.rows())
    still = identified.unmoving(predictor) if is_chain(predictor.record.attributes["exactness"]) else None
    if still is not None:
        found |= {"unmoving": len(still.names), "unmoving_of": identified.listed(still.names)}
    return found


def quantities(predictor: Predictor, num_probes: int) -> dict[str, Float[np.ndarray, "chain draw *value"]]:
    """The quantities whose convergence is tested, by name; first what is predicted, in original units.

    The mean (less the training targets', beside which float32 would lose how little it moves) and the log standard
    deviation, or the probability of every class, at rows that span the inputs (`probing`); the log density of (at most
    500) training rows; the likelihood's and the prior's own parameters. A mean can agree between chains that disagree
    about the noise. Of a model that is not known, or of rows that no file has, its parameters (at most 1000).
    """
    record = predictor.record
    if not predictor.has_rows:
        return {"the parameters": predictor.some_parameters()[1]}
    probes = probe_inputs(record, num_probes)
    if predictor.classifies:
        found = {"class probabilities": predictor.functions(probes)}
    else:
        found = {_MEANS: predictor.functions(probes) * predictor.scaler.y_sd}
    if not is_chain(record.attributes["exactness"]):
        return found
    if not predictor.classifies:
        scales = predictor.log_scales(probes)
        # Heavy tails may have no variance: then there is nothing to compare.
        found[_LOG_SDS] = scales[..., np.isfinite(scales).all((0, 1, 3)), :]
    if record.has_training_rows:
        rows = record.training_rows(effort.density_rows(predictor, num_probes))
        values = predictor.log_likelihoods(*rows, np.arange(record.shape[1]))
        found[_DENSITY] = values.sum(2, dtype=np.float64)
    own = [name for name in predictor.blocks if name.startswith(("likelihood_", "prior_"))]
    return found | {name: record.array("posterior", name) for name in own}


def against_data(
    predictor: Predictor, quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]], num_probes: int
) -> dict[str, float]:
    """How far predictions are from the data on the data's own scale; nothing of weighted draws or a model that is
    not known.

    `remoteness` of a regression: the median over draws and rows of the distance between a predictive mean and the mean
    of the training targets, in their standard deviations, of the chain where it is largest; a target that never varies
    has none. `deficit` of it: how many nats a training row is less likely than under a Gaussian of the targets' mean
    and standard deviation, the median over draws of the means over rows, of the chain where it is most. `surprise` of a
    classification: the mean negative log probability of training rows' labels over that of guessing.
    """
    record = predictor.record
    if not predictor.predicts or record.weights is not None:
        return {}
    density = None
    if record.has_training_rows:
        x, y = record.training_rows(effort.density_rows(predictor, num_probes))
        density = quantities.get(_DENSITY)
        if density is None:
            density = predictor.log_likelihoods(x, y, np.arange(record.shape[1])).sum(2, dtype=np.float64)
        density = density / len(x)
    if predictor.classifies:
        guessing = np.log(len(predictor.signature.class_names))
        return {} if density is None else {"surprise": float(-np.mean(density) / guessing)}
    targets = recorded(record.array("observed_data", "y")).astype(np.float64)
    spread = targets.std(0) if len(targets) else np.zeros(1)
    if not (spread > 0).any():
        return {}
    means = quantities[_MEANS] + predictor.scaler.y_mean.astype(np.float64)
    distances = np.abs(means - targets.mean(0)) / np.where(spread > 0, spread, np.inf)
    found = {"remoteness": float(np.max(np.median(distances, (1, 2))))}
    if density is not None and (spread > 0).all():
        guessed = -np.sum(np.log(spread / predictor.scaler.y_sd) + np.log(2 * np.pi * np.e) / 2)
        found["deficit"] = float(np.max(guessed - np.median(density, 1)))
    return found


def blocks(predictor: Predictor) -> list[dict[str, Any]]:
    """A row for each block of parameters: its size, and norm, mean, sd and R-hats over the draws."""
    return effort.for_diagnosis(predictor).weights.rows()


def is_chain(exactness: str) -> bool:
    """Whether draws are those of a Markov chain, which can converge; those of an approximation are made."""
    return exactness != "approximate"


def of_quantities(
    quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]],
    *,
    exactness: str,
    weights: Float[np.ndarray, " sample"] | None = None,
    names: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The worst R-hat and ESS over all quantities and whose they are; of the first, the MCSE and what chains share.

    What never moves is left out, but not all of it. Of draws of an approximation R-hat and ESS would say nothing: they
    are not numbers then. Weighted draws count as 1 / sum_s w_s^2. `rhat_combination` is the R-hat of the linear
    combination of all quantities that mixes worst (`combination`), with the largest that chance explains.

    Args:
        names: of each element of a quantity, where elements have names of their own.
    """
    flat = {name: np.asarray(v, float).reshape(*v.shape[:2], -1) for name, v in quantities.items()}
    moving = {name: values for name, values in flat.items() if values.size and np.ptp(values, axis=(0, 1)).any()}
    first = next(iter(flat))
    each = {name: extremes(values) for name, values in (moving or {first: flat[first]}).items()}
    found: dict[str, Any] = {}
    for key, sign in (("rhat", 1), ("ess_bulk", -1), ("ess_tail", -1)):
        badness = {name: np.nan_to_num(sign * worst.numbers[key], nan=np.inf) for name, worst in each.items()}
        worst = max(badness, key=lambda name: badness[name])
        found |= {key: each[worst].numbers[key], f"{key}_of": _named(worst, each[worst].places[key], names)}
    found |= {key: each[first].numbers[key] if first in each else 0.0 for key in ("mcse", "mcse_over_sd")}
    if is_chain(exactness):
        found |= _of_combination(moving, names)
    else:
        found = {key: "" if key.endswith("_of") else np.nan for key in found}
    if weights is not None:
        found["weights_ess"] = float(1 / np.sum(weights**2))
    return {"judged": int(is_chain(exactness)), **found, **between_chains(flat[first])}


def _of_combination(
    moving: Mapping[str, Float[np.ndarray, "chain draw value"]], names: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    if not moving or (worst := worst_combination(np.concatenate(list(moving.values()), 2))) is None:
        return {}
    owners = [(name, place) for name, values in moving.items() for place in range(values.shape[2])]
    name, column = owners[worst.column]
    return {
        "rhat_combination": worst.rhat,
        "rhat_combination_limit": worst.limit,
        "rhat_combination_of": _named(name, column, names),
    }


def _named(quantity: str, place: int, names: Mapping[str, Sequence[str]]) -> str:
    """A quantity in words: the name of the element where elements have names."""
    return names[quantity][place] if quantity in names else quantity


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
    mean, and `variance_ratio_se` its standard error, where the sampler says one; `variance_ratio_worst` is the same of
    the direction where it is largest; `unbiased_step_size` is the step size at which these ratios would hardly be more
    than 1, the least of all chains.
    """
    seen = json.loads(inspected)
    found = {}
    for name in ("unseen", "unseen_shift"):
        if name in seen:
            found[name] = float(np.maximum(np.mean(seen[name]), np.max(seen[name]) / 2))
    for name in ("variance_ratio", "variance_ratio_worst"):
        if name in seen:
            found[name] = float(np.mean(seen[name]))
    if "unbiased_step_size" in seen:
        found["unbiased_step_size"] = float(np.min(seen["unbiased_step_size"]))
    if "variance_ratio_se" in seen:
        errors = np.asarray(seen["variance_ratio_se"], float)
        found["variance_ratio_se"] = float(np.sum(errors**2) ** 0.5 / len(errors))
    return found


EVEN = 1e-3
"""Log weights that differ by less are as good as equal: no tail of theirs matters."""


def pareto_k(log_weights: Float[np.ndarray, "*draws"]) -> float:
    """The shape of the weights' tail, by a generalised Pareto fit to the largest; infinite where there is none.

    Vehtari, Simpson, Gelman, Yao and Gabry 2024, J. Mach. Learn. Res. 25(72).
    """
    finite = np.sort(log_weights[np.isfinite(log_weights)].astype(np.float64))
    if 25 <= finite.size == log_weights.size and np.ptp(finite) < EVEN:
        return 0.0
    tail = finite[-1 - int(np.ceil(min(finite.size / 5, 3 * finite.size**0.5))) :]
    # Fewer than 25 have no tail to fit, equal ones no shape, and beyond e^700 the smallest is 0 to a float.
    if finite.size < 25 or not 0 < tail[-1] - tail[0] < 700:
        return float("inf")
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    # ArviZ takes what the weights are the inverse of, and gives no number where its fit wants a longer tail.
    with np.errstate(over="ignore", invalid="ignore"):
        found = float(array_stats.psislw(-finite)[1])
    return float("inf") if np.isnan(found) else found


def of_weights(log_weights: Float[np.ndarray, "*draws"]) -> tuple[Finding, ...]:
    """What is wrong with weighted draws: the tail of their weights, with how many draws carry them."""
    k, size = pareto_k(log_weights), log_weights.size
    trusted = min(1 - 1 / np.log10(max(size, 11)), 0.7)
    if k <= trusted:
        return ()
    shares = np.exp(log_weights - log_weights.max()) if np.isfinite(log_weights).any() else np.zeros(1)
    effective = shares.sum() ** 2 / max((shares**2).sum(), np.finfo(float).tiny)
    advice = f"{effective:.1f} of {size} draws carry the weight: use more {setting('draws')}, or nuts"
    return (Finding("validity", "weights", "Pareto k of the weights", k, trusted, advice),)
