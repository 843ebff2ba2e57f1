"""The recipe and the data of a run. If the user names no model and no sampler, the data determine the recipe.

The script benchmarks/own_data.py compares runs of the chosen recipes with other models that need no tuning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnnzoo.errors import UsageError
from bnnzoo.files.shell import sample_call
from bnnzoo.plugins import registry
from bnnzoo.recipe import PARTS, Layer, PartLayer, Recipe, Value, part_names, read_layer, recipe_from, resolve

if TYPE_CHECKING:
    from bnnzoo.data import Dataset

MAX_FULL_BATCH_ROWS = 20_000
"""Largest number of rows, test rows included, for a recipe whose sampler uses all rows in each step.

Each integrator step of the sampler evaluates every row twice. With more rows, the chains would make too few steps in
the default time budget of two minutes.
"""


def recipe_and_data(
    layers: Iterable[Layer], options: Mapping[str, Any], data: Any = None, *, has_own_model: bool = False
) -> tuple[Recipe, Dataset, bool]:
    """Return the recipe of a run, its data, and a boolean: true if the recipe was chosen from the data.

    The recipe is chosen from the data if there are data, and neither a model nor a sampler is named. The data are
    loaded before JAX is imported, so that an error in the data is reported at once.

    Args:
        layers: the user's recipes (from --config).
        options: the options of the user, including the names of the model, the sampler and the other parts.
        data: data in memory; if None, the data that the options or the layers name are loaded.
        has_own_model: whether the model is an object of the user, which has no registered name.

    Raises:
        UsageError: if the options or the data are invalid.
    """
    layers, dataset = list(layers), None
    names = part_names(None, None, layers, options)
    has_data = data is not None or options.get("data") or any("data" in layer.run for layer in layers)
    is_chosen = bool(has_data) and not names["model"] and not names["sampler"]
    if is_chosen:
        layer, dataset = choose_recipe(layers, options, data)
        layers.insert(0, layer)
    recipe = resolve(None, None, layers, options, in_memory=data is not None)
    for kind in PARTS:
        part = getattr(recipe, kind)
        if part and part.name and not (has_own_model and kind == "model"):
            registry.find(f"{kind}s", part.name)
    return recipe, dataset or _load(recipe, data), is_chosen


def _load(recipe: Recipe, data: Any) -> Dataset:
    """Load the data of a recipe. With `prior_from`, the rows are checked and encoded like those of the run it names."""
    from bnnzoo.data import Signature, load_recipe_data  # imports NumPy, so it follows the check of the names

    signature = None
    if recipe.prior_from is not None:
        from bnnzoo import store

        attributes = store.attributes_of(Path(recipe.prior_from))
        # If the file does not describe its data, `sequential.build_problem` reports why.
        with contextlib.suppress(LookupError, ValueError):
            signature = Signature.from_json(str(attributes["signature"]))
    return load_recipe_data(recipe, data, signature)


def choose_recipe(layers: Iterable[Layer], options: Mapping[str, Any], data: Any = None) -> tuple[Layer, Dataset]:
    """Return the shipped recipe that suits the data, and the loaded data.

    The recipe is returned as a `Layer`. The user's recipes and options have precedence over the returned recipe.

    Args:
        layers: the user's recipes (from --config).
        options: the options of the user.
        data: data in memory; if None, the data that the options or the layers name are loaded.

    Raises:
        UsageError: if the options or the data are invalid.
    """
    # Reading the data does not depend on the parts, so any names can be used until the rows are loaded.
    provisional = resolve("mlp", "mams", layers, options, in_memory=data is not None)
    dataset = _load(provisional, data)
    from bnnzoo.assembly.recipe_parts import likelihood_task  # imports JAX, so it follows the checks of the data

    name, reason = recipe_rule(dataset.as_task(provisional.task or likelihood_task(provisional)))
    note = f"{dataset.name}: {reason}; using the recipe {name} (bnnzoo show --config {name} prints it)"
    layer = read_layer(name)
    if provisional.prior_from is not None:
        layer = _with_earlier_model(layer, Path(provisional.prior_from))
    return layer, replace(dataset, notes=(*dataset.notes, note))


def _with_earlier_model(layer: Layer, earlier: Path) -> Layer:
    """Return a chosen recipe with the model of an earlier run. Other settings are taken from that run later."""
    from bnnzoo import store
    from bnnzoo.models import own

    recipe = str(store.attributes_of(earlier)["recipe"])
    model = recipe_from(recipe).model.name if recipe else own.PREFIX
    if model.startswith(own.PREFIX):
        return layer  # `sequential.build_problem` reports why this run cannot be used
    parts = {"model": PartLayer(Value(model, str(earlier))), "sampler": layer.parts["sampler"]}
    return replace(layer, parts=parts, run={key: value for key, value in layer.run.items() if key != "stochastic"})


def recipe_rule(dataset: Dataset) -> tuple[str, str]:
    """Return the name of the shipped recipe for the data, and the reason for this choice.

    Raises:
        UsageError: if the data have no inputs. No shipped recipe is meant for such data.
    """
    if dataset.task == "density":
        raise UsageError(
            f"{dataset.name}: the data have no inputs, so no recipe is chosen for them; name a model and a sampler, as "
            f"in {sample_call('autoregressive', 'nuts', '[[data=FILE]]')}"
        )
    rows = f"{dataset.num_data} rows"
    if dataset.x.ndim > 2:
        return "images", f"{dataset.num_data} images"
    if dataset.num_data > MAX_FULL_BATCH_ROWS:
        kind = "large-table" if dataset.task == "regression" else "large-table-classes"
        return kind, f"{rows}, too many for a sampler that uses all rows in each step"
    kind = "small-table" if dataset.task == "regression" else "small-table-classes"
    return kind, f"{rows}, few enough for a sampler that uses all rows in each step"
