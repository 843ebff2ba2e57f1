"""Commands that take a recipe: `MODEL SAMPLER`, options of the run, and fields of the named parts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from bnnzoo.cli.options import option, parameter
from bnnzoo.cli.part_command import add_command
from bnnzoo.cli.part_options import PartOptions, part_options
from bnnzoo.errors import UsageError
from bnnzoo.files.user_paths import refuse_input_as_output
from bnnzoo.finding import setting
from bnnzoo.plugins import registry
from bnnzoo.progress_bar import observer
from bnnzoo.recipe import PARTS, RUN_FIELDS, Layer, part_names, read_layer

Body = Callable[..., None]
"""The function of a command, called as `body(recipe, dataset, is_recipe_chosen, words=words, **extras)`.

`is_recipe_chosen` is true if the recipe was chosen from the data; see `recipe_and_data`. `words` are the arguments as
typed.
"""


def add_recipe_command(
    app: typer.Typer,
    name: str,
    body: Body,
    extras: Sequence[inspect.Parameter],
    by_name: Callable[[str], None] | None = None,
) -> None:
    """Add a command that takes a recipe.

    Args:
        app: the application.
        name: the name of the command.
        body: the function of the command.
        extras: the command's own options.
        by_name: the function that is called if the only argument is a run file or one name; None if the command always
            needs a recipe.
    """
    extra_names = {extra.name for extra in extras}
    read_layer_once = functools.cache(read_layer)  # a pipe can be read only once

    def run(**options: Any) -> None:
        model, sampler, fields, words = (options.pop(word) for word in ("model", "sampler", "fields", "words"))
        given_options = [
            *fields,
            *(key for key, value in options.items() if value is not None and key not in extra_names),
        ]
        if by_name is not None and model and not sampler:
            is_run_file = model.endswith(".nc")
            if is_run_file and given_options:
                option_name = setting(given_options[0])
                raise UsageError(
                    f"{option_name}: conflicts with the run file {model}, whose recipe is fixed; remove {option_name}"
                )
            if is_run_file or not given_options:
                by_name(model)
                return
        configs = options.pop("config") or []
        layers = [read_layer_once(source) for source in configs]
        extra_values = {key: options.pop(key) for key in list(options) if key in extra_names}
        refuse_input_as_output(extra_values["out"], configs)
        from bnnzoo.api.choose_recipe import recipe_and_data

        options = {**options, **fields, "model": model, "sampler": sampler}
        with observer(quiet=bool(extra_values["quiet"])):
            chosen_recipe = recipe_and_data(layers, options)
        body(*chosen_recipe, words=words, **extra_values)

    parameters = [
        parameter("model", str | None, _argument("MODEL", "models")),
        parameter("sampler", str | None, _argument("SAMPLER", "samplers")),
        *_options(),
        *extras,
    ]
    add_command(app, name, run, parameters, body.__doc__, lambda arguments: _select_parts(arguments, read_layer_once))


def _check_names(names: Mapping[str, str]) -> None:
    """Check all names before a part is imported, because an import is slow."""
    for kind, name in names.items():
        if name:
            registry.find(f"{kind}s", name)


def _select_parts(
    arguments: dict[str, Any], read_layer_once: Callable[[str], Layer]
) -> dict[str, tuple[str, PartOptions]]:
    """Return {kind: (name, options)} for the parts (model, sampler, ...) that the arguments of the command select."""
    layers = [read_layer_once(source) for source in arguments.get("config") or []]
    part_arguments = {key: arguments.get(key) for key in ("data", "likelihood", "prior")}
    names = part_names(arguments.get("model"), arguments.get("sampler"), layers, part_arguments)
    _check_names(names)
    parts: dict[str, tuple[str, PartOptions]] = {}
    for kind in PARTS:
        name, model = names[kind], parts["model"][1] if "model" in parts else None
        if model and kind == "likelihood":
            if model.brings_likelihood:
                continue
            fallback = next(iter(model.likelihoods.values()), "")
            name = name or model.likelihoods.get(arguments.get("task") or "", fallback)
        if model and kind == "prior":
            name = name or "normal"
        if name:
            parts[kind] = name, part_options(kind, name)
    return parts


def _argument(metavar: str, kind: str) -> Any:
    return typer.Argument(
        metavar=metavar,
        help=f"name from bnnzoo list {kind}; default: from --config, or chosen for the data if only --data is given",
        show_default=False,
        autocompletion=lambda: list(registry.entries(kind)),
    )


def _options() -> list[inspect.Parameter]:
    """Return the options that every run has."""
    table_options = ["target", "task", "columns", "drop", "categories", "missing", "missing_code", "unseen", "censored"]
    table_options += ["exposure", "separator", "decimal", "skip_rows", "encoding"]
    data = ["data", *table_options, "test_fraction", "split_seed", "standardise", "units"]
    config = typer.Option(
        "--config",
        metavar="FILE|NAME",
        help="a YAML file, a pipe, or a shipped recipe (see bnnzoo list configs); repeatable; the last has precedence",
        rich_help_panel="Run",
    )
    return [
        *(option(RUN_FIELDS[name], panel="Data") for name in data),
        *(_part_name(kind) for kind in ("likelihood", "prior")),
        *(option(spec, panel="Run") for name, spec in RUN_FIELDS.items() if name not in data),
        parameter("config", list[str] | None, config),
    ]


def _part_name(kind: str) -> inspect.Parameter:
    info = typer.Option(
        f"--{kind}",
        metavar="NAME",
        help=f"see bnnzoo list {kind}s",
        rich_help_panel="Run",
        autocompletion=lambda: list(registry.entries(f"{kind}s")),
    )
    return parameter(kind, str | None, info)
