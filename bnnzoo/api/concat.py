"""Join runs of one recipe with different seeds into one run with the chains of all runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from bnnzoo.api import entrances
from bnnzoo.api.run import Run
from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.files.shell import resume_call
from bnnzoo.finding import from_json, sentence, to_json
from bnnzoo.plugins import registry
from bnnzoo.recipe import Part, as_dict, build, part_from_object, recipe_from, to_yaml
from bnnzoo.sampling import chain_findings, chain_mixture, verdict
from bnnzoo.sampling.initial.trained_start import MAX_STEPS
from bnnzoo.sampling.loop.stuck_chains import STUCK_STEPS, stuck_finding
from bnnzoo.store import schema

_SUMS = (
    *(f"seconds_{part}" for part in schema.SECONDS),
    *("start_evaluations", "target_evaluations", "restarted"),
)
_SINGLE_RUN_ATTRIBUTES = (
    *("tuned", "inspected", "stops", "ended", "length_plan"),
    *("chain_weights", "chain_weights_gain", "chain_weights_error"),
    *("asked_again", "clipped"),
)
"""Attributes that describe a single run; their values are not copied to a joined run."""
_VERSION_ATTRIBUTES = ("versions", "plugins", "plugin_sources")
_ROW_ATTRIBUTES = ("data_sha256", "signature", "federated")
"""Attributes that identify the training rows. `federated` describes the parties that own the rows."""
_DATA_SETTINGS = "[[data]] and [[split_seed]]"
_SCALES = ("x_mean", "x_sd", "y_mean", "y_sd")
_ROWS = ("x_test", "y_test", schema.KEPT_ROWS)


def concat(runs: Sequence[Run | str | Path]) -> Run:
    """Join the chains of several runs into one run in memory; `Run.save` writes it.

    If the runs have different numbers of draws, only the latest draws of the longer runs are used, as many as the
    shortest run has. Convergence is tested again for all chains together. Run times and numbers of evaluations are
    summed.

    Args:
        runs: runs or their files.

    Raises:
        UsageError: if there are fewer than two runs, if a run is not finished or has a posterior made in Python, if two
            runs have the same seed, or if the runs differ in the recipe, the training or test rows, the
            standardisation, the prior, the stored variables, or the fixed (trained, not sampled) parameters.
        DamagedError: if a file is damaged; the message names it.
    """
    opened_runs = [entrances.opened(run) for run in runs]
    if len(opened_runs) < 2:
        raise UsageError(f"expected two or more runs to join (got {len(opened_runs)})")
    _check(opened_runs)
    trees = [run.posterior for run in opened_runs]
    # The last state of the chains is left out, because draws can only be added to a single run.
    names = {name for tree in trees for name in tree.children if name != schema.FINAL_STATE}
    for name in names - set(schema.DIMS):
        for run in opened_runs[1:]:
            _check_same_variables(name, run, opened_runs[0])
    draws = min(tree[schema.POSTERIOR].sizes[schema.DRAW] for tree in trees)
    are_draws_cut = any(tree[schema.POSTERIOR].sizes[schema.DRAW] > draws for tree in trees)
    groups = {}
    for name in [name for name in trees[0].children if name in names]:
        # A group is left out if `evaluate` has added it to only some of the runs, or for different draws.
        datasets = [_read(run, name) for run in opened_runs if name in run.posterior.children]
        if name.startswith(schema.WARMUP):
            # With a budget, the runs may have different numbers of steps of warm-up.
            steps = min(dataset.sizes[schema.DRAW] for dataset in datasets)
            datasets = [dataset[{schema.DRAW: slice(-steps, None)}] for dataset in datasets]
        if name in (schema.POSTERIOR, schema.SAMPLE_STATS):
            groups[name] = _join_groups(
                [dataset[{schema.DRAW: slice(-draws, None)}] for dataset in datasets], np.arange(draws)
            )
        elif name not in schema.DIMS or (
            len(datasets) == len(trees) and _have_same_draws(datasets) and not are_draws_cut
        ):
            groups[name] = _join_groups(datasets, _draws(datasets[0]))
    tree = xr.DataTree.from_dict(groups)
    tree.attrs = _attributes(opened_runs, draws)
    run = Run(tree, None, model=opened_runs[0].predictor.model)
    try:
        diagnosis = run.diagnose()
    except DamagedError:
        for opened_run in opened_runs:  # the joined run has no file name, but this message must name the damaged file
            opened_run.diagnose()
        raise
    run_findings = run.findings(diagnosis)
    mixture = chain_mixture.of_run(run.predictor, diagnosis, run_findings)
    tree.attrs |= verdict.convergence_attributes(diagnosis, run_findings, mixture)
    return run


def _check(runs: Sequence[Run]) -> None:
    first, *others = runs
    for run in runs:
        if not run.attributes["recipe"]:
            raise UsageError(
                f"{run.path}: its posterior was made in Python, so the file has no recipe to compare with the other "
                "runs; sample one run with more [[chains]] instead"
            )
    has_budget = all("budget" in run.attributes for run in runs)
    settings = _settings(first, has_budget=has_budget)
    for run in runs:
        if not run.attributes["complete"]:
            raise UsageError(f"{run.path}: the run is not finished; continue it with {resume_call(run.path)}")
    for run in others:
        different_keys = _different_keys(_settings(run, has_budget=has_budget), settings)
        if different_keys:
            remedy = "join only runs with the same recipe"
            if "likelihood" in different_keys:
                remedy = "name the same [[likelihood]] in all runs"
            raise UsageError(
                f"{run.path}: its recipe differs from the recipe of {first.path} in {', '.join(different_keys)}; "
                f"{remedy}"
            )
        if any(run.attributes.get(name) != first.attributes.get(name) for name in _ROW_ATTRIBUTES):
            same = "parties, with the same rows and settings" if "federated" in run.attributes else _DATA_SETTINGS
            raise UsageError(
                f"{run.path}: its training rows differ from those of {first.path}; join only runs with the same {same}"
            )
        constant, first_constant = (each.predictor.record.group(schema.CONSTANT_DATA) for each in (run, first))
        if not _equal(_select(constant, _SCALES), _select(first_constant, _SCALES)):
            raise UsageError(
                f"{run.path}: its means and sds for standardisation differ from those of {first.path}; join only runs "
                "with the same training rows"
            )
        if not _equal(schema.fixed_leaves(constant), schema.fixed_leaves(first_constant)):
            raise UsageError(
                f"{run.path}: its fixed parameters (trained, not sampled) differ from those of {first.path}; sample "
                "one run with more [[chains]] instead"
            )
        moments, first_moments = (schema.prior_moments(each) for each in (constant, first_constant))
        if not all(map(_equal, moments, first_moments)):
            raise UsageError(
                f"{run.path}: its prior differs from that of {first.path}; use the same [[prior_from]] in all runs"
            )
        if not _equal(_select(constant, _ROWS), _select(first_constant, _ROWS)):
            raise UsageError(
                f"{run.path}: its test rows, or the rows of [[keep_at]], differ from those of {first.path}; join only "
                "runs with the same rows"
            )
    seeds = [seed for run in runs for seed in _seeds(run)]
    if len(set(seeds)) < len(seeds):
        raise UsageError(
            "two of the runs have the same seed, so they have the same draws; join runs with different [[seed]]"
        )


def _select(variables: schema.Group, names: Sequence[str]) -> schema.Group:
    return {name: variables[name] for name in names if name in variables}


def _settings(run: Run, *, has_budget: bool) -> dict[str, Any]:
    """Return the settings of a run's recipe that must be equal in all joined runs.

    The runs may differ in the seed and in the numbers of chains and draws. If all runs have a time budget
    (`has_budget`), they may also differ in all numbers of steps that were computed from the budget.
    """
    attributes = run.attributes
    recipe = recipe_from(str(attributes["recipe"]))
    recipe = dataclasses.replace(recipe, seed=0, chains=1, draws=1, budget=None, until=None)
    if has_budget:
        recipe = dataclasses.replace(recipe, warmup=1, planned_warmup=None, thin=1, start_steps=MAX_STEPS)
        if "signature" in attributes:
            sampler = build(registry.load("samplers", recipe.sampler.name), recipe.sampler, "sampler")
            fields = part_from_object(recipe.sampler.name, sampler).fields
            if isinstance(getattr(sampler, sampler.budget_field, None), int):  # the budget sets this field
                fields = {name: value for name, value in fields.items() if name != sampler.budget_field}
            recipe = dataclasses.replace(recipe, sampler=Part(recipe.sampler.name, fields))
    return as_dict(recipe)


def _different_keys(settings: Mapping[str, Any], other_settings: Mapping[str, Any]) -> list[str]:
    """Return the keys with different values. If only fields of a part differ, return the keys of these fields."""
    keys = []
    for key in dict.fromkeys([*settings, *other_settings]):  # a recipe may lack a likelihood or prior
        value, other = settings.get(key), other_settings.get(key)
        if value == other:
            continue
        if isinstance(value, dict) and isinstance(other, dict) and value.get("name") == other.get("name"):
            fields = [*value, *(field for field in other if field not in value)]
            keys += [f"{key}.{field}" for field in fields if value.get(field) != other.get(field)]
        else:
            keys.append(key)
    return keys


def _seeds(run: Run) -> list[int]:
    """Return the seed of a run. For a joined run, return the seeds of all its runs."""
    return json.loads(run.attributes.get("seeds", "[]")) or [int(run.attributes["seed"])]


def _check_same_variables(group: str, run: Run, first: Run) -> None:
    """Check that a group has the same variables in a run and in the first run.

    Without this check, joining would drop some variables without a message.

    Raises:
        UsageError: if a variable is missing or differs in its type or shape, or if a variable without a dimension of
            chains differs in its values.
    """
    variables, first_variables = (_describe_variables(variable, group) for variable in (run, first))
    for name in sorted(variables.keys() | first_variables.keys()):
        variable, first_variable = variables.get(name), first_variables.get(name)
        if variable != first_variable:
            problem = (
                f"{group}/{ascii(name)[1:-1]} is {variable or 'missing'}, but {first_variable or 'missing'} in "
                f"{first.path}"
            )
            raise UsageError(
                f"{run.path}: {problem}; join runs of the same version of bnnzoo, or restore the file from a copy"
            )
    arrays, first_arrays = (variable.predictor.record.group(group) for variable in (run, first))
    for name in arrays:
        if not variables[name].chains and not np.array_equal(arrays[name], first_arrays[name]):
            raise UsageError(
                f"{run.path}: {group}/{ascii(name)[1:-1]} differs from that of {first.path}; restore the "
                "changed file from a copy"
            )


class _VariableShape(NamedTuple):
    """Type of a variable, and its shape without chains and draws. `chains`: whether it has a dimension of chains."""

    dtype: str
    sizes: tuple[tuple[str, int], ...]
    chains: bool

    def __str__(self) -> str:
        return f"{self.dtype}{[size for _, size in self.sizes]}"


def _describe_variables(run: Run, group: str) -> dict[str, _VariableShape]:
    variables = run.posterior[group].data_vars if group in run.posterior.children else {}
    return {
        str(name): _VariableShape(
            str(values.dtype),
            tuple((str(dim), size) for dim, size in values.sizes.items() if dim not in schema.SAMPLED),
            schema.CHAIN in values.dims,
        )
        for name, values in variables.items()
    }


def _read(run: Run, group: str) -> xr.Dataset:
    """Read all variables of a group of a run.

    Raises:
        DamagedError: if the group is damaged; the message names the file.
    """
    return run.posterior[group].to_dataset().copy(data=run.predictor.record.group(group))


def _equal(first: schema.Group, second: schema.Group) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def _have_same_draws(parts: Sequence[xr.Dataset]) -> bool:
    return all(np.array_equal(_draws(part), _draws(parts[0])) for part in parts)


def _draws(part: xr.Dataset) -> np.ndarray:
    """Return the indices of the draws that a group contains; empty for a group without draws."""
    return part[schema.DRAW].to_numpy() if schema.DRAW in part.sizes else np.arange(0)


def _join_groups(parts: Sequence[xr.Dataset], draws: np.ndarray) -> xr.Dataset:
    """Join the groups of several runs along the dimension of chains, with the given indices of the draws.

    Variables without a dimension of chains are taken from the first run.
    """
    variables = {}
    for name, first in parts[0].data_vars.items():
        if schema.CHAIN not in first.dims:
            variables[name] = first
            continue
        # The indices of chains and draws start at 0 in each run, so the joined run gets new indices.
        without_coordinates = [
            part[name].drop_vars([dim for dim in schema.SAMPLED if dim in part[name].coords]) for part in parts
        ]
        variables[name] = xr.concat(without_coordinates, schema.CHAIN)
    dataset = xr.Dataset(variables, attrs=parts[0].attrs)
    numbers = {schema.CHAIN: np.arange(dataset.sizes.get(schema.CHAIN, 0)), schema.DRAW: draws}
    return dataset.assign_coords({dim: numbers[dim] for dim in schema.SAMPLED if dim in dataset.sizes})


def _attributes(runs: Sequence[Run], draws: int) -> dict[str, Any]:
    attributes_of_runs = [run.attributes for run in runs]
    first = {name: value for name, value in attributes_of_runs[0].items() if name not in _SINGLE_RUN_ATTRIBUTES}

    def reduce_if_present(name: str, reduce: Callable[[list[Any]], Any]) -> dict[str, Any]:
        return (
            {name: reduce([attributes[name] for attributes in attributes_of_runs])}
            if all(name in attributes for attributes in attributes_of_runs)
            else {}
        )

    num_chains = [run.posterior[schema.POSTERIOR].sizes[schema.CHAIN] for run in runs]
    stuck, findings_by_run = list[int](), []
    for start, count, attributes in zip(
        np.cumsum([0, *num_chains]).tolist(), num_chains, attributes_of_runs, strict=False
    ):
        stuck += [start + chain for chain in json.loads(attributes.get("stuck_chains", "[]"))]
        findings = from_json(attributes.get("findings", "[]"))
        findings_by_run.append((count, [finding for finding in findings if finding.kind != "stuck"]))
    # The finding about stuck chains is computed again, because the chains have new numbers.
    combined_findings = stuck_finding(dict.fromkeys(stuck, STUCK_STEPS)) + chain_findings.combine_findings(
        findings_by_run
    )
    recipes = [recipe_from(str(attributes["recipe"])) for attributes in attributes_of_runs]
    # Runs with a budget can have different thinning. The largest value is stored.
    thin = max(recipe.thin for recipe in recipes)
    recipe = dataclasses.replace(recipes[0], chains=sum(num_chains), draws=draws, thin=thin)
    joined = {"recipe": to_yaml(as_dict(recipe)), "draws_requested": draws, "draws_done": draws, "tuned": "{}"}
    joined |= {"stuck_chains": json.dumps(stuck), "seeds": json.dumps([seed for run in runs for seed in _seeds(run)])}
    for name in _SUMS:
        joined |= reduce_if_present(name, sum)
    for name in _VERSION_ATTRIBUTES:
        joined |= reduce_if_present(name, _merge_versions)
    inexact = dict.fromkeys(each["inexact_resume"] for each in attributes_of_runs if "inexact_resume" in each)
    if inexact:
        joined["inexact_resume"] = "; ".join(inexact)
    joined["findings"] = to_json(combined_findings)
    joined["regime"] = sentence(combined_findings[0]) if combined_findings else ""
    if combined_findings:
        joined["regime_ok"] = 0
    return first | joined


def _merge_versions(texts: list[str]) -> str:
    """Merge JSON mappings, for example from packages to versions. Different values of a key are joined with commas."""
    versions_by_package: dict[str, dict[str, None]] = {}
    for text in texts:
        for package, version in json.loads(text).items():
            versions_by_package.setdefault(package, {})[version] = None
    return json.dumps({package: ", ".join(versions) for package, versions in versions_by_package.items()})
