"""Fields as command-line options, and a first look at the arguments before they are parsed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from bnnzoo.recipe import Field

_METAVARS = {"int": "INT", "float": "FLOAT", "bool": "BOOL", "str": "TEXT"}
_WIDEST_METAVAR = 16


@dataclass
class Scan:
    """Arguments sorted without knowing every option: an option with a dot always takes a value."""

    positionals: list[str] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)

    def last(self, option: str) -> str | None:
        """The value that counts of an option given more than once."""
        return self.values[option][-1] if option in self.values else None


def scan(args: Iterable[str], with_value: set[str]) -> Scan:
    """Sort arguments into positionals, options with a value (`with_value`, or dotted) and flags."""
    found = Scan()
    rest = iter(args)
    for argument in rest:
        if argument == "--":
            found.positionals += rest
        elif argument.startswith("--"):
            name, equals, value = argument.partition("=")
            if name in with_value or "." in name:
                found.values.setdefault(name, []).append(value if equals else next(rest, ""))
            else:
                found.flags.add(name)
        elif argument.startswith("-") and len(argument) > 1:
            if argument[:2] in with_value:
                found.values.setdefault(argument[:2], []).append(argument[2:] or next(rest, ""))
            else:
                found.flags.add(argument)
        else:
            found.positionals.append(argument)
    return found


def option(spec: Field, *, panel: str, prefix: str = "") -> inspect.Parameter:
    """A field as an option: `--sampler.step-size FLOAT  start value; > 0  [default: 0.1]`."""
    kebab = spec.name.replace("_", "-")
    accepts = spec.accepts
    common: dict[str, Any] = {"help": _help(spec, prefix), "rich_help_panel": panel, "show_default": False}
    if not prefix and accepts.scalars == (bool,):
        kind: Any = bool | None
        flag = f"--{kebab}/--no-{kebab}" if spec.default else f"--{kebab}"
        info = typer.Option(flag, **common)
    else:
        kind = list[str] | None if accepts.items and not prefix else str | None
        choices = [str(choice) for choice in accepts.choices]
        info = typer.Option(
            f"--{prefix}.{kebab}" if prefix else f"--{kebab}",
            metavar=_metavar(spec),
            autocompletion=(lambda: choices) if choices else None,
            **common,
        )
    name = f"{prefix}__{spec.name}" if prefix else spec.name
    return parameter(name, kind, info)


def parameter(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    """One parameter of a command's signature."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _help(spec: Field, prefix: str) -> str:
    """What it means; its range; its default."""
    inner = spec.accepts.items.limits if spec.accepts.items else []
    default = spec.default_text if prefix or spec.accepts.scalars != (bool,) or spec.default else ""
    choices = f"one of {', '.join(map(str, spec.accepts.choices))}" if _metavar(spec) == "CHOICE" else ""
    words = [
        spec.help,
        choices,
        ", ".join([*spec.accepts.limits, *inner]),
        f"default {default}" if default else "",
    ]
    # Square brackets are markup to the help printer.
    return "; ".join(filter(None, words)).replace("[", "\\[")


def _metavar(spec: Field) -> str:
    """What is typed, in a word: a long list of choices is for the help text."""
    if spec.accepts.items and str in spec.accepts.items.scalars:
        return "TEXT"
    ways = [",".join(_METAVARS.get(word, word) for word in way.split(",")) for way in spec.type.split("|")]
    text = "|".join(ways)
    return text if len(text) <= _WIDEST_METAVAR or spec.accepts.scalars else "CHOICE"
