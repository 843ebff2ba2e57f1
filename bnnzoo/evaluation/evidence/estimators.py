"""Estimates of the evidence log p(D) from the draws of one run, or from runs with different likelihood powers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bnnzoo.errors import UsageError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.convergence import diagnostics
from bnnzoo.evaluation.evidence.estimate import Evidence, log_mean_exp
from bnnzoo.evaluation.evidence.power_path import integrate_powers, stepping_stones
from bnnzoo.evaluation.formulas import weight_tail
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.finding import spell_settings, spelling
from bnnzoo.posterior import NetworkPosterior, backend
from bnnzoo.recipe import as_dict, recipe_from

BOUND = "evidence lower bound"
"""Name of the method that computes a lower bound of log p(D)."""
_COARSE = 1.0
"""Limit for the discretisation error, in nats, of an integral over the powers.

If the error exceeds this limit and five standard errors, stepping stones are used instead.
"""
_MAX_ERROR = 0.1
"""Largest standard error, in nats, at which the correction of a Laplace approximation is trusted."""
_TARGET = ("model", "likelihood", "prior", "prior_from", "standardise", "units", "exposure", "stochastic")
"""Fields of a recipe that define the target distribution, together with the data and the likelihood power."""


def of_run(predictor: Predictor) -> Evidence:
    """Estimate log p(D) from one run.

    Raises:
        UsageError: if log p(D) cannot be computed from the draws of the run; the message suggests another run.
    """
    record = predictor.record
    attributes, stats = record.attributes, record.statistics
    if float(attributes["likelihood_power"]) != 1:
        raise UsageError(
            f"{record.name}: evidence: [[likelihood_power]] must be 1 for a single run (got "
            f"{float(attributes['likelihood_power']):g}); give this run together with runs of other powers, so that "
            "0 and 1 are included"
        )
    if record.names_a_model and recipe_from(attributes["recipe"]).stochastic != "all":
        raise UsageError(
            f"{record.name}: evidence: only some parameters are sampled, but log p(D) is an integral over all "
            "parameters; sample again with [[stochastic=all]]"
        )
    inspected = json.loads(attributes.get("inspected", "{}"))
    if "log_weight" in stats:
        return of_weights(stats["log_weight"], _units(record))
    if "log_bound" in stats:
        return of_acceptance(stats["log_bound"], stats["n_steps"].astype(float), _units(record))
    if "log_evidence" in inspected:
        return _of_modes(predictor, inspected["log_evidence"])
    if "log_q" in stats:
        return _of_bound(predictor)
    raise UsageError(
        f"{record.name}: evidence: log p(D) cannot be computed from {attributes['sampler']} draws; {_remedy(record)}"
    )


def _remedy(record: Record) -> str:
    """Return the advice on runs whose draws determine log p(D), as shell commands or calls in Python."""
    sampler = 'bnnzoo.Importance(proposal="laplace")'
    if not record.names_a_model:
        return f"use bnnzoo.sample(posterior, {sampler})"
    model = record.attributes["model"]
    path = "with the data and the other settings of this run; or sample with [[likelihood_power]] from 0 to 1 and"
    if spelling() == "keywords":
        return f"use bnnzoo.sample({json.dumps(model)}, {sampler}) {path} call run.evidence(*other_runs)"
    return f"run bnnzoo sample {model} importance [[sampler.proposal=laplace]] {path} run bnnzoo evidence on all runs"


def of_path(predictors: Sequence[Predictor]) -> Evidence:
    """Estimate log p(D) from a path of powers: runs that differ only in their likelihood power.

    Raises:
        UsageError: if the runs have different data or target distributions, if a run is approximate or of an unknown
            model, if only some parameters are sampled, or if a file has no training rows. The powers must be distinct
            and consist of 0, 1 and at least one number in between.
    """
    records = [predictor.record for predictor in predictors]
    powers = [float(record.attributes["likelihood_power"]) for record in records]
    for record in records:
        if not record.names_a_model:
            raise UsageError(
                f"{record.name}: evidence: a posterior made in Python is not supported in a set of runs with "
                "different likelihood powers; sample a named model"
            )
        if not diagnostics.is_chain(record.attributes["exactness"]):
            raise UsageError(
                f"{record.name}: evidence: draws by {record.attributes['sampler']} are approximate; a path of "
                "powers needs runs of nuts or another sampler that draws from the posterior"
            )
        _check_same(records[0], record)
    if len(set(powers)) != len(powers) or len(powers) < 3 or min(powers) != 0 or max(powers) != 1:
        raise UsageError(
            "evidence: the likelihood powers of several runs must be 0, 1, and at least one number in between, each "
            f"once (got {', '.join(f'{power:g}' for power in sorted(powers))}); use for instance "
            "[[likelihood_power]] (j/m)^5 for j = 0..m"
        )
    order = np.argsort(powers)
    values = [log_likelihoods(predictors[i], kept_draws(predictors[i])) for i in order]
    evidence = integrate_powers(np.asarray(powers)[order], values)
    # The comparison is negated so that NaN, from a log-likelihood of minus infinity, selects stepping stones.
    if evidence.discretisation is not None and not evidence.discretisation <= max(_COARSE, 5 * evidence.se):
        evidence = stepping_stones(np.asarray(powers)[order], values)
    problems = [f"{records[i].name} {reason}" for i in order if (reason := _distrust_reason(records[i].attributes))]
    if not problems:
        return evidence
    return replace(evidence, meaning=f"{evidence.meaning}; {'; '.join(problems)}: do not trust it", trusted=False)


def _distrust_reason(attributes: Mapping[str, Any]) -> str:
    """Return the reason why the draws of a run may not be from its target distribution; empty if there is none."""
    if attributes.get("converged") == 0:
        return "has not converged"
    if attributes.get("regime_ok") == 0:
        return "violates the assumptions of its sampler"
    return "uses a biased sampler" if attributes["exactness"] == "biased" else ""


def of_weights(log_weights: Float[np.ndarray, "chain draw"], log_unit: float = 0.0) -> Evidence:
    """Estimate log p(D) by the log of the mean importance weight of independent draws.

    The standard error is sd(w) / (mean(w) sqrt(S)) for the weights w of S draws (delta method).

    Args:
        log_weights: log p(D, theta) - log q(theta) of each draw theta, where q is the proposal density.
        log_unit: number that is added to convert the log density of scaled targets to original units.
    """
    values, count = log_weights.astype(np.float64).reshape(-1), log_weights.size
    value, se = log_mean_exp(values)
    problem = weight_tail.problem_of(values)
    distrust = f"; {problem}: do not trust it" if problem else ""
    meaning = f"the log of the mean weight of {count} draws; the error is from the delta method{distrust}"
    return Evidence(value + log_unit, se, "importance weights", meaning, trusted=not problem)


def of_acceptance(
    log_bound: Float[np.ndarray, "chain draw"], tries: Float[np.ndarray, "chain draw"], log_unit: float = 0.0
) -> Evidence:
    """Estimate log p(D) from the fraction of accepted proposals of a rejection sampler.

    The sampler accepts a proposal theta with the probability p(D, theta) / (k q(theta)), where q is the proposal
    density and k is an upper bound of p(D, theta) / q(theta). The mean of this probability is p(D) / k. The estimate is
    log k plus the log of the accepted fraction, averaged over the chains.

    Args:
        log_bound: log k at each draw.
        tries: number of proposals per accepted draw, a geometric random variable; for thinned draws, the mean number.
        log_unit: number that is added to convert the log density of scaled targets to original units.
    """
    accepted = tries.shape[1] / tries.sum(1)
    variances = (1 - accepted) / tries.shape[1]
    value = float(np.mean(log_bound[:, -1].astype(np.float64) + np.log(accepted)))
    meaning = (
        f"the log of k times the accepted fraction of {int(tries.sum())} proposals; k is the sampler's upper bound"
    )
    return Evidence(value + log_unit, math.sqrt(variances.sum()) / len(tries), "rejection", meaning)


def _of_bound(predictor: Predictor) -> Evidence:
    """Return the highest evidence lower bound of all chains, and its gap to log p(D) if it can be estimated.

    The bound of a chain is the mean over draws theta of log p(D, theta) - log q(theta), where q is the approximation of
    the posterior. The gap is estimated from the weights p(D, theta) / q(theta) of the same draws.
    """
    draw_numbers = kept_draws(predictor)
    log_q = predictor.record.statistics["log_q"][:, draw_numbers].astype(np.float64)
    values = log_likelihoods(predictor, draw_numbers) + log_priors(predictor, draw_numbers) - log_q
    best = max(values, key=np.mean)
    bound, size = float(best.mean()), best.size
    se = float(best.std(ddof=1) / math.sqrt(size)) if size > 1 else math.nan
    gap = None if weight_tail.problem_of(best) else log_mean_exp(best)[0] - bound
    gap_text = (
        "is unknown, because a few draws have most of the weight"
        if gap is None
        else f"is {gap:.3g}, estimated from the weights of the draws"
    )
    meaning = (
        f"a lower bound, the best of {len(values)} chains; log p(D) is larger by KL(q || posterior), which {gap_text}"
    )
    return Evidence(bound, se, BOUND, meaning, gap=gap, trusted=gap is not None)


def _of_modes(predictor: Predictor, log_evidence: Sequence[float]) -> Evidence:
    """Return the integral of the Gaussian approximation at the best mode, corrected by the weights of its draws.

    A draw theta of the Gaussian q has the weight p(D, theta) / q(theta), and the mean weight is p(D). If the weights
    are unknown or unreliable, or if the run has not converged to a mode, the integral is not corrected and not trusted.
    """
    record = predictor.record
    best_chain = int(np.argmax(log_evidence))
    gaussian = log_evidence[best_chain] + _units(record)
    description = f"the integral of the Gaussian approximation at the best of {len(log_evidence)} modes"
    if record.attributes.get("regime_ok") == 0:
        meaning = f"{description}; the run has not converged to a mode: do not trust it"
        return Evidence(gaussian, math.nan, "Laplace", meaning, trusted=False)
    weights = _log_weights(predictor)
    if weights is None:
        meaning = (
            f"{description}; the error is unknown, because the weights of the draws cannot be computed: do not trust "
            "it; sample with importance instead"
        )
        return Evidence(gaussian, math.nan, "Laplace", meaning, trusted=False)
    values = weights[best_chain]
    log_mean, se = log_mean_exp(values)
    error_text = f"the standard error of the log mean weight is {se:.2g} nats, more than {_MAX_ERROR:g}"
    too_large = "" if se <= _MAX_ERROR else error_text
    problems = list(filter(None, [weight_tail.problem_of(values), too_large]))
    if problems:
        meaning = (
            f"{description}; the error cannot be estimated from the weights of the {values.size} draws "
            f"({'; '.join(problems)}): do not trust this number; sample with importance, "
            "[[sampler.proposal=laplace]] and more [[draws]]"
        )
        return Evidence(gaussian, math.nan, "Laplace", spell_settings(meaning, spelling()), trusted=False)
    meaning = (
        f"{description}, {gaussian:.2f}, corrected by {log_mean - gaussian:+.2g} with the weights of its "
        f"{values.size} draws; the error is from the delta method; other modes are not included"
    )
    return Evidence(log_mean, se, "Laplace, corrected by weights", meaning)


def _log_weights(predictor: Predictor) -> Float[np.ndarray, "chain kept"] | None:
    """Return the log weight log p(D, theta) - log q(theta) of each kept draw.

    The result is None if the file has no values of q, does not specify the model, or has no training rows.
    """
    record = predictor.record
    if "log_q" not in record.statistics or not (record.names_a_model and record.has_training_rows):
        return None
    draw_numbers = kept_draws(predictor)
    log_q = record.statistics["log_q"][:, draw_numbers].astype(np.float64)
    return log_likelihoods(predictor, draw_numbers, linearised=False) + log_priors(predictor, draw_numbers) - log_q


def kept_draws(predictor: Predictor) -> Int[np.ndarray, " kept"]:
    """Return the indices of every k-th draw of a chain; the stride k limits the memory for the log likelihoods."""
    return predictor.record.kept_draws(int(predictor.record.attributes["rows"]))


def log_likelihoods(
    predictor: Predictor, draw_numbers: Int[np.ndarray, " kept"], *, linearised: bool = True
) -> Float[np.ndarray, "chain kept"]:
    """Return log p(D | theta) of each kept draw, in original units.

    Args:
        predictor: the run.
        draw_numbers: indices of the kept draws.
        linearised: whether to use the linearised network if the run predicts with it; if false, the original network is
            used.

    Raises:
        UsageError: if the file has no training rows.
    """
    predictor.record.require_training_rows(f"{predictor.record.name}: evidence")
    rows = predictor.record.training_rows()
    return predictor.log_likelihoods(*rows, draw_numbers, linearised=linearised).sum(2, dtype=np.float64)


def log_priors(predictor: Predictor, draw_numbers: Int[np.ndarray, " kept"]) -> Float[np.ndarray, "chain kept"]:
    """Return the log prior density of each kept draw.

    The density refers to the scale on which parameters are sampled. For a positive parameter, this is the log scale.
    """
    posterior = predictor.posterior
    assert isinstance(posterior, NetworkPosterior)  # a model with a name has no other posterior
    draws = predictor.draws[predictor.draw_indices(draw_numbers)]
    thetas = np.stack([posterior.unconstrained(draw) for draw in draws])
    with backend.arithmetic(predictor.precision):
        densities = np.asarray(_prior_densities(posterior, jnp.asarray(thetas)), np.float64)
    return densities.reshape(-1, len(draw_numbers))


@eqx.filter_jit
def _prior_densities(posterior: NetworkPosterior, thetas: Float[Array, "draw dim"]) -> Float[Array, " draw"]:
    return jax.lax.map(posterior.log_prior, thetas)


def _units(record: Record) -> float:
    """Return the number that is added to convert the log density of all scaled training targets to original units.

    Raises:
        UsageError: if targets are censored and the file has no training rows, from which the uncensored targets could
            be counted.
    """
    if not record.names_a_model or record.attributes["task"] == "classification":
        return 0.0
    logs = np.log(record.array("constant_data", "y_sd").astype(np.float64))
    y = record.group("observed_data").get("y")
    if y is not None and np.ndim(y) == 3:
        if not len(y) and logs.any():
            record.require_training_rows(f"{record.name}: evidence")
        # The probability of a censored target has no units.
        return -float(np.sum((y[..., 0] == y[..., 1]) @ logs))
    return -float(record.attributes["rows"]) * float(np.sum(logs))


def _check_same(first: Record, other: Record) -> None:
    """Raise `UsageError` unless two runs sample all parameters and have the same training rows and target density."""
    if first.attributes["data_sha256"] != other.attributes["data_sha256"]:
        raise UsageError(
            f"{other.name}: evidence: its training rows differ from those of {first.name}; all runs for one "
            "estimate must have the same training rows"
        )
    # The recipes are compared as dictionaries, because their components also store line numbers of the recipe file.
    first_recipe, other_recipe = (as_dict(recipe_from(record.attributes["recipe"])) for record in (first, other))
    differing_parts = [name for name in _TARGET if first_recipe.get(name) != other_recipe.get(name)]
    if differing_parts:
        raise UsageError(
            f"{other.name}: evidence: differs from {first.name} in {' and '.join(differing_parts)}; the runs for "
            "one estimate may differ only in [[likelihood_power]]"
        )
    if first_recipe["stochastic"] != "all":
        raise UsageError(
            f"{first.name}: evidence: only some parameters are sampled, and the other parameters were trained again "
            "for each power; sample all runs again with [[stochastic=all]]"
        )
