"""The commands that take a recipe: `MODEL SAMPLER`, the run's options, and the fields of the chosen parts
as options; and what other commands whose options depend on a part share with them.

The arguments are looked at once to learn which parts are meant; then the command is built with exactly
their options and parses the arguments as any other, so a typo is found and `--help` is complete.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import typer
from typer.core import TyperCommand

from bnnzoo import registry
from bnnzoo.cli.options import Scan, option, parameter, scan
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.near import near_names
from bnnzoo.recipe import PARTS, RUN_FIELDS, Layer, fields_of, part_names, read_layer, resolve

Body = Callable[..., None]
"""What a command does: `body(recipe, **extras)`."""


def recipe_command(body: Body, extras: Sequence[inspect.Parameter]) -> type[TyperCommand]:
    """A command class whose options depend on the parts that are named; `extras` are the body's own
    options."""
    return late_command(
        _spelt(extras),
        lambda found: _command(body, extras, found),
        lambda: _build(body, extras, [], []),
    )


def late_command(
    spelt: dict[str, bool], build: Callable[[Scan], Any], fallback: Callable[[], Any]
) -> type[TyperCommand]:
    """A command class that is built when its arguments are known.

    Args:
        spelt: the options that do not depend on them, and whether each takes a value.
        build: the command, from the arguments.
        fallback: the command that completes half a line, where `build` finds something wrong.
    """

    class LateCommand(TyperCommand):
        def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
            try:
                found = scan(args, {option for option, takes_value in spelt.items() if takes_value})
                _refuse_unknown(f"{parent.command_path} {info_name}" if parent else str(info_name), found, spelt)
                if "--no-plugins" in found.flags:
                    os.environ["BNNZOO_DISABLE_PLUGINS"] = "1"
                    registry.reset()
                command = build(found)
            except BnnzooError:
                if not extra.get("resilient_parsing"):
                    raise
                command = fallback()
            return command.make_context(info_name, args, parent=parent, **extra)

    return LateCommand


def _command(body: Body, extras: Sequence[inspect.Parameter], found: Scan) -> Any:
    model, sampler = [*found.positionals, None, None][:2]
    layers = [read_layer(source) for source in found.values.get("--config", [])]
    named = {key: found.last(f"--{key}") for key in ("data", "likelihood", "prior")}
    names = part_names(model, sampler, layers, named)
    return _build(body, extras, layers, _part_options(names, found))


def _refuse_unknown(name: str, found: Scan, spelt: dict[str, bool]) -> None:
    """A misspelt option would make its value look like a positional: say so before that misleads."""
    for flag in sorted(found.flags - set(spelt)):
        near = near_names(flag, spelt, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(f"No such option: {flag}{hint}; try {name} --help")


def _build(
    body: Body,
    extras: Sequence[inspect.Parameter],
    layers: list[Layer],
    dotted: list[inspect.Parameter],
) -> Any:
    own = {extra.name for extra in extras}

    def run(**given: Any) -> None:
        model, sampler = given.pop("model"), given.pop("sampler")
        given.pop("config")
        rest = {name: given.pop(name) for name in list(given) if name in own}
        options = {name.replace("__", "."): value for name, value in given.items()}
        body(resolve(model, sampler, layers, options), **rest)

    parameters = [
        parameter("model", str | None, _argument("MODEL", "models")),
        parameter("sampler", str | None, _argument("SAMPLER", "samplers")),
        *_static_options(),
        *extras,
        *dotted,
    ]
    return as_command(run, parameters, body.__doc__)


def as_command(run: Callable[..., None], parameters: Sequence[inspect.Parameter], doc: str | None) -> Any:
    """A function of keywords as a command with these parameters."""
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = doc
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
    data = ["data", "target", "task", "test_fraction", "split_seed", "standardise"]
    return [
        *(option(RUN_FIELDS[name], panel="Data") for name in data),
        *(_part_name(kind) for kind in ("likelihood", "prior")),
        *(option(spec, panel="Run") for name, spec in RUN_FIELDS.items() if name not in data),
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
    return spelling([*_static_options(), *extras])


def spelling(parameters: Sequence[inspect.Parameter]) -> dict[str, bool]:
    """The options among these parameters, and --help, as they are typed, and whether they take a value."""
    spelt = {"--help": False, "-h": False}
    for p in parameters:
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
    for kind in PARTS:
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
        options += [option(spec, panel=panel, prefix=kind) for spec in fields_of(cls)]
    return options


def _default_likelihood(model: Any, task: str | None) -> str:
    """The likelihood whose fields are offered when none is named."""
    if hasattr(model, "default_likelihood"):
        for guess in [task] if task in ("regression", "classification") else ["regression", "classification"]:
            with suppress(ValueError):
                return str(model.default_likelihood(guess))
    return ""
