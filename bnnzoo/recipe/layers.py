"""The settings of a run in layers, one per source: a recipe file, a shipped recipe, or the options of a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bnnzoo.errors import NotFoundError, UsageError
from bnnzoo.finding import setting, spelled
from bnnzoo.plugins import registry
from bnnzoo.recipe import yaml
from bnnzoo.recipe.parts import unknown_key_message
from bnnzoo.recipe.recipe import PARTS, RUN_FIELDS
from bnnzoo.recipe.shipped_files import shipped


class Value(NamedTuple):
    """A raw value, and the place (file and line, or option) at which the user wrote it."""

    raw: Any
    where: str


@dataclass(frozen=True)
class PartLayer:
    """The settings of one source for a part (model, sampler, likelihood or prior): its name and its fields."""

    name: Value | None = None
    fields: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """The settings of one source, and the problems that were found in this source.

    `run` contains the settings that do not belong to a part, such as the number of chains. `resolve` raises one error
    for the problems of all layers.
    """

    source: str
    run: Mapping[str, Value] = field(default_factory=dict)
    parts: Mapping[str, PartLayer] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    """The names of the packages that the recipe needs for its parts."""
    example: Layer | None = None
    """The settings of the section `example`. These settings apply only if the run uses the data of the example."""
    sweep: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """The values of each option that varies between runs. A sweep defines several runs, but `resolve` returns the
    recipe of one run. Therefore `resolve` reports a sweep as a problem."""


def read_layer(source: str | Path) -> Layer:
    """Return the layer of a recipe file, of a pipe, or of a shipped recipe.

    Args:
        source: the path of a file or a pipe, or the name of a shipped recipe, such as `tutorial`.

    Raises:
        UsageError: if the source cannot be read. Problems of single settings raise no error, but are
            listed in `problems` of the layer.
    """
    path = Path(source)
    looks_like_a_file = isinstance(source, Path) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1
    if not looks_like_a_file:
        shipped_path = shipped(str(source))
        if shipped_path is None and not path.is_file():
            raise NotFoundError(
                f"{setting('config', str(source))}: no such file, and "
                f"{registry.not_found(registry.RECIPES, str(source))}"
            )
        path = shipped_path or path
    return file_layer(path)


def option_layer(model: str | None, sampler: str | None, options: Mapping[str, Any]) -> Layer:
    """Return the layer of the options of a command."""
    run: dict[str, Value] = {}
    names: dict[str, str | None] = {"model": model, "sampler": sampler}
    part_fields: dict[str, dict[str, Value]] = {kind: {} for kind in PARTS}
    problems: list[str] = []
    for key, raw in options.items():
        if raw is None:
            continue
        where = spelled(key)
        if isinstance(raw, Value):
            raw, where = raw
        kind, dot, name = key.partition(".")
        if dot and kind in PARTS:
            part_fields[kind][name.replace("-", "_")] = Value(raw, where)
        elif key in PARTS:
            names[key] = str(raw)
        elif key in RUN_FIELDS:
            run[key] = Value(raw, where)
        else:
            option_name = where if where == spelled(key) else f"{where}: {key}"
            problems.append(f"{option_name}: {unknown_key_message(key, [*PARTS, *RUN_FIELDS])}")
    parts = {
        kind: PartLayer(Value(name.casefold(), kind) if (name := names.get(kind)) else None, part_fields[kind])
        for kind in PARTS
        if names.get(kind) or part_fields[kind]
    }
    return Layer("options", run, parts, tuple(problems))


def file_layer(path: Path) -> Layer:
    """Return the layer of a recipe file."""
    return layer_of(yaml.read(path), str(path))


def layer_of(root: yaml.Node, source: str) -> Layer:
    """Return the layer of a parsed recipe.

    Raises:
        UsageError: if the recipe is not a mapping.
    """
    if not isinstance(root.value, dict):
        raise UsageError(f"{root.where}: a recipe must consist of `key: value` lines")
    run: dict[str, Value] = {}
    parts: dict[str, PartLayer] = {}
    problems: list[str] = []
    example: Layer | None = None
    packages: Any = None
    sweep: dict[str, tuple[Value, ...]] = {}
    for key, node in root.value.items():
        if key == "example":
            example = layer_of(node, source)
            invalid_keys = [inner for inner in ("example", "sweep", "requires") if inner in node.value]
            problems += [
                f"{node.value[key_found].key_where}: example.{key_found}: not allowed inside the example; move it "
                "out of the example"
                for key_found in invalid_keys
            ]
            problems += example.problems
        elif key == "sweep":
            sweep = _sweep(node, problems)
        elif key == "requires":
            packages = _plain(node, key, problems).raw
        elif key in PARTS:
            if node.value is not None:
                parts[key] = _file_part(key, node, problems)
        elif key in RUN_FIELDS:
            run[key] = _plain(node, key, problems)
        else:
            problems.append(f"{node.key_where}: {key}: {unknown_key_message(key, [*PARTS, *RUN_FIELDS])}")
    packages = packages if isinstance(packages, list) else [packages] if packages else []
    return Layer(source, run, parts, tuple(problems), tuple(map(str, packages)), example, sweep)


def _file_part(kind: str, node: yaml.Node, problems: list[str]) -> PartLayer:
    """Return the settings of a part, such as `sampler: penalty` or `sampler: {name: penalty, step_size: 1e-3}`."""
    if isinstance(node.value, str):
        return PartLayer(Value(node.value.casefold(), node.where))
    if not isinstance(node.value, dict):
        problems.append(f"{node.where}: {kind}: must be the name of a {kind}, or a mapping with its fields")
        return PartLayer()
    name: Value | None = None
    fields: dict[str, Value] = {}
    for key, inner in node.value.items():
        value = _plain(inner, f"{kind}.{key}", problems)
        if key != "name":
            fields[key] = value
        elif isinstance(value.raw, str):
            name = Value(value.raw.casefold(), value.where)
        else:
            problems.append(f"{value.where}: {kind}.name: must be the name of a {kind}")
    return PartLayer(name, fields)


def _sweep(node: yaml.Node, problems: list[str]) -> dict[str, tuple[Value, ...]]:
    """Return the options of a sweep, such as `sweep: {sampler.step_size: [1e-4, 1e-3], seed: [0, 1]}`."""
    values_by_option: dict[str, tuple[Value, ...]] = {}
    if not isinstance(node.value, dict):
        problems.append(f"{node.key_where}: sweep: must be a mapping of options to lists of values")
        return values_by_option
    for option_written, inner in node.value.items():
        key = option_written.replace("-", "_") if "." in option_written else option_written
        if key in values_by_option:
            problems.append(
                f"{inner.key_where}: sweep.{key}: repeated, because - and _ are equal in the name of an option"
            )
        elif isinstance(inner.value, list) and inner.value:
            items = [_plain(item._replace(key_where=item.where), f"sweep.{key}", problems) for item in inner.value]
            values_by_option[key] = tuple(items)
        else:
            problems.append(f"{inner.key_where}: sweep.{key}: must be a list of one or more values")
    return values_by_option


def _plain(node: yaml.Node, path: str, problems: list[str]) -> Value:
    """Return the `Value` of a setting, with its place in the file.

    The raw value is a scalar or a flat list. For a mapping or a nested list, the raw value is None, and a message is
    appended to `problems`.
    """
    if isinstance(node.value, list):
        if not any(isinstance(item.value, list | dict) for item in node.value):
            return Value([item.value for item in node.value], node.key_where)
    elif not isinstance(node.value, dict):
        return Value(node.value, node.key_where)
    problems.append(f"{node.key_where}: {path}: must be a single value or a flat list")
    return Value(None, node.key_where)
