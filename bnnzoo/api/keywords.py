"""Conversion of Python keywords into the options of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bnnzoo.errors import UsageError
from bnnzoo.plugins import registry
from bnnzoo.recipe import PARTS, Recipe, fields_of, plain, resolve


def recipe_of(model: Any, sampler: Any, *, data: str | None, in_memory: bool, **options: Any) -> Recipe:
    """Return the recipe that Python arguments describe.

    The arguments have precedence over shipped recipes, like options of the command line.
    """
    all_options = options_of({"model": model, "sampler": sampler, **options}) | {"data": data}
    return resolve(None, None, [], all_options, in_memory=in_memory)


def options_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Python keywords into options of the command line."""
    flat_options: dict[str, Any] = {}
    for key, value in options.items():
        option = {key: str(value) if isinstance(value, Path) else value}
        flat_options |= _flatten_part(key, value) if key in PARTS else option
    return flat_options


def _flatten_part(kind: str, part: Any) -> dict[str, Any]:
    """Convert a part (a name, a mapping or an object) into options: its name and its fields."""
    if part is None or isinstance(part, str):
        return {kind: part}
    if name := registry.name_of(f"{kind}s", part):
        part = {"name": name, **{f.name: plain(getattr(part, f.name)) for f in fields_of(type(part))}}
    if isinstance(part, type):
        raise UsageError(f"{kind}: must be an object, not a class; write {part.__name__}()")
    if not isinstance(part, Mapping):
        raise UsageError(
            f"{kind}: must be a name, a mapping with a name and fields, or an object of a registered class (got "
            f"{type(part).__name__})"
        )
    name_option = {kind: part["name"]} if "name" in part else {}
    return {**name_option, **{f"{kind}.{key}": value for key, value in part.items() if key != "name"}}
