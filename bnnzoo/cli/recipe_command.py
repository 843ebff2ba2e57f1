"""The commands that take a recipe: `MODEL SAMPLER`, the run's options, and the fields of the chosen parts
as options.

The arguments are looked at once to learn which parts are meant; then the command is built with exactly
their options and parses the arguments as any other, so a typo is found and `--help` is complete.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import typer
from typer.core import TyperCommand

from bnnzoo import config, registry
from bnnzoo.cli.options import Scan, option, parameter, scan
from bnnzoo.errors import BnnzooError, UsageError

Body = Callable[..., None]
"""What a command does: `body(recipe, **extras)`."""


def recipe_command(body: Body, extras: Sequence[inspect.Parameter]) -> type[TyperCommand]:
    """A command class whose options depend on the parts that are named; `extras` are the body's own
    options."""

    class RecipeCommand(TyperCommand):
        def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
            try:
                command = _command(str(info_name), body, extras, args)
            except BnnzooError:
                if not extra.get("resilient_parsing"):
                    raise
                command = _build(body, extras, [], [])
            return command.make_context(info_name, args, parent=parent, **extra)

    return RecipeCommand


def _command(name: str, body: Body, extras: Sequence[inspect.Parameter], args: list[str]) -> Any:
    spelt = _spelt(extras)
    found = scan(args, {option for option, takes_value in spelt.items() if takes_value})
    _refuse_unknown(name, found, spelt)
    if "--no-plugins" in found.flags:
        os.environ["BNNZOO_DISABLE_PLUGINS"] = "1"
        registry.reset()
    model, sampler = [*found.positionals, None, None][:2]
    layers = [config.read_layer(source) for source in found.values.get("--config", [])]
    named = {key: found.last(f"--{key}") for key in ("data", "likelihood", "prior")}
    names = config.part_names(model, sampler, layers, named)
    return _build(body, extras, layers, _part_options(names, found))


def _refuse_unknown(name: str, found: Scan, spelt: dict[str, bool]) -> None:
    """A misspelt option would make its value look like a positional: say so before that misleads."""
    for flag in sorted(found.flags - set(spelt)):
        near = difflib.get_close_matches(flag, spelt, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(f"No such option: {flag}{hint}; try bnnzoo {name} --help")


def _build(
    body: Body,
    extras: Sequence[inspect.Parameter],
    layers: list[config.Layer],
    dotted: list[inspect.Parameter],
) -> Any:
    own = {extra.name for extra in extras}

    def run(**given: Any) -> None:
        model, sampler = given.pop("model"), given.pop("sampler")
        given.pop("config")
        rest = {name: given.pop(name) for name in list(given) if name in own}
        options = {name.replace("__", "."): value for name, value in given.items()}
        body(config.resolve(model, sampler, layers, options), **rest)

    parameters = [
        parameter("model", str | None, _argument("MODEL", "models")),
        parameter("sampler", str | None, _argument("SAMPLER", "samplers")),
        *_static_options(),
        *extras,
        *dotted,
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = body.__doc__
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.command()(run)
    return typer.main.get_command(app)


def _argument(metavar: str, kind: str) -> Any:
    return typer.Argument(
        metavar=metavar,
        help=f"see bnnzoo list {kind}; a --config may name it",
        show_default=False,
        autocompletion=lambda: list(registry.entries(kind)),
    )


def _static_options() -> list[inspect.Parameter]:
    specs = {spec.name: spec for spec in config.run_fields()}
    data = ["data", "target", "task", "test_fraction", "split_seed", "standardise"]
    return [
        *(option(specs[name], panel="Data") for name in data),
        *(_part_name(kind) for kind in ("likelihood", "prior")),
        *(option(spec, panel="Run") for name, spec in specs.items() if name not in data),
        parameter(
            "config",
            list[str] | None,
            typer.Option(
                "--config",
                metavar="FILE|NAME",
                help="a YAML file, a pipe, or a shipped recipe (see bnnzoo list configs); the later one wins",
                rich_help_panel="Run",
            ),
        ),
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


def _spelt(extras: Sequence[inspect.Parameter]) -> dict[str, bool]:
    """Every option that does not depend on a part, as it is typed, and whether it takes a value."""
    spelt = {"--help": False, "-h": False}
    for p in [*_static_options(), *extras]:
        kind, info = p.annotation.__args__[0], p.annotation.__metadata__[0]
        for declared in [info.default, *info.param_decls]:
            if isinstance(declared, str):
                spelt |= dict.fromkeys(declared.split("/"), kind not in (bool, bool | None))
    return spelt


def _part_options(names: dict[str, str], found: Scan) -> list[inspect.Parameter]:
    """The fields of the chosen parts. Only here is anything heavy imported, and only what was named."""
    for kind, name in names.items():
        if name:
            registry.find(f"{kind}s", name)  # all names first: this is instant, importing is not
    options: list[inspect.Parameter] = []
    model: Any = None
    for kind in config.PARTS:
        name = names[kind]
        if kind == "likelihood" and model is not None:
            if getattr(model, "brings_likelihood", False):
                continue
            name = name or _default_likelihood(model, found.last("--task"))
        if kind == "prior" and not name and model is not None:
            name = "normal"
        if not name:
            continue
        cls = registry.load(f"{kind}s", name)
        if kind == "model":
            model = cls
        exactness = registry.find(f"{kind}s", name).exactness
        panel = f"{kind} {name}" + (f" ({exactness})" if exactness else "")
        options += [option(spec, panel=panel, prefix=kind) for spec in config.fields_of(cls)]
    return options


def _default_likelihood(model: Any, task: str | None) -> str:
    """The likelihood whose fields are offered when none is named."""
    if hasattr(model, "default_likelihood"):
        for guess in [task] if task in ("regression", "classification") else ["regression", "classification"]:
            with suppress(ValueError):
                return str(model.default_likelihood(guess))
    return ""
