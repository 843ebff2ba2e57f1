"""Addition of draws to a finished run."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from bnnzoo import store
from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.models import AbstractModel
from bnnzoo.recipe import Recipe, duration, to_yaml
from bnnzoo.sampling.initial.budget import MAX_DRAWS
from bnnzoo.sampling.launch import disk_bytes
from bnnzoo.store.schema import CONSTANT_DATA, OBSERVED_DATA, ROW_SOURCE


def extend(out: Path, *, draws: int | None, budget: str | None, model: AbstractModel | None) -> None:
    """Turn a finished run into an unfinished run with more draws, which `relaunch` then continues.

    Args:
        out: the file of the finished run. The file stays until the extended run replaces it.
        draws: number of draws per chain of the extended run, the present draws included.
        budget: additional time, such as "2m". The run ends earlier if the chains have converged.
        model: the user's own model, if it is not registered.

    Raises:
        UsageError: if the run cannot be extended, if `draws` is not larger than the present number, if `budget` is not
            a time, if both or neither of `draws` and `budget` are given, or if the disk has too little space.
    """
    if (draws is None) == (budget is None):
        raise UsageError(f"{out}: to add draws to a run, give exactly one of [[draws]] and [[budget]]")
    store.check_extensible(out)
    attributes = store.attributes_of(out)
    with store.open_tree(out) as tree:
        constant, observed = (store.read_group(out, tree, group) for group in (CONSTANT_DATA, OBSERVED_DATA))
    # If the file refers to its training rows, only `relaunch` reads them.
    problem = Problem.restored(attributes, constant, None if ROW_SOURCE in attributes else observed, model)
    recipe = _longer_recipe(problem.recipe, attributes, out, draws=draws, budget=budget)
    problem = problem.with_lengths(recipe, problem.sampler)
    store.check_room(out, disk_bytes(problem), remedy="make room, or use a smaller [[draws]]")
    if budget is None:
        attributes.pop("budget", None)
    attributes |= {"recipe": to_yaml(problem.resolved_recipe()), "draws_requested": recipe.draws}
    store.reopen_finished(out, attributes)


def _longer_recipe(
    recipe: Recipe, attributes: store.Attributes, out: Path, *, draws: int | None, budget: str | None
) -> Recipe:
    if draws is not None:
        if draws <= recipe.draws:
            raise UsageError(
                f"{out}: has {recipe.draws} draws per chain, so [[draws]], the new total per chain, must be "
                f"larger (got {draws})"
            )
        return dataclasses.replace(recipe, draws=draws)
    assert budget is not None
    try:
        more_seconds = duration.seconds(budget)
    except ValueError as error:
        raise UsageError(f"[[budget]]: {error}") from None
    used_seconds = float(attributes["seconds_warmup"]) + float(attributes["seconds_sampling"])
    total = f"{math.ceil(used_seconds + more_seconds)}s"
    return dataclasses.replace(recipe, draws=recipe.draws + MAX_DRAWS, budget=total, until="converged")
