"""Commands that accept fields of parts, such as `--sampler.step-size 1e-3`, besides their own options.

A part is a model, a sampler, a likelihood or a prior.

The available fields depend on the named parts, and Click has not parsed the names yet. The fields are therefore first
removed from the arguments, each with its value (an option with a dot always has a value). Click then parses the other
arguments. Finally, the fields are checked against the named parts. --help and completion list the fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from bnnzoo.cli.options import help_option
from bnnzoo.cli.part_options import PartOptions
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.plugins import registry
from bnnzoo.recipe import PARTS
from bnnzoo.suggestions import near_names

SETTINGS = {"help_option_names": ["--help", "-h"]}
PartSelector = Callable[[dict[str, Any]], dict[str, tuple[str, PartOptions]]]
"""A function that maps the parameters of a command to {kind: (name, options)} for the selected parts."""


def add_command(
    app: typer.Typer,
    name: str,
    run: Callable[..., None],
    parameters: Sequence[inspect.Parameter],
    doc: str | None,
    select_parts: PartSelector,
    kinds: Collection[str] = PARTS,
) -> None:
    """Add a command that accepts fields of parts.

    Args:
        app: the application or the group.
        name: the name of the command.
        run: the function of the command. It is called with the parameters as keywords, with `fields` (a dictionary
            such as {"sampler.step_size": "1e-3"}), and with `words` (the arguments as typed).
        parameters: the command's own parameters.
        doc: the help text.
        select_parts: a function that returns the parts that the parameters name.
        kinds: the kinds of parts whose fields the command accepts.
    """
    field_values: dict[str, str] = {}
    arguments: list[str] = []

    def run_with_fields(**options: Any) -> None:
        run(**options, fields=dict(field_values), words=list(arguments))

    class PartCommand(TyperCommand):
        def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
            field_values.clear()
            arguments[:] = args
            words, fields = split_fields(args)
            completing = bool(extra.get("resilient_parsing"))
            if completing or not set(words).isdisjoint(SETTINGS["help_option_names"]):
                # Click's resilient parsing accepts incomplete arguments. Its result suffices to determine the parts.
                partial_context = super().make_context(
                    info_name, list(words), parent, **{**extra, "resilient_parsing": True}
                )
                try:
                    self.params += _field_options(select_parts(partial_context.params))
                except BnnzooError:
                    if not completing:
                        raise
            context = super().make_context(info_name, words, parent, **extra)
            if not completing:
                _refuse_other_kinds(fields, kinds, context)
                _refuse_unknown(fields, select_parts, context)
                field_values.update((_key(flag), value) for flag, value in fields.items())
            return context

    app.command(name, cls=PartCommand, context_settings=SETTINGS)(_sign(run_with_fields, parameters, doc))


def split_fields(args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separate the fields of parts from the other arguments. The last value of a repeated field is used."""
    plain_arguments: list[str] = []
    fields: dict[str, str] = {}
    remaining = iter(args)
    for argument in remaining:
        flag, equals, value = argument.partition("=")
        if argument == "--":
            plain_arguments += [argument, *remaining]
        elif flag.startswith("--") and "." in flag:
            field_value = value if equals else next(remaining, "--")
            if not equals and field_value.startswith("--"):  # a negative number has one dash
                following = "" if field_value == "--" else f" (got the option {field_value})"
                raise UsageError(f"Option '{flag}' requires an argument{following}; type {flag} VALUE")
            fields[flag] = field_value
        else:
            plain_arguments.append(argument)
    return plain_arguments, fields


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _refuse_other_kinds(fields: dict[str, str], kinds: Collection[str], context: Any) -> None:
    for flag in fields:
        kind = _key(flag).partition(".")[0]
        if kind in PARTS and kind not in kinds:
            raise UsageError(f"{flag}: {context.command_path} accepts no options of a {kind}; remove {flag}")


def _refuse_unknown(fields: dict[str, str], select_parts: PartSelector, context: Any) -> None:
    if not fields:
        return
    parts = select_parts(context.params)
    known_flags = [text.flag for _, part in parts.values() for text in part.options]
    for flag in fields:
        kind = _key(flag).partition(".")[0]
        if kind == "likelihood" and "model" in parts and parts["model"][1].brings_likelihood:
            model = parts["model"][0]
            raise UsageError(
                f"{flag}: model {model} has its own likelihood; use the options of the model (bnnzoo info "
                f"model {model} lists them)"
            )
        if kind in context.params and kind not in parts:
            raise UsageError(f"{flag}: requires a {kind}; add a name from `bnnzoo list {kind}s`")
        if _key(flag) not in map(_key, known_flags):
            if kind in parts and not near_names(
                flag, part_flags := [known_flag for known_flag in known_flags if known_flag.startswith(f"--{kind}.")], 1
            ):
                name = parts[kind][0]
                available = f"only the options {', '.join(part_flags)}" if part_flags else "no options"
                raise UsageError(f"{flag}: {kind} {name} has {available}; see bnnzoo info {kind} {name}")
            similar_flags = near_names(flag, known_flags, 1)
            hint = f" (did you mean {similar_flags[0]}?)" if similar_flags else ""
            raise UsageError(f"No such option: {flag}{hint}; try {context.command_path} --help")


def _field_options(parts: dict[str, tuple[str, PartOptions]]) -> list[Any]:
    """Return the fields of parts as options of a command. The help shows each part in its own panel."""
    parameters: list[inspect.Parameter] = []
    for kind, (name, part) in parts.items():
        exactness = registry.find(f"{kind}s", name).exactness
        panel = f"{kind} {name}" + (f" ({exactness})" if exactness else "")
        parameters += [help_option(text, panel=panel) for text in part.options]

    def no_body(**_: Any) -> None: ...

    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command()(_sign(no_body, parameters, None))
    return typer.main.get_command(app).params


def _sign(run: Callable[..., None], parameters: Sequence[inspect.Parameter], doc: str | None) -> Callable[..., None]:
    """Give a function the signature and the docstring that Typer reads, and return the function."""
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = doc
    return run
