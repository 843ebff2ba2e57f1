"""Options, recipe files and the zoo's own recipes -> one `Recipe`.

Precedence: option > later --config > earlier > the zoo's `model`, `sampler`, `model.sampler` recipes >
defaults. The fields of the chosen parts stay raw here: `build` validates them against the part's own
class, once that is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Lt
from typing_extensions import Doc

from bnnzoo.errors import NotFoundError, UsageError
from bnnzoo.recipe import yaml
from bnnzoo.recipe.fields import Field, Part, build, build_all, fields_of, unknown, validate

__all__ = [
    "PARTS",
    "Field",
    "Layer",
    "Part",
    "Recipe",
    "as_dict",
    "build",
    "build_all",
    "fields_of",
    "part_names",
    "read_layer",
    "recipe_from",
    "resolve",
    "run_fields",
    "shipped",
    "shipped_names",
    "to_yaml",
]

PARTS = ("model", "sampler", "likelihood", "prior")


@dataclass(frozen=True)
class Recipe:
    """Everything a run is made of, as it was asked for."""

    model: Part
    sampler: Part
    likelihood: Part | None = None
    prior: Part | None = None

    data: Annotated[str | None, Doc("a registered data set, or a file: .csv .tsv .parquet .npz, an IDX folder")] = None
    target: Annotated[tuple[str, ...], Doc("a target column; repeatable; the last column unless given")] = ()
    task: Annotated[Literal["regression", "classification"] | None, Doc("from the data unless given")] = None
    test_fraction: Annotated[float, Ge(0), Lt(1), Doc("share of the rows kept for testing")] = 0.1
    split_seed: Annotated[int, Ge(0), Le(2**32 - 1), Doc("seed of the split into training and test rows")] = 0
    standardise: Annotated[bool, Doc("inputs and regression targets to mean 0 and variance 1")] = True
    likelihood_power: Annotated[float, Gt(0), Doc("power of the likelihood; 1 is the posterior")] = 1.0
    stochastic: Annotated[
        str,
        Doc("what is sampled: all, last (the last layer), or names such as layers_1_*; the rest is trained once"),
    ] = "all"
    chains: Annotated[int, Ge(1), Doc("chains")] = 4
    warmup: Annotated[int, Ge(0), Doc("warm-up steps per chain; 0 adapts nothing")] = 1000
    draws: Annotated[int, Ge(1), Doc("draws kept per chain")] = 1000
    thin: Annotated[int, Ge(1), Doc("steps per kept draw")] = 1
    seed: Annotated[int, Ge(0), Le(2**32 - 1), Doc("seed of everything random but the split")] = 0
    init: Annotated[
        Literal["map", "prior"] | None,
        Doc("where chains start; map, the default for networks, trains each first"),
    ] = None
    start_steps: Annotated[int, Ge(250), Doc("steps of training for init map, at most")] = 5000
    start_held_out: Annotated[
        float, Ge(0), Lt(1), Doc("share of the rows that training for init map is judged on; 0: it fits all rows")
    ] = 0.1
    chain_method: Annotated[
        Literal["auto", "parallel", "vectorized", "sequential"], Doc("how chains share the hardware")
    ] = "auto"
    keep_warmup: Annotated[bool, Doc("also write the warm-up draws")] = False
    checkpoint_every: Annotated[float, Ge(0), Doc("seconds between checkpoints")] = 60.0
    precision: Annotated[Literal["float32", "float64"], Doc("of the arithmetic")] = "float32"

    where: dict[str, str] = field(default_factory=dict)
    """Run key -> where it was written, for messages."""


class _Value(NamedTuple):
    raw: Any
    where: str


@dataclass(frozen=True)
class _PartLayer:
    name: _Value | None = None
    fields: Mapping[str, _Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """What one source (a file, the options) says. `problems` are reported by `resolve` with all others."""

    source: str
    run: Mapping[str, _Value] = field(default_factory=dict)
    parts: Mapping[str, _PartLayer] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    example: Layer | None = None
    """What a shipped recipe says of its own example alone; it is void for other data."""


def run_fields() -> list[Field]:
    """The fields of a recipe that are not parts: the keys and options of a run."""
    return list(_RUN_FIELDS.values())


def resolve(
    model: str | None,
    sampler: str | None,
    layers: Iterable[Layer] = (),
    options: Mapping[str, Any] | None = None,
) -> Recipe:
    """One recipe from names, config layers (earlier first) and options.

    `options` maps a run key ("chains"), a part ("likelihood") or a part's field ("sampler.step_size") to a
    raw value; None means not given.

    Raises:
        UsageError: every problem found, one line each.
    """
    user = [*layers, _option_layer(model, sampler, options or {})]
    parts, merged = _merge(user)
    problems = [problem for layer in merged for problem in layer.problems]
    for kind in ("model", "sampler"):
        if not parts[kind].name:
            problems.append(
                f"no {kind}: name one (bnnzoo sample MODEL SAMPLER), here or in a --config; see bnnzoo list"
            )
    run: dict[str, _Value] = {}
    for layer in merged:
        run.update(layer.run)
    asked = Part("", {key: value.raw for key, value in run.items()}, {key: value.where for key, value in run.items()})
    values, wrong = validate(list(_RUN_FIELDS.values()), asked, "")
    problems += wrong
    if problems:
        raise UsageError("\n".join(problems))
    optional = {kind: part if part.name or part.fields else None for kind, part in parts.items()}
    return Recipe(
        model=parts["model"],
        sampler=parts["sampler"],
        likelihood=optional["likelihood"],
        prior=optional["prior"],
        **values,
        where=asked.where,
    )


def part_names(
    model: str | None,
    sampler: str | None,
    layers: Iterable[Layer] = (),
    options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The name of each part that `resolve` would settle on, "" where none is said. Nothing is checked."""
    parts, _ = _merge([*layers, _option_layer(model, sampler, options or {})])
    return {kind: part.name for kind, part in parts.items()}


def read_layer(source: str | Path) -> Layer:
    """A recipe file, a pipe, or a shipped recipe by name (`tutorial`).

    Raises:
        UsageError: when it cannot be read at all.
    """
    path = Path(source)
    looks_like_a_file = isinstance(source, Path) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1
    if not looks_like_a_file:
        found = shipped(str(source))
        if found is None and not path.is_file():
            known = ", ".join(sorted(shipped_names())) or "none"
            raise NotFoundError(
                f"--config {source}: no such file, and no shipped recipe of that name; there are: {known}"
            )
        path = found or path
    return _file_layer(path)


def recipe_from(text: str, source: str = "recipe") -> Recipe:
    """The recipe that a file's attribute `recipe` holds."""
    return resolve(None, None, [_layer_of(yaml.parse(text, source), source)])


def shipped(name: str) -> Path | None:
    """The file of a recipe the zoo ships, or None."""
    return _shipped_files().get(name)


def shipped_names() -> dict[str, str]:
    """The recipes the zoo ships, each with its first comment line."""
    return {name: _first_comment(path) for name, path in sorted(_shipped_files().items())}


def as_dict(recipe: Recipe) -> dict[str, Any]:
    """The recipe as a recipe file holds it, in a fixed order. Parts without a name or fields are left out."""
    found: dict[str, Any] = {}
    for kind in PARTS:
        part: Part | None = getattr(recipe, kind)
        if part is not None:
            found[kind] = {**({"name": part.name} if part.name else {}), **dict(sorted(part.fields.items()))}
    for name in _RUN_FIELDS:
        value = getattr(recipe, name)
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def to_yaml(recipe: Mapping[str, Any]) -> str:
    """A recipe's dictionary as YAML that reads back identical: parts first, then run keys."""
    order = [*PARTS, *_RUN_FIELDS]
    known = [key for key in order if key in recipe]
    return yaml.write({key: recipe[key] for key in [*known, *(key for key in recipe if key not in order)]})


def _merge(user: list[Layer]) -> tuple[dict[str, Part], list[Layer]]:
    """The parts, and the layers they came from, lowest first."""
    named = {kind: _last_name(kind, user) for kind in PARTS}
    said = [layer.run["data"].raw for layer in user if "data" in layer.run]
    data = said[-1] if said else None
    stems = [named["model"], named["sampler"], f"{named['model']}.{named['sampler']}"]
    files = [_file_layer(path) for stem in stems if (path := shipped(stem)) is not None]
    examples = [layer.example.run["data"].raw for layer in files if layer.example and "data" in layer.example.run]
    own: list[Layer] = []
    for layer in files:
        own.append(layer)
        if layer.example and data in (None, *examples[-1:]):
            own.append(layer.example)
    merged = [*(_subdued(layer, named) for layer in own), *user]
    return {kind: _merged_part(kind, merged) for kind in PARTS}, merged


def _last_name(kind: str, layers: list[Layer]) -> str:
    names = [part.name.raw for layer in layers if (part := layer.parts.get(kind)) and part.name]
    return names[-1] if names else ""


def _subdued(layer: Layer, named: Mapping[str, str]) -> Layer:
    """A shipped recipe without nameless fields of parts the user named otherwise."""
    void = [k for k in ("likelihood", "prior") if named[k] and k in layer.parts and layer.parts[k].name is None]
    parts = {kind: part for kind, part in layer.parts.items() if kind not in void}
    return Layer(layer.source, layer.run, parts, layer.problems)


def _merged_part(kind: str, layers: list[Layer]) -> Part:
    name, found = "", dict[str, _Value]()
    for layer in layers:
        part = layer.parts.get(kind)
        if part is None:
            continue
        if part.name is not None:
            if name and part.name.raw != name:
                found = {}
            name = part.name.raw
        found.update(part.fields)
    return Part(name, {key: value.raw for key, value in found.items()}, {key: v.where for key, v in found.items()})


def _option_layer(model: str | None, sampler: str | None, options: Mapping[str, Any]) -> Layer:
    run: dict[str, _Value] = {}
    names: dict[str, str | None] = {"model": model, "sampler": sampler}
    inner: dict[str, dict[str, _Value]] = {kind: {} for kind in PARTS}
    problems: list[str] = []
    for key, raw in options.items():
        if raw is None:
            continue
        where = "--" + key.replace("_", "-")
        kind, dot, name = key.partition(".")
        if dot and kind in PARTS:
            inner[kind][name.replace("-", "_")] = _Value(raw, where)
        elif key in PARTS:
            names[key] = str(raw)
        elif key in _RUN_FIELDS:
            run[key] = _Value(raw, where)
        else:
            problems.append(f"{where}: {unknown(key, [*PARTS, *_RUN_FIELDS])}")
    parts = {
        kind: _PartLayer(_Value(name.casefold(), kind) if (name := names.get(kind)) else None, inner[kind])
        for kind in PARTS
        if names.get(kind) or inner[kind]
    }
    return Layer("options", run, parts, tuple(problems))


def _file_layer(path: Path) -> Layer:
    return _layer_of(yaml.read(path), str(path))


def _layer_of(root: yaml.Node, source: str) -> Layer:
    if not isinstance(root.value, dict):
        raise UsageError(f"{root.where}: a recipe is a list of `key: value` lines")
    run: dict[str, _Value] = {}
    parts: dict[str, _PartLayer] = {}
    problems: list[str] = []
    example: Layer | None = None
    for key, node in root.value.items():
        if key == "example":
            example = _layer_of(node, source)
            problems += example.problems
        elif key in PARTS:
            if node.value is not None:
                parts[key] = _file_part(key, node, problems)
        elif key in _RUN_FIELDS:
            run[key] = _plain(node, key, problems)
        else:
            problems.append(f"{node.key_where}: {key}: {unknown(key, [*PARTS, *_RUN_FIELDS])}")
    return Layer(source, run, parts, tuple(problems), example)


def _file_part(kind: str, node: yaml.Node, problems: list[str]) -> _PartLayer:
    """`sampler: penalty`, or `sampler: {name: penalty, step_size: 1e-3}`."""
    if isinstance(node.value, str):
        return _PartLayer(_Value(node.value.casefold(), node.where))
    if not isinstance(node.value, dict):
        problems.append(f"{node.where}: {kind}: must be a name, or a mapping of its fields")
        return _PartLayer()
    name: _Value | None = None
    found: dict[str, _Value] = {}
    for key, inner in node.value.items():
        value = _plain(inner, f"{kind}.{key}", problems)
        if key != "name":
            found[key] = value
        elif isinstance(value.raw, str):
            name = _Value(value.raw.casefold(), value.where)
        else:
            problems.append(f"{value.where}: {kind}.name: must be a name")
    return _PartLayer(name, found)


def _plain(node: yaml.Node, path: str, problems: list[str]) -> _Value:
    """A value of one or several scalars; nothing deeper means anything in a recipe."""
    if isinstance(node.value, list):
        if not any(isinstance(item.value, list | dict) for item in node.value):
            return _Value([item.value for item in node.value], node.key_where)
    elif not isinstance(node.value, dict):
        return _Value(node.value, node.key_where)
    problems.append(f"{node.key_where}: {path}: must be a single value or a flat list")
    return _Value(None, node.key_where)


def _shipped_files() -> dict[str, Path]:
    here = Path(__file__).parent.parent
    # In a wheel the recipes are inside the package; in a source tree they are beside it.
    folder = next((f for f in (here / "_zoo_configs", here.parent / "zoo_configs") if f.is_dir()), None)
    return {path.stem: path for path in folder.glob("*.yaml")} if folder else {}


def _first_comment(path: Path) -> str:
    match = re.search(r"^#\s*(.*\S)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match.group(1) if match else ""


def _own_fields() -> dict[str, Field]:
    skipped = {*PARTS, "where"}
    return {f.name: f for f in fields_of(Recipe) if f.name not in skipped}


_RUN_FIELDS = _own_fields()
