"""Joining of runs of one recipe with different seeds into one run with all chains."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from bnnzoo import registry, zoo
from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.finding import from_json, sentence, to_json
from bnnzoo.recipe import as_dict, build, recipe_from, to_yaml, written
from bnnzoo.run import Run
from bnnzoo.sampling import ending, judgement
from bnnzoo.sampling.start import MOST_STEPS
from bnnzoo.sampling.stuck import STUCK_STEPS, finding_of
from bnnzoo.shell import quoted
from bnnzoo.store import schema

_SUMS = (*(f"seconds_{part}" for part in schema.SECONDS), "target_evaluations", "restarted")
_OF_ONE = ("tuned", "inspected", "stops", "ended")
"""Attributes that describe a single run; a joined run does not have them."""
_MADE_BY = ("versions", "plugins", "plugin_sources")
_OF_ROWS = ("data_sha256", "signature", "federated")
"""Attributes that identify the rows and their owners; rows of a federated run stay with their parties."""
_SCALES = ("x_mean", "x_sd", "y_mean", "y_sd")
_ROWS = ("x_test", "y_test", schema.KEPT_ROWS)


def concat(runs: Sequence[Run | str | Path]) -> Run:
    """Join the chains of several runs into one run in memory; `Run.save` writes it.

    The earliest draws of longer runs are dropped, so that all chains have the length of the shortest run. Convergence
    is tested again for all chains together. Seconds and evaluations are summed.

    Args:
        runs: runs or their files.

    Raises:
        UsageError: for fewer than two runs, different recipes, rows or variables, equal seeds, an unfinished run, or
            different values of the parameters that are trained and not sampled.
        DamagedError: if a file is damaged; the message names it.
    """
    opened = [run if isinstance(run, Run) else zoo.open(run) for run in runs]
    if len(opened) < 2:
        raise UsageError("expected two or more runs to join (got one)")
    _check(opened)
    trees = [run.posterior for run in opened]
    for name in {name for tree in trees for name in tree.children if name not in schema.DIMS}:
        for run in opened[1:]:
            _check_alike(name, run, opened[0])
    draws = min(tree[schema.POSTERIOR].sizes[schema.DRAW] for tree in trees)
    cut = any(tree[schema.POSTERIOR].sizes[schema.DRAW] > draws for tree in trees)
    groups = {}
    for name in trees[0].children:
        # A group that `evaluate` added to some of the runs only, or for other draws, is left out.
        found = [_read(run, name) for run in opened if name in run.posterior.children]
        if name in (schema.POSTERIOR, schema.SAMPLE_STATS):
            groups[name] = _joined([one[{schema.DRAW: slice(-draws, None)}] for one in found], np.arange(draws))
        elif name not in schema.DIMS or (len(found) == len(trees) and _of_same_draws(found) and not cut):
            groups[name] = _joined(found, _draws(found[0]))
    joined = xr.DataTree.from_dict(groups)
    joined.attrs = _attributes(opened, draws)
    run = Run(joined, None, model=opened[0].predictor.model)
    try:
        diagnosis = run.diagnose()
    except DamagedError:
        for one in opened:  # A run in memory has no name, so diagnosing each file finds the damaged one.
            one.diagnose()
        raise
    joined.attrs |= ending.said(diagnosis, run.findings(diagnosis))
    return run


def _check(runs: Sequence[Run]) -> None:
    first, *others = runs
    for run in runs:
        if not run.attributes["recipe"]:
            raise UsageError(
                f"{run.path}: its posterior was made in Python, so it has no recipe to compare; sample more "
                "chains of it instead"
            )
    clocked = all("budget" in run.attributes for run in runs)
    about = _asked(first, clocked=clocked)
    for run in runs:
        if not run.attributes["complete"]:
            raise UsageError(f"{run.path}: is not finished; continue it with bnnzoo resume {quoted(run.path)}")
    seeds = [seed for run in runs for seed in _seeds(run)]
    if len(set(seeds)) < len(seeds):
        raise UsageError("two runs with the same seed have the same draws; join runs with different [[seed]]")
    for run in others:
        differ = [key for key, value in _asked(run, clocked=clocked).items() if value != about[key]]
        if differ:
            cure = "; name the [[likelihood]] in runs that are to be joined" if "likelihood" in differ else ""
            raise UsageError(
                f"{run.path}: was made by another recipe than {first.path}, which differs in {', '.join(differ)}{cure}"
            )
        if any(run.attributes.get(name) != first.attributes.get(name) for name in _OF_ROWS):
            raise UsageError(f"{run.path}: was trained on other rows than {first.path}")
        constant, same = (_constant(one) for one in (run, first))
        if not _equal(*({name: one[name] for name in _SCALES if name in one} for one in (constant, same))):
            raise UsageError(f"{run.path}: its rows are standardised in another way than those of {first.path}")
        if not _equal(schema.fixed_leaves(constant), schema.fixed_leaves(same)):
            raise UsageError(
                f"{run.path}: its fixed parameters were trained again, and differ from those of {first.path}"
            )
        rows = ({name: one[name] for name in _ROWS if name in one} for one in (constant, same))
        if not _equal(*rows):
            raise UsageError(f"{run.path}: its test rows, or those of [[keep_at]], differ from those of {first.path}")


def _asked(run: Run, *, clocked: bool) -> dict[str, Any]:
    """Return the settings that must be equal.

    Excluded are numbers of chains and draws, the seed, and for time-limited runs the lengths that the clock chose.
    """
    about = run.attributes
    recipe = recipe_from(str(about["recipe"]))
    recipe = dataclasses.replace(recipe, seed=0, chains=1, draws=1, budget=None, until=None)
    if clocked:
        recipe = dataclasses.replace(recipe, warmup=1, thin=1, start_steps=MOST_STEPS)
        if "signature" in about:
            sampler = build(registry.load("samplers", recipe.sampler.name), recipe.sampler, "sampler")
            recipe = dataclasses.replace(recipe, sampler=written(recipe.sampler.name, sampler.within(0.0)))
    return as_dict(recipe)


def _seeds(run: Run) -> list[int]:
    """Return the seed of a run, or the seeds of the runs that it was joined from."""
    return json.loads(run.attributes.get("seeds", "[]")) or [int(run.attributes["seed"])]


def _constant(run: Run) -> dict[str, np.ndarray]:
    """Return the variables of constant_data; a posterior defined in Python has none."""
    return run.predictor.record.group(schema.CONSTANT_DATA)


def _check_alike(group: str, run: Run, first: Run) -> None:
    """Refuse a run whose group has other variables than that of the first run.

    Without this check, variables would be dropped silently.

    Raises:
        UsageError: if a variable is missing or differs.
    """
    here, there = (_described(one, group) for one in (run, first))
    for name in sorted(here.keys() | there.keys()):
        one, other = here.get(name), there.get(name)
        if one != other:
            said = f"{group}/{ascii(name)[1:-1]} is {one or 'missing'}, but {other or 'missing'} in {first.path}"
            raise UsageError(
                f"{run.path}: {said}; join runs that one version of bnnzoo made, or restore the original file"
            )
    held, wanted = (one.predictor.record.group(group) for one in (run, first))
    for name in held:
        if not here[name].chains and not np.array_equal(held[name], wanted[name]):
            raise UsageError(f"{run.path}: {group}/{ascii(name)[1:-1]} differs from that of {first.path}")


class _Described(NamedTuple):
    """Type and shape of a variable, without chains and draws."""

    dtype: str
    sizes: tuple[tuple[str, int], ...]
    chains: bool

    def __str__(self) -> str:
        return f"{self.dtype}{[size for _, size in self.sizes]}"


def _described(run: Run, group: str) -> dict[str, _Described]:
    held = run.posterior[group].data_vars if group in run.posterior.children else {}
    return {
        str(name): _Described(
            str(values.dtype),
            tuple((str(dim), size) for dim, size in values.sizes.items() if dim not in schema.SAMPLED),
            schema.CHAIN in values.dims,
        )
        for name, values in held.items()
    }


def _read(run: Run, group: str) -> xr.Dataset:
    """Read a whole group of a run.

    Raises:
        DamagedError: if it is damaged; the message names the file.
    """
    return run.posterior[group].to_dataset().copy(data=run.predictor.record.group(group))


def _equal(one: schema.Group, other: schema.Group) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _of_same_draws(parts: Sequence[xr.Dataset]) -> bool:
    return all(np.array_equal(_draws(one), _draws(parts[0])) for one in parts)


def _draws(part: xr.Dataset) -> np.ndarray:
    """Return the indices of a group's draws in the run; empty for a group without draws."""
    return part[schema.DRAW].to_numpy() if schema.DRAW in part.sizes else np.arange(0)


def _joined(parts: Sequence[xr.Dataset], draws: np.ndarray) -> xr.Dataset:
    """Join a group over all chains, with the given draw indices; variables without chains come from the first run."""
    found = {}
    for name, first in parts[0].data_vars.items():
        if schema.CHAIN not in first.dims:
            found[name] = first
            continue
        # Chains and draws are numbered anew, because those of each run start at 0.
        bare = [one[name].drop_vars([dim for dim in schema.SAMPLED if dim in one[name].coords]) for one in parts]
        found[name] = xr.concat(bare, schema.CHAIN)
    joined = xr.Dataset(found, attrs=parts[0].attrs)
    numbers = {schema.CHAIN: np.arange(joined.sizes.get(schema.CHAIN, 0)), schema.DRAW: draws}
    return joined.assign_coords({dim: numbers[dim] for dim in schema.SAMPLED if dim in joined.sizes})


def _attributes(runs: Sequence[Run], draws: int) -> dict[str, Any]:
    every = [run.attributes for run in runs]
    first = {name: value for name, value in every[0].items() if name not in _OF_ONE}

    def of_all(name: str, reduce: Callable[[list[Any]], Any]) -> dict[str, Any]:
        return {name: reduce([one[name] for one in every])} if all(name in one for one in every) else {}

    stuck, before, of_samplers = list[int](), 0, []
    for run, about in zip(runs, every, strict=True):
        stuck += [before + chain for chain in json.loads(about.get("stuck_chains", "[]"))]
        chains = run.posterior[schema.POSTERIOR].sizes[schema.CHAIN]
        before += chains
        of_samplers.append((chains, [one for one in from_json(about.get("findings", "[]")) if one.kind != "stuck"]))
    # The finding is written again with the new numbers of the chains.
    found = finding_of(dict.fromkeys(stuck, STUCK_STEPS)) + judgement.of_runs(of_samplers)
    recipe, *others = (recipe_from(str(one["recipe"])) for one in every)
    # If the clock chose the thinning, the largest value is stored.
    thin = max(one.thin for one in (recipe, *others))
    recipe = dataclasses.replace(recipe, chains=before, draws=draws, thin=thin)
    joined = {"recipe": to_yaml(as_dict(recipe)), "draws_requested": draws, "draws_done": draws, "tuned": "{}"}
    joined |= {"stuck_chains": json.dumps(stuck), "seeds": json.dumps([seed for run in runs for seed in _seeds(run)])}
    for name in _SUMS:
        joined |= of_all(name, sum)
    for name in _MADE_BY:
        joined |= of_all(name, _all_of)
    if inexact := dict.fromkeys(one["inexact_resume"] for one in every if "inexact_resume" in one):
        joined |= {"inexact_resume": "; ".join(inexact)}
    joined |= {"findings": to_json(found), "regime": sentence(found[0]) if found else ""}
    joined |= {"regime_ok": 0} if found else {}
    return first | joined


def _all_of(texts: list[str]) -> str:
    """Merge JSON mappings of packages to versions (or modules to digests), with all values of each key."""
    found: dict[str, dict[str, None]] = {}
    for text in texts:
        for package, version in json.loads(text).items():
            found.setdefault(package, {})[version] = None
    return json.dumps({package: ", ".join(versions) for package, versions in found.items()})
