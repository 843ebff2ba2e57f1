"""Sequential updating: the draws of an earlier run determine the prior of a new run (`prior_from`)."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sklearn.covariance import ledoit_wolf

from bnnzoo import store
from bnnzoo.assembly.network_posterior import subspace_choice
from bnnzoo.assembly.problem import Problem
from bnnzoo.assembly.recipe_parts import with_default_name
from bnnzoo.data import Dataset, load_recipe_data
from bnnzoo.data.loading.new_codes import warn_of_new_codes
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.files import mapped
from bnnzoo.finding import setting
from bnnzoo.models import AbstractModel
from bnnzoo.plugins import registry
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.moments import Moments
from bnnzoo.recipe import Part, Recipe
from bnnzoo.store import schema

_SHARED_SETTINGS = ("task", "stochastic", "standardise", "units", "censored")
"""Settings that must be equal in both runs. A setting that the user does not set is copied from the earlier run."""
_MAX_DEPENDENT = 500
"""Largest number of parameters for which the prior has a full covariance. More parameters are independent."""
_MAX_BETWEEN_CHAINS = 0.1
"""Limit for the fraction of the parameters' variance that is between chains. A larger fraction causes a warning."""
_LARGEST_REPEATED = 0.1
"""Limit for the fraction of rows that were training rows of the earlier run. A larger fraction causes a warning."""


def build_problem(recipe: Recipe, dataset: Dataset | None = None, model: AbstractModel | None = None) -> Problem:
    """Build the problem of a recipe (`Problem.from_recipe`). With `prior_from`, an earlier run determines the prior.

    The weights of a network depend on the units of its inputs and targets. The rows are therefore encoded and scaled as
    in the earlier run. By default the initial positions are the last draws of the earlier run.

    Raises:
        UsageError: if the settings or the data are invalid, or if the draws of the earlier run cannot be the prior of
            this network.
    """
    if recipe.prior_from is None:
        return Problem.from_recipe(recipe, dataset, model)
    path = Path(recipe.prior_from)
    with store.open_tree(path) as tree:
        record = Record(tree, path)
        draws = int(np.prod(record.shape))
        if record.keeps_predictions:
            raise UsageError(
                f"{path}: [[prior_from]]: the run stores predictions, but no draws of the parameters; use a run "
                "with [[keep=draws]]"
            )
        constant = record.group(schema.CONSTANT_DATA)
        # Training rows outside the file of the earlier run are not read, because only warnings need these rows.
        observed = record.group(schema.OBSERVED_DATA) if record.has_training_rows else None
        earlier = Problem.restored(record.attributes, constant, observed, model)
        recipe = _with_settings_of(earlier, recipe, path)
        rows = load_recipe_data(recipe, dataset, earlier.require_description().signature)
        if earlier.train is not None:
            _warn_of_new_rows(rows, earlier.train, path)
        note = (
            f"the prior is normal, with the moments of the parameters in {draws} draws of {path}; so the posterior "
            "approximates the posterior given the rows of both runs"
        )
        rows = dataclasses.replace(rows, notes=(*rows.notes, note))
        problem = Problem.from_recipe(recipe, rows, model, scaler=earlier.require_description().scaler)
        _check_parts(earlier, problem, path)
        prior = _moments(record, problem.network_posterior, recipe.precision)
        factor = _covariance_factor(record, problem.network_posterior)
        if factor is None:
            return problem.with_prior(prior)
        dependent = problem.with_prior(Moments(prior.means, prior.sds, factor.astype(recipe.precision)))
        try:
            problem.sampler.check(dependent.posterior)
        except UsageError:
            return problem.with_prior(prior)
        return dependent


def constants(problem: Problem) -> dict[str, np.ndarray]:
    """Return the moments that define the prior as variables of constant_data; empty without `prior_from`."""
    prior = None if problem.description is None else problem.description.parts.prior
    if not isinstance(prior, Moments):
        return {}
    means = {schema.PRIOR_MEAN + name: np.asarray(value) for name, value in prior.means.items()}
    sds = {schema.PRIOR_SD + name: np.asarray(value) for name, value in prior.sds.items()}
    return means | sds | ({} if prior.factor is None else {schema.PRIOR_FACTOR: np.asarray(prior.factor)})


def _with_settings_of(earlier: Problem, recipe: Recipe, path: Path) -> Recipe:
    """Return the recipe, completed with settings of the earlier run that the user has not set.

    Raises:
        UsageError: if a setting must be equal in both runs, but is not; or if the earlier run sampled a subspace.
    """
    if subspace_choice(earlier.recipe) is not None:
        raise UsageError(
            f"{path}: [[prior_from]]: the run sampled {earlier.recipe.stochastic} directions, which another run cannot "
            "use; use a run with [[stochastic=all]] or [[stochastic=last]]"
        )
    changes: dict[str, Any] = {}
    for name in _SHARED_SETTINGS:
        value, own_value = getattr(earlier.recipe, name), getattr(recipe, name)
        if own_value != value and own_value is not None and name in recipe.where:
            raise UsageError(
                f"{path}: [[prior_from]]: the earlier run has {setting(name, value)} (got {own_value}); use the "
                "same value"
            )
        changes[name] = value
    parts = earlier.resolved_recipe()
    changes["model"] = _with_fields_of(parts["model"], recipe.model, "models")
    if "likelihood" in parts:
        changes["likelihood"] = _with_fields_of(parts["likelihood"], recipe.likelihood, "likelihoods")
    changes["init"] = recipe.init or str(path)
    if changes["stochastic"] != "all" and changes["init"] != str(path):
        raise UsageError(
            f"{path}: [[prior_from]]: with {setting('stochastic', changes['stochastic'])}, the parameters that are not "
            "sampled must be those of the earlier run; remove [[init]]"
        )
    return dataclasses.replace(recipe, **changes)


def _with_fields_of(earlier: Mapping[str, Any], part: Part | None, kind: str) -> Part:
    """Return `part`, completed with fields of `earlier` that the user has not set, if both parts have the same name."""
    part = with_default_name(part, earlier["name"])
    if registry.full_name(kind, part.name) != earlier["name"]:
        return part
    fields = {name: value for name, value in earlier.items() if name != "name"}
    own_fields = {name: value for name, value in part.fields.items() if str(value) != "auto"}
    return dataclasses.replace(part, fields={**fields, **own_fields})


def _warn_of_new_rows(rows: Dataset, earlier: Dataset, path: Path) -> None:
    """Warn of rows that also are training rows of the earlier run, and of values that look like missing-value codes."""
    repeated = int(np.isin(_row_hashes(rows), _row_hashes(earlier)).sum())
    if repeated > _LARGEST_REPEATED * rows.num_data:
        _warn(
            f"{repeated} of {rows.num_data} rows of {rows.name} are also training rows of {path}, so the information "
            "in these rows counts twice; use data with only the new rows"
        )
    warn_of_new_codes(rows.x, rows.y, earlier.signature, lambda name: getattr(earlier, name), rows.name)


def _row_hashes(rows: Dataset) -> Int[np.ndarray, " row"]:
    """Return a 64-bit hash of each row. Rows in temporary files are read in blocks."""
    hashes = np.empty(rows.num_data, np.int64)
    for block in mapped.row_blocks(rows.x):
        pairs = zip(rows.x[block], rows.y[block], strict=True)
        hashes[block] = [hash(x.tobytes() + y.tobytes()) for x, y in pairs]
    return hashes


def _check_parts(earlier: Problem, problem: Problem, path: Path) -> None:
    """Check that both runs have the same model, and likelihoods with the same name.

    Raises:
        UsageError: if the models or the likelihoods differ, because the parameters then have another meaning.
    """
    parts, earlier_parts = problem.resolved_recipe(), earlier.resolved_recipe()
    model, earlier_model = parts["model"], earlier_parts["model"]
    for name, value in {"name": model["name"], **model}.items():
        if value != earlier_model.get(name):
            place, texts = (
                "model" if name == "name" else f"model.{name}",
                [*map(_text, (earlier_model.get(name), value))],
            )
            raise UsageError(
                f"{path}: [[prior_from]]: the earlier run has {setting(place, texts[0])} (got {texts[1]}); "
                "use the model of that run"
            )
    name, earlier_name = (each.get("likelihood", {}).get("name") for each in (parts, earlier_parts))
    if name != earlier_name:
        raise UsageError(
            f"{path}: [[prior_from]]: the earlier run has {setting('likelihood', earlier_name)} (got {name}); use the "
            "likelihood of that run"
        )


def _text(value: Any) -> str:
    """Return the value of a field in the notation of the command line."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class _BlockMoments(NamedTuple):
    """Mean, standard deviation, and fraction of the variance that is between chains, for each parameter of a block."""

    mean: Float[np.ndarray, "..."]
    sd: Float[np.ndarray, "..."]
    between: Float[np.ndarray, "..."]


def _moments(record: Record, posterior: NetworkPosterior, precision: str) -> Moments:
    """Return the normal prior with the moments of the draws in `record`. Warn if this prior describes the draws poorly.

    Raises:
        UsageError: if the draws of a network parameter are missing, have another shape, or have no variance.
    """
    sampled, own_parameters = record.tree[schema.POSTERIOR].data_vars, posterior.own_parameters()
    moments: dict[str, _BlockMoments] = {}
    for block in posterior.layout.blocks:
        shape = sampled[block.name].shape[2:] if block.name in sampled else None
        if shape is None and block.owner != "network":
            continue  # the value of this parameter was fixed in the earlier run
        if shape != tuple(block.shape):
            problem = "is not sampled" if shape is None else f"has shape {list(shape)}"
            raise UsageError(
                f"{record.name}: [[prior_from]]: {block.name} {problem} in the earlier run (expected "
                f"shape {list(block.shape)}); use the model of that run"
            )
        moments[block.name] = _block_moments(
            record, block.name, own_parameters[block.name].unconstrained if block.name in own_parameters else None
        )
        if not (np.isfinite(moments[block.name].sd) & (moments[block.name].sd > 0)).all():
            raise UsageError(
                f"{record.name}: [[prior_from]]: {block.name} has the same value in all draws, or values that are not "
                "finite; use a run that has converged"
            )
    _warn_of_chains(record, moments)
    means = {name: each.mean.astype(precision) for name, each in moments.items()}
    return Moments(means, {name: each.sd.astype(precision) for name, each in moments.items()})


def _covariance_factor(record: Record, posterior: NetworkPosterior) -> Float[np.ndarray, "dim dim"] | None:
    """Return the Cholesky factor of the covariance of the network's parameters in the draws.

    The correlations are shrunk towards 0 (Ledoit and Wolf 2004), so that the factor exists even with few draws. The
    result is None if there are too many parameters or too few draws, or if the draws have weights.
    """
    blocks, chains = posterior.layout.network.blocks, record.shape[0]
    count, size = int(np.prod(record.shape)), posterior.layout.network.dim
    if size > _MAX_DEPENDENT or count < 2 * size or record.weights is not None:
        return None
    draws_by_block = [
        np.concatenate([record.draws_of(block.name, chain, slice(None)) for chain in range(chains)]).reshape(count, -1)
        for block in blocks
    ]
    draws = np.concatenate(draws_by_block, 1).astype(np.float64)
    sd = draws.std(0)
    correlation, _ = ledoit_wolf((draws - draws.mean(0)) / sd, assume_centered=True)
    return sd[:, None] * np.linalg.cholesky(correlation)


def _block_moments(record: Record, name: str, unconstrained: Any) -> _BlockMoments:
    chains, draws = record.shape
    weights = np.full((chains, draws), 1 / (chains * draws)) if record.weights is None else record.weights
    weights = weights.reshape(chains, draws)
    means, variances = [], []
    for chain in range(chains):
        values = record.draws_of(name, chain, slice(None)).astype(np.float64)
        values = values if unconstrained is None else np.asarray(unconstrained(values), np.float64)
        total = weights[chain].sum()
        normalised = weights[chain] / total if total > 0 else weights[chain]
        means.append(np.tensordot(normalised, values, 1))
        variances.append(np.tensordot(normalised, (values - means[-1]) ** 2, 1))
    chain_weights = weights.sum(1)
    mean, within = np.tensordot(chain_weights, np.stack(means), 1), np.tensordot(chain_weights, np.stack(variances), 1)
    between = np.tensordot(chain_weights, (np.stack(means) - mean) ** 2, 1)
    total = within + between
    return _BlockMoments(mean, np.sqrt(total), between / np.where(total > 0, total, 1))


def _warn_of_chains(record: Record, moments: Mapping[str, _BlockMoments]) -> None:
    """Warn if the run has not converged, or if its chains disagree about the weights."""
    between = float(np.mean(np.concatenate([np.ravel(each.between) for each in moments.values()])))
    if record.attributes.get("converged", 0) == 0:
        verdict = record.verdict.partition(";")[0] or "no verdict"
        _warn(
            f"{record.name}: [[prior_from]]: the earlier run has not converged, so its moments are inexact ({verdict})"
        )
    if between > _MAX_BETWEEN_CHAINS:
        _warn(
            f"{record.name}: [[prior_from]]: {between:.0%} of the variance of the parameters is between the chains of "
            "the earlier run: the chains are in different modes, or too short; a normal prior with the moments of "
            "several modes is too wide, so most of the information in the earlier rows is lost; use "
            "[[stochastic=last]] in both runs, because the posterior of the last layer has only one mode"
        )


def _warn(text: str) -> None:
    warnings.warn(text, BnnzooWarning, stacklevel=3)
