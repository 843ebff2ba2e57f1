"""Runs of one recipe, each with a seed of its own, as one run of all their chains."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bnnzoo import zoo
from bnnzoo.errors import UsageError
from bnnzoo.evaluation import diagnostics, findings
from bnnzoo.recipe import Recipe, as_dict, recipe_from, to_yaml
from bnnzoo.run import Run
from bnnzoo.store import schema

_SUMS = ("seconds_compile", "seconds_warmup", "seconds_sampling", "target_evaluations", "restarted")
_OF_ONE = ("tuned", "inspected", "findings", "stops", "ended", "budget", "inexact_resume")
"""Attributes that say how one of the runs went: of several there is none."""


def concat(runs: Sequence[Run | str | Path]) -> Run:
    """One run, in memory, of the chains of several: `Run.save` writes it.

    Draws beyond those of the shortest run are left out, the earliest first. What the file says of convergence is looked
    at anew, of all chains together; seconds and evaluations are sums.

    Raises:
        UsageError: for fewer than two, runs of different recipes or rows, an unfinished one, or ones that trained what
            they did not sample each for itself.
    """
    opened = [run if isinstance(run, Run) else zoo.open(run) for run in runs]
    if len(opened) < 2:
        raise UsageError("one run; give two or more to join")
    _check(opened)
    trees = [run.posterior for run in opened]
    draws = min(tree[schema.POSTERIOR].sizes[schema.DRAW] for tree in trees)
    # What `evaluate` added to some of them only is left out.
    names = [name for name in trees[0].children if all(name in tree.children for tree in trees)]
    groups = {name: _joined([tree[name].to_dataset() for tree in trees], draws) for name in names}
    joined = xr.DataTree.from_dict(groups)
    joined.attrs = _attributes(opened, draws)
    run = Run(joined, None)
    diagnosis = run.diagnose()
    found = findings.judged(diagnosis)
    joined.attrs["verdict"] = findings.verdict(str(diagnosis["exactness"]), found, findings.bias(diagnosis))
    if diagnostics.is_chain(str(diagnosis["exactness"])):
        joined.attrs["converged"] = int(not any(finding.topic == "convergence" for finding in found))
        joined.attrs |= {name: float(diagnosis[name]) for name in ("rhat", "ess_bulk")}
    return run


def _check(runs: Sequence[Run]) -> None:
    first, *others = runs
    about = _asked(first)
    for run in runs:
        if not run.attributes["complete"]:
            raise UsageError(f"{run.path}: not finished; bnnzoo resume {run.path}")
    seeds = [seed for run in runs for seed in _seeds(run)]
    if len(set(seeds)) < len(seeds):
        raise UsageError("two runs of one seed have the same draws; join runs of different --seed")
    for run in others:
        differ = [key for key, value in _asked(run).items() if value != about[key]]
        if differ:
            raise UsageError(f"{run.path}: not of the recipe of {first.path}: {', '.join(differ)}")
        if run.attributes.get("data_sha256") != first.attributes.get("data_sha256"):
            raise UsageError(f"{run.path}: not trained on the rows of {first.path}")
        fixed, same = (_fixed(one) for one in (run, first))
        if not all(np.array_equal(fixed[name], same[name]) for name in same):
            raise UsageError(f"{run.path}: what is not sampled was trained anew, and is not that of {first.path}")


def _asked(run: Run) -> dict[str, Any]:
    """What must be the same: all but how many chains and draws, and the seed."""
    recipe = recipe_from(str(run.attributes["recipe"]))
    return as_dict(dataclasses.replace(recipe, seed=0, chains=1, draws=1, budget=None, until=None))


def _seeds(run: Run) -> list[int]:
    """One, or those of the runs that it was joined from."""
    return json.loads(run.attributes.get("seeds", "[]")) or [int(run.attributes["seed"])]


def _fixed(run: Run) -> dict[str, np.ndarray]:
    constant = run.posterior[schema.CONSTANT_DATA].data_vars
    return schema.fixed_leaves({str(name): values.to_numpy() for name, values in constant.items()})


def _joined(parts: Sequence[xr.Dataset], draws: int) -> xr.Dataset:
    """A group of all chains; what has no chains is the first run's."""
    found = {}
    for name, first in parts[0].data_vars.items():
        if schema.CHAIN not in first.dims:
            found[name] = first
            continue
        last = [
            part[name][{schema.DRAW: slice(-draws, None)}] if schema.DRAW in first.dims else part[name]
            for part in parts
        ]
        # Chains and draws are counted anew: those of each run began at 0.
        bare = [one.drop_vars([dim for dim in schema.SAMPLED if dim in one.coords]) for one in last]
        found[name] = xr.concat(bare, schema.CHAIN)
    joined = xr.Dataset(found, attrs=parts[0].attrs)
    return joined.assign_coords({dim: np.arange(joined.sizes[dim]) for dim in schema.SAMPLED if dim in joined.sizes})


def _attributes(runs: Sequence[Run], draws: int) -> dict[str, Any]:
    every = [run.attributes for run in runs]
    first = {name: value for name, value in every[0].items() if name not in _OF_ONE}

    def of_all(name: str, reduce: Callable[[list[Any]], Any]) -> dict[str, Any]:
        return {name: reduce([one[name] for one in every])} if all(name in one for one in every) else {}

    stuck, before = [], 0
    for run, about in zip(runs, every, strict=True):
        stuck += [before + chain for chain in json.loads(about.get("stuck_chains", "[]"))]
        before += run.posterior[schema.POSTERIOR].sizes[schema.CHAIN]
    recipe: Recipe = dataclasses.replace(recipe_from(str(first["recipe"])), chains=before, draws=draws)
    bad = [one for one in every if one["regime_ok"] == 0]
    joined = {"recipe": to_yaml(as_dict(recipe)), "draws_requested": draws, "draws_done": draws, "tuned": "{}"}
    joined |= {"stuck_chains": json.dumps(stuck), "seeds": json.dumps([seed for run in runs for seed in _seeds(run)])}
    for name in _SUMS:
        joined |= of_all(name, sum)
    if bad:
        joined |= {"regime_ok": 0, "regime": bad[0].get("regime", "")}
    return first | joined
