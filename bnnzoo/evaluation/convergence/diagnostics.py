"""Diagnostics of convergence and validity, computed from a run's draws and statistics."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo.data.columns.bounds import uncensored_targets
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.convergence import identified
from bnnzoo.evaluation.convergence.probing import probe_rows
from bnnzoo.evaluation.formulas import settling
from bnnzoo.evaluation.formulas.combination import worst_combination
from bnnzoo.evaluation.formulas.rhat import between_chains, convergence, extremes
from bnnzoo.evaluation.predictions import noise_scale, thinning
from bnnzoo.evaluation.predictions.noise_scale import noise_scales
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.store.schema import SECONDS

_MEANS, _LOG_SDS = "predictive means", "predictive log sds"
_DENSITY, _WEIGHTS = "the training rows' log density", "weights"


def summary(record: Record) -> dict[str, Any]:
    """Return a short summary of a run."""
    attributes, stats = record.attributes, record.statistics
    posterior = record.tree["posterior"]
    reported_names = [
        name
        for name in stats
        if name in ("acceptance_rate", "step_size") or "limit" in record.declarations.get(name, {})
    ]
    means = {name: float(np.mean(stats[name])) for name in reported_names}
    return {
        **{
            key: attributes[key]
            for key in ("model", "sampler", "exactness", "task", "likelihood", "rows")
            if key in attributes
        },
        "chains": posterior.sizes["chain"],
        "draws": attributes["draws_done"],
        "predictions" if record.keeps_predictions else "parameters": sum(
            variable[0, 0].size for variable in posterior.data_vars.values()
        ),
        **_of_subspace(attributes),
        **noise_scales(record),
        **means,
        **{k: v for k, v in of_inspection(attributes.get("inspected", "{}")).items() if k == "rows_needed"},
        "divergences": int(np.sum(np.asarray(stats["diverging"]) > 0)) if "diverging" in stats else 0,
        **{key: attributes[key] for key in ("restarted", "stuck_chains") if attributes.get(key) not in (None, 0, "[]")},
        **{key: attributes[key] for key in ("regime_ok", "complete")},
        **{name: round(float(attributes[name]), 2) for phase in SECONDS if (name := f"seconds_{phase}") in attributes},
        **{key: attributes[key] for key in ("budget", "ended") if key in attributes},
        **{key: attributes.get(key) for key in ("rhat", "ess_bulk")},
        "verdict": record.verdict or None,
    }


# Draws far from the data overflow; the resulting infinities show up in the numbers.
@np.errstate(over="ignore", divide="ignore", invalid="ignore")
def of_run(predictor: Predictor, *, num_probes: int = thinning.PROBES) -> dict[str, Any]:
    """Return all numbers of this module.

    Weights are tested where no symmetry of the network permutes them (`identified`). Elsewhere their R-hat is reported,
    not tested.
    """
    record = predictor.record
    chains, count = record.shape
    attributes, thinned = record.attributes, thinning.for_diagnosis(predictor, num_probes)
    tested_quantities, names = quantities(thinned, num_probes), dict[str, list[str]]()
    if is_chain(attributes["exactness"]):
        names = {
            name: identified.names_of(name, values.shape[2:])
            for name, values in tested_quantities.items()
            if name in thinned.blocks
        }
        if (weights := identified.identified_weights(thinned)) is not None:
            tested_quantities, names = tested_quantities | {_WEIGHTS: weights.values}, names | {_WEIGHTS: weights.names}
    return {
        "exactness": attributes["exactness"],
        "complete": attributes["complete"],
        "chains": chains,
        "draws": count,
        "draws_requested": attributes["draws_requested"],
        **({"budget": attributes["budget"]} if "budget" in attributes else {}),
        "draws_judged": thinned.record.shape[1],
        **of_quantities(
            tested_quantities, exactness=attributes["exactness"], weights=thinned.record.weights, names=names
        ),
        **(of_settling(tested_quantities, record.statistics) if is_chain(attributes["exactness"]) else {}),
        **distance_from_data(thinned, tested_quantities, num_probes),
        **noise_scale.of_run(thinned, tested_quantities.get(_LOG_SDS)),
        **of_parameters(thinned),
        **of_statistics(record.statistics, averaged=record.averaged, thin=record.thin),
        "regime_ok": attributes["regime_ok"],
        "regime": attributes.get("regime", ""),
        **of_inspection(attributes.get("inspected", "{}")),
        **_of_subspace(attributes),
    }


def of_settling(
    tested_quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]], stats: Mapping[str, Shaped[Any, "..."]]
) -> dict[str, Any]:
    """Return the numbers of the test within chains (`settling`), with the log density as one more quantity."""
    densities = {"the log density": np.asarray(stats["lp"])} if "lp" in stats else {}
    settled = settling.measure_settling({**tested_quantities, **densities})
    return {} if settled is None else settled._asdict()


def of_parameters(predictor: Predictor) -> dict[str, Any]:
    """Count the chains and parameters that do not move, and return the largest R-hat of a weight.

    `unmoving_parameters` counts the sampled parameters that never move in at least one chain; `unmoving_of` names some
    of them.
    `weights_rhat` is reported, not tested. A run that keeps predictions has no parameters.
    """
    result: dict[str, Any] = {"still_chains": predictor.weights.still_chains()}
    if predictor.record.keeps_predictions:
        return result
    result["weights_rhat"] = max(row["rhat"] for row in predictor.weights.rows())
    unmoving = identified.unmoving_parameters(predictor) if is_chain(predictor.record.attributes["exactness"]) else None
    if unmoving is not None:
        result |= {"unmoving": len(unmoving), "unmoving_of": identified.list_names(unmoving)}
    return result


def quantities(predictor: Predictor, num_probes: int) -> dict[str, Float[np.ndarray, "chain draw *value"]]:
    """Return the quantities whose convergence is tested, by name. The first one is a prediction in original units.

    - Predictive means and log standard deviations, or class probabilities, at rows that span the inputs (`probing`).
      The mean of the training targets is subtracted, because float32 would lose small movements beside it.
    - The log density of at most 500 training rows. Chains can agree on the mean and disagree about the noise.
    - The parameters of the likelihood and of the prior.

    Without a known model or rows in the file, at most 1000 parameters are tested instead.
    """
    record = predictor.record
    if not predictor.has_rows:
        return {"the parameters": predictor.some_parameters()[1]}
    probes = probe_rows(record, num_probes).inputs
    if predictor.classifies:
        values_by_name = {"class probabilities": predictor.functions(probes)}
    else:
        values_by_name = {_MEANS: predictor.functions(probes) * predictor.scaler.y_sd}
    if not is_chain(record.attributes["exactness"]):
        return values_by_name
    if not predictor.classifies:
        scales = predictor.log_scales(probes)
        # A heavy-tailed likelihood may have no variance; then there is no log standard deviation to compare.
        values_by_name[_LOG_SDS] = scales[..., np.isfinite(scales).all((0, 1, 3)), :]
    if record.has_training_rows:
        rows = record.training_rows(thinning.density_rows(predictor, num_probes))
        values = predictor.log_likelihoods(*rows, np.arange(record.shape[1]))
        values_by_name[_DENSITY] = values.sum(2, dtype=np.float64)
    parameter_names = [name for name in predictor.blocks if name.startswith(("likelihood_", "prior_"))]
    return values_by_name | {name: record.array("posterior", name) for name in parameter_names}


def distance_from_data(
    predictor: Predictor, quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]], num_probes: int
) -> dict[str, float]:
    """Return the distance of the predictions from the data, on the scale of the data.

    The dictionary is empty for weighted draws and for an unknown model.

    - `remoteness` of a regression: distance between a predictive mean and the mean of the training targets, in standard
      deviations of the targets. It is the median over draws and rows, and the largest over chains and targets. A
      constant target has none.
    - `deficit` of a regression: log density of a training row under a Gaussian with the targets' mean and standard
    deviation, minus that under the prediction, in nats. It is the mean over rows, the median over draws and the largest
    over chains.
    - `surprise` of a classification: mean negative log probability of the training labels, divided by that of a uniform
      guess.
    """
    record = predictor.record
    if not predictor.predicts or record.weights is not None:
        return {}
    density = None
    if record.has_training_rows:
        x, y = record.training_rows(thinning.density_rows(predictor, num_probes))
        density = quantities.get(_DENSITY)
        if density is None:
            density = predictor.log_likelihoods(x, y, np.arange(record.shape[1])).sum(2, dtype=np.float64)
        density = density / len(x)
    if predictor.classifies:
        guess_entropy = np.log(len(predictor.signature.class_names))
        return {} if density is None else {"surprise": float(-np.mean(density) / guess_entropy)}
    targets = uncensored_targets(record.array("observed_data", "y")).astype(np.float64)
    target_sd = targets.std(0) if len(targets) else np.zeros(1)
    if not (target_sd > 0).any():
        return {}
    means = quantities[_MEANS] + predictor.scaler.y_mean.astype(np.float64)
    distances = np.abs(means - targets.mean(0)) / np.where(target_sd > 0, target_sd, np.inf)
    distances_by_name = {"remoteness": float(np.max(np.median(distances, (1, 2))))}
    if density is not None and (target_sd > 0).all():
        guess_log_density = -np.sum(np.log(target_sd / predictor.scaler.y_sd) + np.log(2 * np.pi * np.e) / 2)
        distances_by_name["deficit"] = float(np.max(guess_log_density - np.median(density, 1)))
    return distances_by_name


def blocks(predictor: Predictor) -> list[dict[str, Any]]:
    """Return one row per block of parameters: its size, and norm, mean, sd and R-hats over the draws."""
    return thinning.for_diagnosis(predictor).weights.rows()


def is_chain(exactness: str) -> bool:
    """Whether the draws are from a Markov chain, which can converge, and not from an approximation."""
    return exactness != "approximate"


def of_quantities(
    quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]],
    *,
    exactness: str,
    weights: Float[np.ndarray, " sample"] | None = None,
    names: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the worst R-hat and ESS over all quantities and the names of the worst quantities.

    MCSE and the agreement between chains are those of the first quantity. Constant quantities are left out unless all
    are constant. `rhat_combination` is the R-hat of the worst-mixing linear combination of all quantities
    (`combination`); its limit is the largest value that chance explains. R-hat and ESS are NaN for draws of an
    approximation. The ESS of weighted draws is 1 / sum_s w_s^2.

    Args:
        names: names of the elements of a quantity, if the elements have names.
    """
    flat = {name: np.asarray(values, float).reshape(*values.shape[:2], -1) for name, values in quantities.items()}
    varying = {name: values for name, values in flat.items() if values.size and np.ptp(values, axis=(0, 1)).any()}
    first_name = next(iter(flat))
    extremes_by_name = {name: extremes(values) for name, values in (varying or {first_name: flat[first_name]}).items()}
    result: dict[str, Any] = {}
    for key, sign in (("rhat", 1), ("ess_bulk", -1), ("ess_tail", -1)):
        severity = {
            name: np.nan_to_num(sign * worst_quantity.numbers[key], nan=np.inf)
            for name, worst_quantity in extremes_by_name.items()
        }
        worst_quantity = max(severity, key=lambda name: severity[name])
        result |= {
            key: extremes_by_name[worst_quantity].numbers[key],
            f"{key}_of": _name_of_element(worst_quantity, extremes_by_name[worst_quantity].places[key], names),
        }
    result |= {
        key: extremes_by_name[first_name].numbers[key] if first_name in extremes_by_name else 0.0
        for key in ("mcse", "mcse_over_sd")
    }
    if is_chain(exactness):
        result |= _of_combination(varying, names)
    else:
        result = {key: "" if key.endswith("_of") else np.nan for key in result}
    if weights is not None:
        result["weights_ess"] = float(1 / np.sum(weights**2))
    return {"judged": int(is_chain(exactness)), **result, **between_chains(flat[first_name])}


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
        "rhat_combination_of": _name_of_element(name, column, names),
    }


def _name_of_element(quantity: str, place: int, names: Mapping[str, Sequence[str]]) -> str:
    """Return the name of a quantity, or of its element where the elements have names."""
    return names[quantity][place] if quantity in names else quantity


def of_statistics(
    stats: Mapping[str, Shaped[Any, "..."]], *, averaged: Collection[str] = (), thin: int = 1
) -> dict[str, float]:
    """Summarise the statistics of the sampler's steps: means, convergence of the log density, E-BFMI.

    `lp_rhat` and `lp_ess` are those of `lp`. A mini-batch estimate of the log density is too noisy for them. E-BFMI
    compares the energies of successive steps, so a thinned run has none.

    Args:
        averaged: statistics whose mean over the run is meaningful, as declared by the sampler.
    """
    result = {name: float(np.mean(np.asarray(stats[name]))) for name in stats if name in averaged}
    if "acceptance_rate" in stats:
        result["acceptance_rate_min"] = float(np.min(np.mean(np.asarray(stats["acceptance_rate"]), 1)))
    if "diverging" in stats:
        result["diverging"] = float(np.mean(np.asarray(stats["diverging"])))
    if "lp" in stats:
        density = convergence(np.asarray(stats["lp"], float)[:, :, None])
        result["lp_rhat"], result["lp_ess"] = density["rhat"], density["ess_bulk"]
    if "energy" in stats and thin == 1:
        energy = np.asarray(stats["energy"], float)
        with np.errstate(divide="ignore", invalid="ignore"):
            result["ebfmi"] = float(np.min(np.mean(np.diff(energy) ** 2, 1) / np.var(energy, 1)))
    return result


def of_inspection(inspected: str) -> dict[str, float]:
    """Summarise the sampler's final check of each chain, from the attribute `inspected`.

    - `unseen` and `unseen_shift`: the mean over chains, or half of the largest value if that is more.
    - `variance_ratio`: mean over chains of the variance of an average direction, divided by the posterior's, as
      estimated by a sampler without an accept step. `variance_ratio_se` is its standard error, if the sampler reports
      one.
    - `variance_ratio_worst`: the same ratio along the direction where it is largest.
    - `rows_needed`: mean over chains of the number of rows with which a step of the penalty has sigma2 = 1.
    - `unbiased_step_size`: the smallest step size over chains at which these ratios would hardly exceed 1.
    """
    inspection = json.loads(inspected)

    def severe(values: Sequence[float]) -> float:
        return np.maximum(np.mean(values), np.max(values) / 2)

    def combined_error(values: Sequence[float]) -> float:
        return np.sum(np.square(values)) ** 0.5 / len(values)

    summaries: dict[str, Callable[[Sequence[float]], Any]] = {
        **dict.fromkeys(("unseen", "unseen_shift"), severe),
        **dict.fromkeys(("variance_ratio", "variance_ratio_worst", "rows_needed"), np.mean),
        "unbiased_step_size": np.min,
        "variance_ratio_se": combined_error,
    }
    return {name: float(summarise(inspection[name])) for name, summarise in summaries.items() if name in inspection}


def _of_subspace(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the subspace of a run's draws, from its root attributes; empty if parameters were sampled.

    - `subspace`: `identified` or `linearised`.
    - `directions`: number of sampled directions. The draws are those of the posterior given the others.
    - `tau`: smallest curvature of a sampled direction, in units of the prior's.
    - `variance_fraction`: fraction of the function's variance at the training rows that the directions contribute.
    """
    if "subspace" not in attributes:
        return {}
    block = json.loads(attributes["subspace"])
    return {"subspace": block["kind"], **{name: block[name] for name in ("directions", "tau", "variance_fraction")}}
