"""Commands that take fields of parts, such as `--sampler.step-size 1e-3`, beside their own options.

The available fields depend on arguments that Click has not parsed yet. The fields are therefore removed first, each
with its value; an option with a dot always has a value. Click then parses the rest, and the fields are checked against
the named parts. --help and completion list them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from bnnzoo import registry
from bnnzoo.cli.options import listed
from bnnzoo.cli.part_options import PartOptions
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.near import near_names

SETTINGS = {"help_option_names": ["--help", "-h"]}
Named = Callable[[dict[str, Any]], dict[str, tuple[str, PartOptions]]]
"""A function from a command's parameters to the name and the options of each part that they choose, by kind."""


def add_command(
    app: typer.Typer,
    name: str,
    run: Callable[..., None],
    parameters: Sequence[inspect.Parameter],
    doc: str | None,
    named: Named,
) -> None:
    """Add a command.

    Args:
        app: the application or the group.
        name: the name of the command.
        run: the function of the command. It gets its parameters by keyword, `fields`, such as {"sampler.step_size":
            "1e-3"}, and `words`, the arguments as typed.
        parameters: the command's own parameters.
        doc: the help text.
        named: returns the parts that the parameters choose.
    """
    taken: dict[str, str] = {}
    typed: list[str] = []

    def run_with_fields(**given: Any) -> None:
        run(**given, fields=dict(taken), words=list(typed))

    class PartCommand(TyperCommand):
        def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
            taken.clear()
            typed[:] = args
            words, fields = split_fields(args)
            completing = bool(extra.get("resilient_parsing"))
            if completing or not set(words).isdisjoint(SETTINGS["help_option_names"]):
                # Resilient parsing accepts an incomplete line, which is enough to determine the parts.
                half = super().make_context(info_name, list(words), parent, **{**extra, "resilient_parsing": True})
                try:
                    self.params += _listed(named(half.params))
                except BnnzooError:
                    if not completing:
                        raise
            context = super().make_context(info_name, words, parent, **extra)
            if not completing:
                _refuse_unknown(fields, named, context)
                taken.update((_key(flag), value) for flag, value in fields.items())
            return context

    app.command(name, cls=PartCommand, context_settings=SETTINGS)(_sign(run_with_fields, parameters, doc))


def split_fields(args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split arguments into those without fields of parts and the fields. A repeated field takes the later value."""
    words: list[str] = []
    fields: dict[str, str] = {}
    rest = iter(args)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if argument == "--":
            words += [argument, *rest]
        elif flag.startswith("--") and "." in flag:
            given = value if equals else next(rest, None)
            if given is None:
                raise UsageError(f"Option '{flag}' requires an argument; type {flag} VALUE")
            fields[flag] = given
        else:
            words.append(argument)
    return words, fields


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _refuse_unknown(fields: dict[str, str], named: Named, context: Any) -> None:
    if not fields:
        return
    parts = named(context.params)
    known = [text.flag for _, part in parts.values() for text in part.options]
    for flag in fields:
        kind = _key(flag).partition(".")[0]
        if kind == "likelihood" and "model" in parts and parts["model"][1].brings_likelihood:
            model = parts["model"][0]
            raise UsageError(f"{flag}: model {model} has its own likelihood; see bnnzoo info model {model}")
        if kind in context.params and kind not in parts:
            raise UsageError(f"{flag}: the {kind} is unknown; name one of `bnnzoo list {kind}s`")
        if _key(flag) not in map(_key, known):
            if kind in parts and not near_names(flag, own := [f for f in known if f.startswith(f"--{kind}.")], 1):
                name = parts[kind][0]
                there = f"it has {', '.join(own)}" if own else "it has none"
                raise UsageError(f"{flag}: {kind} {name} has no such option; {there}; see bnnzoo info {kind} {name}")
            near = near_names(flag, known, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UsageError(f"No such option: {flag}{hint}; try {context.command_path} --help")


def _listed(parts: dict[str, tuple[str, PartOptions]]) -> list[Any]:
    """Return the fields of parts as options of a command, each part in its own panel."""
    parameters: list[inspect.Parameter] = []
    for kind, (name, part) in parts.items():
        exactness = registry.find(f"{kind}s", name).exactness
        panel = f"{kind} {name}" + (f" ({exactness})" if exactness else "")
        parameters += [listed(text, panel=panel) for text in part.options]

    def nothing(**_: Any) -> None: ...

    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command()(_sign(nothing, parameters, None))
    return typer.main.get_command(app).params


def _sign(run: Callable[..., None], parameters: Sequence[inspect.Parameter], doc: str | None) -> Callable[..., None]:
    """Give a function of keywords the signature that Typer reads."""
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = doc
    return run
