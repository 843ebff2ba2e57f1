"""Diagnostics of convergence and validity, computed from the draws and the statistics of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.convergence import identified, sampler_statistics
from bnnzoo.evaluation.convergence.data_distance import DENSITY, MEANS, distance_from_data
from bnnzoo.evaluation.convergence.probing import probe_rows
from bnnzoo.evaluation.formulas import settling
from bnnzoo.evaluation.formulas.combination import worst_combination
from bnnzoo.evaluation.formulas.rhat import between_chains, worst_diagnostics
from bnnzoo.evaluation.predictions import noise_scale, thinning
from bnnzoo.evaluation.predictions.noise_scale import noise_scales
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.store.schema import SECONDS

_LOG_SDS, _WEIGHTS = "predictive log sds", "weights"


def summary(record: Record) -> dict[str, Any]:
    """Return a summary of a run, from the attributes and statistics in the file."""
    attributes, stats = record.attributes, record.statistics
    posterior = record.tree["posterior"]
    reported_names = [
        name
        for name in stats
        if name in ("acceptance_rate", "step_size") or "limit" in record.declarations.get(name, {})
    ]
    means = {name: float(np.mean(stats[name])) for name in reported_names}
    inspection = sampler_statistics.of_inspection(attributes.get("inspected", "{}"))
    return {
        **{
            key: attributes[key]
            for key in ("model", "sampler", "exactness", "task", "likelihood", "rows")
            if key in attributes
        },
        **_of_prior(attributes),
        "chains": posterior.sizes["chain"],
        "draws": attributes["draws_done"],
        "predictions" if record.keeps_predictions else "parameters": sum(
            variable[0, 0].size for variable in posterior.data_vars.values()
        ),
        **_of_subspace(attributes),
        **_of_parties(attributes),
        **noise_scales(record),
        **means,
        **{key: inspection[key] for key in ("rows_needed",) if key in inspection},
        "divergences": int(np.sum(np.asarray(stats["diverging"]) > 0)) if "diverging" in stats else 0,
        **{key: attributes[key] for key in ("restarted", "stuck_chains") if attributes.get(key) not in (None, 0, "[]")},
        **{key: attributes[key] for key in ("regime_ok", "complete")},
        **{name: round(float(attributes[name]), 2) for phase in SECONDS if (name := f"seconds_{phase}") in attributes},
        **{key: attributes[key] for key in ("budget", "ended") if key in attributes},
        **({} if record.chain_weights is None else {"chain_weights": record.chain_weights.round(3).tolist()}),
        **{key: attributes.get(key) for key in ("rhat", "ess_bulk")},
        "verdict": record.verdict or None,
    }


# Predictions that are far from the data may overflow. The diagnostics then become infinite or NaN, and the run fails
# the gate (`findings`), so NumPy need not warn.
@np.errstate(over="ignore", divide="ignore", invalid="ignore")
def of_run(predictor: Predictor, *, num_probes: int = thinning.PROBES) -> dict[str, Any]:
    """Return all diagnostics of a run.

    Weights are tested only if no symmetry of the network permutes them (`identified`). Otherwise their R-hat is
    reported, but not tested.

    Args:
        predictor: the run.
        num_probes: number of inputs at which the convergence of predictions is tested.
    """
    record = predictor.record
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
        "chains": record.shape[0],
        # A long run is diagnosed from every k-th draw.
        "draws": attributes["draws_done"],
        "draws_requested": attributes["draws_requested"],
        **({"budget": attributes["budget"]} if "budget" in attributes else {}),
        "extensible": record.is_extensible,
        "draws_judged": thinned.record.shape[1],
        **of_quantities(
            tested_quantities, exactness=attributes["exactness"], weights=thinned.record.draw_weights, names=names
        ),
        **(of_settling(tested_quantities, record.statistics) if is_chain(attributes["exactness"]) else {}),
        **distance_from_data(thinned, tested_quantities, num_probes),
        **noise_scale.of_run(thinned, tested_quantities.get(_LOG_SDS)),
        **of_parameters(thinned),
        **sampler_statistics.of_statistics(record.statistics, averaged=record.averaged, thin=record.thin),
        "regime_ok": attributes["regime_ok"],
        "regime": attributes.get("regime", ""),
        **sampler_statistics.of_inspection(attributes.get("inspected", "{}")),
        **_of_prior(attributes),
        **_of_subspace(attributes),
    }


def of_settling(
    tested_quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]], stats: Mapping[str, Shaped[Any, "..."]]
) -> dict[str, Any]:
    """Test whether each chain has mixed within itself (`settling`).

    The test uses `tested_quantities` and the log posterior density of the draws, if the sampler recorded this density.
    """
    densities = {"the log posterior density": np.asarray(stats["lp"])} if "lp" in stats else {}
    settled = settling.measure_settling({**tested_quantities, **densities})
    return {} if settled is None else settled._asdict()


def of_parameters(predictor: Predictor) -> dict[str, Any]:
    """Count the chains and parameters that do not move, and return the largest R-hat of a weight.

    - `still_chains`: number of stuck chains.
    - `weights_rhat`: largest R-hat of at most 50 parameters per block; it is reported, but not tested.
    - `unmoving`: number of sampled parameters that change at most once in some chain.
    - `unmoving_of`: names of some of these parameters.

    For a run that keeps predictions, only `still_chains` is returned.
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
    """Return the quantities whose convergence is tested, by name. The first quantity is a prediction.

    - Predictive means in original units, or class probabilities, at rows that span the inputs (`probing`). The mean of
      the training targets is subtracted from predictive means: float32 would lose small changes of larger numbers.
    - Predictive log standard deviations at the same rows, for a regression.
    - The log-likelihood of at most 500 training rows, because chains can agree on the mean but disagree on the noise.
    - The parameters of the likelihood and of the prior.

    For an approximation, only the predictive means or class probabilities are returned. Without a known model or
    without rows in the file, at most 1000 parameters are tested instead.

    Args:
        predictor: the run.
        num_probes: number of rows at which predictions are tested.
    """
    record = predictor.record
    if not predictor.has_rows:
        return {"the parameters": predictor.some_parameters()[1]}
    probes = probe_rows(record, num_probes).inputs
    values_by_name: dict[str, Float[np.ndarray, "chain draw *value"]]
    if predictor.classifies:
        values_by_name = {"class probabilities": predictor.functions(probes)}
    else:
        values_by_name = {MEANS: predictor.functions(probes) * predictor.scaler.y_sd}
    if not is_chain(record.attributes["exactness"]):
        return values_by_name
    if not predictor.classifies:
        scales = predictor.log_scales(probes)
        # A likelihood with heavy tails may have no variance. Rows without a finite log standard deviation are left out.
        values_by_name[_LOG_SDS] = scales[..., np.isfinite(scales).all((0, 1, 3)), :]
    if record.has_training_rows:
        rows = record.training_rows(thinning.density_rows(predictor, num_probes))
        values = predictor.log_likelihoods(*rows, np.arange(record.shape[1]))
        values_by_name[DENSITY] = values.sum(2, dtype=np.float64)
    parameter_names = [name for name in predictor.blocks if name.startswith(("likelihood_", "prior_"))]
    return values_by_name | {name: record.array("posterior", name) for name in parameter_names}


def blocks(predictor: Predictor) -> list[dict[str, Any]]:
    """Return one row per block of parameters, with size, norm, mean, sd and R-hats (see `Block.row`)."""
    return thinning.for_diagnosis(predictor).weights.rows()


def is_chain(exactness: str) -> bool:
    """Whether the draws form Markov chains, whose convergence can be tested; false for an approximation."""
    return exactness != "approximate"


def of_quantities(
    quantities: Mapping[str, Float[np.ndarray, "chain draw *value"]],
    *,
    exactness: str,
    weights: Float[np.ndarray, " sample"] | None = None,
    names: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the worst R-hat and ESS of all quantities, and the names of the worst quantities.

    - `rhat`, `ess_bulk`, `ess_tail`: worst values of all quantities. Constant quantities are ignored, unless all
      quantities are constant.
    - `mcse`, `mcse_over_sd`: Monte Carlo errors of the first quantity (`worst_diagnostics`).
    - `between_share`, `modes`: agreement of the chains about the first quantity (`between_chains`).
    - `rhat_combination`: R-hat of the worst-mixing linear combination of all quantities. `rhat_combination_limit` is
      the limit that mixed chains rarely exceed (`combination`).
    - `weights_ess`: effective sample size 1 / sum_s w_s^2 of draws s with weights w_s.
    - `judged`: 1 if the draws form Markov chains, 0 for an approximation.

    A key that ends in `_of` has the name of the worst quantity. For an approximation, R-hat, ESS and MCSE are NaN.

    Args:
        quantities: values of each quantity, by name.
        exactness: exactness of the sampler, such as "exact" or "approximate".
        weights: weights of the draws, with the sum 1; None if the draws have no weights.
        names: names of the elements of a quantity, by quantity; only for quantities whose elements have names.
    """
    flat = {name: np.asarray(values, float).reshape(*values.shape[:2], -1) for name, values in quantities.items()}
    varying = {name: values for name, values in flat.items() if values.size and np.ptp(values, axis=(0, 1)).any()}
    first_name = next(iter(flat))
    extremes_by_name = {
        name: worst_diagnostics(values) for name, values in (varying or {first_name: flat[first_name]}).items()
    }
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
    """Return the name of the element `place` of a quantity if the elements have names, else the quantity's name."""
    return names[quantity][place] if quantity in names else quantity


def _of_prior(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry `prior_from`: the file of the run whose draws determine the prior; empty without such a run."""
    return {"prior_from": attributes["prior_from"]} if attributes.get("prior_from") else {}


def _of_parties(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry `privacy`: the differential privacy that each party of federated data guarantees, if any."""
    parties: dict[str, dict[str, Any]] = json.loads(attributes.get("federated", "{}"))
    promises = {
        name: f"epsilon {party['epsilon']}, delta {party['delta']}, {party['neighbours']}"
        for name, party in parties.items()
        if {"epsilon", "delta", "neighbours"} <= party.keys()
    }
    return {"privacy": promises} if promises else {}


def _of_subspace(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description of the subspace in which the parameters were sampled; empty if all directions were sampled.

    - `subspace`: kind of the subspace, `identified` or `linearised`.
    - `directions`: number of sampled directions. The draws are from the conditional posterior in which the other
      directions are fixed.
    - `tau`: threshold of the curvature, relative to the curvature of the prior; directions above it were sampled.
    - `variance_fraction`: fraction of the variance of the network's function at the training rows that the sampled
      directions contribute.
    - `other_directions`: "fixed" if the other directions stay at the mode; "linearised" if predictions add draws of
      their Gaussian approximation. The convergence tests do not use these additional draws.

    Args:
        attributes: root attributes of the file.
    """
    if "subspace" not in attributes:
        return {}
    block = json.loads(attributes["subspace"])
    names = ("directions", "tau", "variance_fraction", "other_directions")
    return {"subspace": block["kind"], **{name: block[name] for name in names if name in block}}
