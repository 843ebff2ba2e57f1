"""Fields of recipes and parts as options of the command line."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, NamedTuple

import typer

from bnnzoo.recipe import Field

_METAVARS = {"int": "INT", "float": "FLOAT", "bool": "BOOL", "str": "TEXT"}
_WIDEST_METAVAR = 16


class OptionText(NamedTuple):
    """The text of an option for --help and completion."""

    flag: str
    metavar: str
    help: str
    choices: list[str]


def option_text(spec: Field, *, prefix: str = "") -> OptionText:
    """Return the text of a field, such as `--sampler.step-size FLOAT  start value; > 0; default 0.1`."""
    flag = "--" + (f"{prefix}." if prefix else "") + spec.name.replace("_", "-")
    return OptionText(flag, _metavar(spec), _help(spec, prefix), [str(choice) for choice in spec.accepts.choices])


def option(spec: Field, *, panel: str) -> inspect.Parameter:
    """Return a field of the run as a parameter of a command. A boolean field becomes a flag without a value."""
    text = option_text(spec)
    if spec.accepts.scalars == (bool,):
        flag = f"{text.flag}/--no-{text.flag[2:]}" if spec.default else text.flag
        return parameter(spec.name, bool | None, _info(text._replace(flag=flag, metavar="", choices=[]), panel))
    return parameter(spec.name, list[str] | None if spec.accepts.items else str | None, _info(text, panel))


def help_option(text: OptionText, *, panel: str) -> inspect.Parameter:
    """Return the Typer parameter that shows an option of a model or sampler in --help and completion.

    Typer does not parse the value of this option.
    """
    return parameter(text.flag[2:].replace(".", "__").replace("-", "_"), str | None, _info(text, panel))


def parameter(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    """Return one parameter of a command's signature."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _info(text: OptionText, panel: str) -> Any:
    return typer.Option(
        text.flag,
        metavar=text.metavar or None,
        # The help printer interprets square brackets as markup.
        help=text.help.replace("[", "\\["),
        rich_help_panel=panel,
        show_default=False,
        autocompletion=(lambda: text.choices) if text.choices else None,
    )


def _help(spec: Field, prefix: str) -> str:
    """Return the meaning, the range and the default of a field."""
    item_limits = spec.accepts.items.limits if spec.accepts.items else []
    default = spec.default_text if prefix or spec.accepts.scalars != (bool,) or spec.default else ""
    choices = f"one of {', '.join(map(str, spec.accepts.choices))}" if _metavar(spec) == "CHOICE" else ""
    parts = [
        spec.help,
        choices,
        ", ".join([*spec.accepts.limits, *item_limits]),
        f"default {default}" if default else "",
    ]
    return "; ".join(filter(None, parts))


def _metavar(spec: Field) -> str:
    """Return the placeholder of the value. If the choices are too long for a placeholder, the help text lists them."""
    if spec.accepts.items and str in spec.accepts.items.scalars:
        return "TEXT"
    type_texts = spec.accepts.type.split("|")
    type_names = [",".join(_METAVARS.get(word, word) for word in text.split(",")) for text in type_texts]
    text = "|".join(type_names)
    return text if len(text) <= _WIDEST_METAVAR or spec.accepts.scalars else "CHOICE"
