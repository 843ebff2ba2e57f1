"""Merging of options, recipe files and shipped recipes into one `Recipe`.

The order of precedence, highest first, is: options, later `--config` files, earlier `--config` files, the shipped
recipe for the model and the sampler together, the shipped recipe for the sampler, the shipped recipe for the model,
defaults. The fields of the parts are not validated here. `build` validates them later, because validation imports the
class of the part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.files.shell import quoted, sample_call
from bnnzoo.finding import setting, spelling
from bnnzoo.plugins import failures, registry
from bnnzoo.recipe import duration, mesh, yaml
from bnnzoo.recipe.fields import fields_of
from bnnzoo.recipe.layers import Layer, Value, file_layer, layer_of, option_layer
from bnnzoo.recipe.parts import Part, validate
from bnnzoo.recipe.recipe import PARTS, RUN_FIELDS, Recipe
from bnnzoo.recipe.shipped_files import find_entry, recipes_of, shipped

BUDGET = "2m"
_SHORT_BUDGET_SECONDS = 10.0
"""Smallest budget, in seconds, with which a run tests convergence by default."""


def resolve(
    model: str | None,
    sampler: str | None,
    layers: Iterable[Layer] = (),
    options: Mapping[str, Any] | None = None,
    *,
    in_memory: bool = False,
    complete: bool = False,
) -> Recipe:
    """Merge names, recipe files, shipped recipes and options into one recipe.

    Args:
        model: the name of the model, or None.
        sampler: the name of the sampler, or None.
        layers: the layers of the recipe files, in order of increasing precedence.
        options: a raw value, or a `Value` with its place, for each option. A key is a setting of the run ("chains"), a
            part ("likelihood"), or a field of a part ("sampler.step_size"). An option with the value None is ignored.
        in_memory: whether the data are in memory. If true, no `example` section of a recipe applies.
        complete: whether the layers contain all settings, as in a run's file. If true, no shipped recipe is added.

    Raises:
        UsageError: if a setting is unknown, missing or invalid, or if settings conflict. The message has one line for
            each problem.
    """
    user = [*layers, option_layer(model, sampler, options or {})]
    parts, merged = _merge(user, in_memory, complete)
    # A problem can occur twice: the user may name a shipped recipe that `_merge` also adds, and the problems of a
    # recipe include the problems of its example.
    problems = list(dict.fromkeys(problem for layer in merged for problem in layer.problems))
    swept_sources = [layer.source for layer in merged if layer.sweep]
    problems += [
        f"{source}: sweep: defines several runs, but this command makes one run; use {_sweep_command(user, parts)}"
        for source in swept_sources
    ]
    missing_kinds = [kind for kind in ("model", "sampler") if not parts[kind].name]
    if len(missing_kinds) == 2:
        problems.append(
            f"no model and no sampler; name both, such as {sample_call('mdn', 'penalty')}, or give only "
            "[[data=FILE]], so that bnnzoo chooses both; bnnzoo list shows all names"
        )
    elif missing_kinds:
        # bnnzoo.sample has no keyword for recipe files.
        config = ", or give a [[config]] that names one" if spelling() == "options" else ""
        problems.append(
            f"no {missing_kinds[0]}; name one ({sample_call('MODEL', 'SAMPLER')}){config}; "
            f"bnnzoo list {missing_kinds[0]}s shows all names"
        )
    problems += _missing_parts(parts, merged)
    run: dict[str, Value] = {}
    for layer in merged:
        run.update(layer.run)
    problems += _keep_one_prior(parts, run, merged)
    if in_memory:
        run.pop("data", None)
    run_part = _part("", run)
    values, run_problems = validate(list(RUN_FIELDS.values()), run_part, "")
    problems += run_problems
    problems += _add_budget(values, run_part, own_data=in_memory or any("data" in layer.run for layer in user))
    for name, check in (("budget", duration.seconds), ("mesh", mesh.axes)):
        if values.get(name) is not None:
            try:
                check(values[name])
            except ValueError as error:
                problems.append(f"{run_part.where.get(name, name)}: {error}")
    if problems:
        raise UsageError("\n".join(problems))
    optional = {kind: part if part.name or part.fields else None for kind, part in parts.items()}
    return Recipe(
        model=parts["model"],
        sampler=parts["sampler"],
        likelihood=optional["likelihood"],
        prior=optional["prior"],
        **values,
        where=run_part.where,
    )


def _sweep_command(user: Sequence[Layer], parts: Mapping[str, Part]) -> str:
    """Return the command that makes all runs of a sweep. `user` contains the recipes of the user, then the options."""
    *recipes, options = user
    names_part = any(part.name for kind, part in options.parts.items() if kind in ("model", "sampler"))
    if len(recipes) == 1 and not names_part:
        return f"bnnzoo zoo run {quoted(recipes[0].source)}"
    pair = f"{parts['model'].name or 'MODEL'}.{parts['sampler'].name or 'SAMPLER'}"
    return " ".join(["bnnzoo zoo run", pair, *(setting("config", recipe.source) for recipe in recipes)])


def part_names(
    model: str | None,
    sampler: str | None,
    layers: Iterable[Layer] = (),
    options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the name of each part after merging, or "" if no name is given. The settings are not checked."""
    parts, _ = _merge([*layers, option_layer(model, sampler, options or {})])
    return {kind: part.name for kind, part in parts.items()}


def recipe_from(text: str, source: str = "recipe") -> Recipe:
    """Return the recipe in the attribute `recipe` of a run's file.

    Raises:
        UsageError: if the text is invalid. The message has only one line, because users do not edit this text.
    """
    try:
        return resolve(None, None, [layer_of(yaml.parse(text, source), source)], complete=True)
    except UsageError as error:
        raise UsageError("; ".join(str(error).splitlines())) from error


def broken_recipes() -> list[str]:
    """Return a message with file and line number for each problem of the shipped recipes."""
    problems: list[str] = []
    for name in registry.entries(registry.RECIPES):
        try:
            path = shipped(name)
            problems += file_layer(path).problems if path else ()
        except UsageError as error:
            problems.append(str(error))
    return problems


def broken_parts() -> list[str]:
    """Return a message with file and line number for each registered part whose fields are invalid."""
    problems: list[str] = []
    for kind in PARTS:
        for name, entry in registry.entries(f"{kind}s").items():
            try:
                fields_of(registry.load(f"{kind}s", name))
            except UsageError:
                continue  # the part cannot be loaded, which `registry.import_failures` reports
            except BnnzooError as error:
                problems.append(f"{entry.declared}: {kind} {entry.full_name} ({entry.target}): {error}")
    return problems


def _add_budget(values: dict[str, Any], run_part: Part, *, own_data: bool) -> list[str]:
    """Add the default budget to `values` if the data are the user's own.

    No budget is added if an option or a recipe sets `warmup`, `draws` or `budget`. A budget is the default because the
    necessary number of draws is unknown for the user's data, but a time limit is easy to choose. If a budget is set,
    the missing value of `until` is added too.

    Returns:
        a message if `until` is "budget" and there is no budget; otherwise an empty list.
    """
    if own_data and not {"warmup", "draws", "budget"} & set(run_part.fields):
        values["budget"] = BUDGET
    if values.get("budget"):
        values["until"] = values.get("until") or ("budget" if _is_short(values["budget"]) else "converged")
    elif values.get("until") == "budget":
        return [f"{run_part.where.get('until', 'until')}: requires a budget; add [[budget=5m]], or remove [[until]]"]
    return []


def _is_short(budget: str) -> bool:
    """Whether a budget is so short that convergence tests, which take about a second each, would not save time."""
    with contextlib.suppress(ValueError):  # an invalid text is reported later, by `resolve`
        return duration.seconds(budget) < _SHORT_BUDGET_SECONDS
    return False


def _keep_one_prior(parts: dict[str, Part], run: dict[str, Value], layers: list[Layer]) -> list[str]:
    """Remove the one of `prior` (in `parts`) and `prior_from` (in `run`) that has the lower precedence.

    Returns:
        a message if both have the same precedence; otherwise an empty list.
    """
    if run.get("prior_from", Value(None, "")).raw is None:
        return []
    prior_rank = max((i for i, layer in enumerate(layers) if "prior" in layer.parts), default=-1)
    prior_from_rank = max(i for i, layer in enumerate(layers) if "prior_from" in layer.run)
    if prior_rank == prior_from_rank:
        return [f"{run['prior_from'].where}: sets the prior, so it conflicts with [[prior]]; remove one of them"]
    if prior_rank > prior_from_rank:
        del run["prior_from"]
    else:
        parts["prior"] = Part("")
    return []


def _missing_parts(parts: Mapping[str, Part], layers: list[Layer]) -> list[str]:
    """Return a message for each unknown part if packages that a recipe requires are missing; otherwise return []."""
    required_packages = dict.fromkeys(package for layer in layers for package in layer.requires)
    if not required_packages:
        return []
    loaded_packages = {plugin.distribution for plugin in registry.plugins()}
    absent = [package for package in required_packages if registry.canonical(package) not in loaded_packages]
    missing = [package for package in absent if not failures.is_installed(package)]
    reason = f"not installed: pip install {' '.join(missing)}"
    if not missing:
        reason = f"disabled: {', '.join(absent)}; {failures.ENABLE}"
    return [
        f"no {kind} named {part.name!r}; this recipe needs packages that are {reason}"
        for kind, part in parts.items()
        if absent and part.name and registry.get(f"{kind}s", part.name) is None
    ]


def _merge(user: list[Layer], in_memory: bool = False, complete: bool = False) -> tuple[dict[str, Part], list[Layer]]:
    """Return the merged parts, and all layers in order of increasing precedence.

    The settings of an example are included only if the run uses the data of the example. If an example names no data,
    its data are those of another example: the next lower one in precedence that names data.
    """
    user_names = {kind: _last_name(kind, user) for kind in PARTS}
    paths = [] if complete else recipes_of(user_names["model"], user_names["sampler"])
    layers = [*(_without_overridden_fields(file_layer(path), user_names) for path in paths), *user]
    examples: list[tuple[Layer | None, Any]] = []
    data = None
    for layer in layers:
        if layer.example and "data" in layer.example.run:
            data = layer.example.run["data"].raw
        examples.append((layer.example, data))
    user_data = [layer.run["data"].raw for layer in user if "data" in layer.run]
    data = user_data[-1] if user_data else data
    merged: list[Layer] = []
    for layer, (example, example_data) in zip(layers, examples, strict=True):
        merged += [layer, example] if example and not in_memory and example_data == data else [layer]
    return {kind: _merge_part(kind, merged) for kind in PARTS}, merged


def _last_name(kind: str, layers: list[Layer]) -> str:
    names = [part.name.raw for layer in layers if (part := layer.parts.get(kind)) and part.name]
    return names[-1] if names else ""


def _without_overridden_fields(layer: Layer, user_names: Mapping[str, str]) -> Layer:
    """Return a shipped recipe without its likelihood or prior fields, if the user names this likelihood or prior.

    `user_names` contains the name that the user gave for each part, or "". If the recipe names the part itself, its
    fields are kept, because they belong to that name.
    """
    overridden = [
        kind_named
        for kind_named in ("likelihood", "prior")
        if user_names[kind_named] and kind_named in layer.parts and layer.parts[kind_named].name is None
    ]
    parts = {kind: part for kind, part in layer.parts.items() if kind not in overridden}
    return replace(layer, parts=parts, example=layer.example and _without_overridden_fields(layer.example, user_names))


def _merge_part(kind: str, layers: list[Layer]) -> Part:
    name, fields = "", dict[str, Value]()
    for layer in layers:
        part = layer.parts.get(kind)
        if part is None:
            continue
        if part.name is not None:
            if name and not _same(kind, part.name.raw, name):
                fields = {}
            name = part.name.raw
        fields.update(part.fields)
    return _part(name, fields)


def _part(name: str, fields: Mapping[str, Value]) -> Part:
    raw_values = {key: value.raw for key, value in fields.items()}
    return Part(name, raw_values, {key: value.where for key, value in fields.items()})


def _same(kind: str, first: str, second: str) -> bool:
    """Whether two names mean the same part, such as `bnnzoo:mlp` and `mlp`."""
    return first == second or (find_entry(f"{kind}s", first) or first) == (find_entry(f"{kind}s", second) or second)
