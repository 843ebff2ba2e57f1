"""The commands `bnnzoo list`, `bnnzoo info` and `bnnzoo plugins`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from bnnzoo import registry
from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo, print_json, print_table
from bnnzoo.errors import GateError, NotFoundError, UsageError
from bnnzoo.near import near_names
from bnnzoo.recipe import Field, broken_recipes, fields_of, shipped, shipped_names


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]",
            help=f"{', '.join(registry.KINDS)} or {registry.RECIPES}; all unless given",
            show_default=False,
            autocompletion=lambda: [*registry.KINDS, registry.RECIPES],
        ),
    ] = None,
    json: common.Json = False,
    no_plugins: common.NoPlugins = False,
    debug: common.Debug = False,
) -> None:
    """List the content of the zoo without importing it.

    Without KIND the recipes are only counted; --json lists them too.

    \b
    Examples:
      bnnzoo list
      bnnzoo list configs
      bnnzoo list samplers --json
    """
    del debug, no_plugins
    kinds = [*registry.KINDS, registry.RECIPES] if kind is None else [_kind(kind)]
    if json:
        print_json([row for each in kinds for row in _rows(each)])
    elif kind is not None:
        _print_rows(_rows(kinds[0]))
    else:
        for each in registry.KINDS:
            echo(f"{each}:")
            _print_rows(_rows(each), indent="  ")
            echo("")
        echo(f"{registry.RECIPES}: {len(registry.entries(registry.RECIPES))} recipes; bnnzoo list {registry.RECIPES}")
        echo("\nbnnzoo show NAME describes any of them.")


def info(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="model, sampler, dataset, likelihood, prior or config")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="see bnnzoo list")],
    debug: common.Debug = False,
) -> None:
    """Describe one part, data set or recipe of the zoo, with its options.

    \b
    Examples:
      bnnzoo info sampler penalty
      bnnzoo info config tutorial
    """
    del debug
    kind = _kind(kind)
    describe(kind, name)


def describe(kind: str, name: str) -> None:
    """Print the description and the options of an entry, or the text of a recipe."""
    if kind == registry.RECIPES:
        path = shipped(name)
        if path is None:
            raise NotFoundError(registry.not_found(registry.RECIPES, name))
        echo(path.read_text(encoding="utf-8"), nl=False)
        return
    entry = registry.find(kind, name)
    thing = registry.load(kind, name)
    exactness = f" ({entry.exactness})" if entry.exactness else ""
    echo(f"{registry.singular(kind)} {entry.name}{exactness}, from {entry.distribution} {entry.version}\n")
    echo(inspect.getdoc(thing) or entry.summary)
    if isinstance(thing, type):
        _print_fields(registry.singular(kind), thing)


def show_by_name(name: str) -> None:
    """Print every entry with this name: `laplace` is a sampler and a prior.

    Raises:
        NotFoundError: with the near names of all kinds.
    """
    kinds = [kind for kind in registry.KINDS if registry.get(kind, name)]
    if kinds:
        for number, kind in enumerate(kinds):
            echo("\n" if number else "", nl=False)
            describe(kind, name)
        if shipped(name):
            echo(f"\nrecipe: bnnzoo info config {name}")
    elif shipped(name):
        describe(registry.RECIPES, name)
    else:
        known = {each: kind for kind in (registry.RECIPES, *registry.KINDS) for each in registry.entries(kind)}
        near = [f"{each} (a {registry.singular(known[each])})" for each in near_names(name, known)]
        remedy = f"did you mean {' or '.join(near)}?" if near else "see bnnzoo list"
        raise NotFoundError(f"show: the zoo has no part called {name!r}; {remedy}")


def plugins(
    check: Annotated[
        bool,
        typer.Option("--check", help="import all they offer; a line for each failure, with file and line; exit code 3"),
    ] = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """List the plugins, and the errors of those that failed. It works even if every plugin is broken.

    \b
    Examples:
      bnnzoo plugins
      bnnzoo plugins --check
    """
    if check:
        _check(json=json)
        return
    found = registry.plugins()
    if json:
        rows = [p._asdict() for p in found]
        print_json([{key: row[key] for key in row if key != "traceback" or debug} for row in rows])
        return
    print_table(
        ("plugin", "distribution", "version", "offers", "state"),
        [[p.name, p.distribution, p.version, _offers(p), p.error or "ok"] for p in found],
    )
    for plugin in found:
        if debug and plugin.traceback:
            typer.echo(f"\n{plugin.distribution}: {plugin.traceback}", err=True)


def _check(*, json: bool) -> None:
    wrong = [*registry.failures(), *broken_recipes()]
    if json:
        print_json(wrong)
    else:
        for line in wrong or ["ok"]:
            echo(line)
    if wrong:
        raise GateError(f"{len(wrong)} parts of the plugins cannot be used")


def _offers(plugin: registry.Plugin) -> str:
    counts = [
        f"{number} {kind if number > 1 else registry.singular(kind)}"
        for kind, number in plugin.counts.items()
        if number
    ]
    return ", ".join(counts) or "nothing"


def _rows(kind: str) -> list[dict[str, str]]:
    summaries = shipped_names() if kind == registry.RECIPES else {}
    return [
        {
            "kind": registry.singular(kind),
            "name": name,
            "summary": summaries.get(name, entry.summary),
            "exactness": entry.exactness,
            "distribution": entry.distribution,
        }
        for name, entry in registry.entries(kind).items()
    ]


def _print_rows(rows: list[dict[str, str]], *, indent: str = "") -> None:
    """Print a table of entries without uninformative columns."""
    columns = {"name": "name", "exactness": "exactness", "distribution": "from", "summary": "summary"}
    if all(row["distribution"] == registry.OWN for row in rows):
        del columns["distribution"]
    if not any(row["exactness"] for row in rows):
        del columns["exactness"]
    header, *others = columns.values()
    print_table([indent + header, *others], [[indent + r["name"], *(r[c] for c in [*columns][1:])] for r in rows])


def _kind(word: str) -> str:
    """Return the kind for "model" or "models": models."""
    kinds = [*registry.KINDS, registry.RECIPES]
    for kind in kinds:
        if word.lower() in (kind, registry.singular(kind)):
            return kind
    raise UsageError(f"unknown kind {word!r}; there are: {', '.join(kinds)}")


def _print_fields(prefix: str, cls: type[Any]) -> None:
    rows = [
        [f"--{prefix}.{f.name.replace('_', '-')}", f.type, f.default_text, _range(f), f.help] for f in fields_of(cls)
    ]
    if rows:
        echo("")
        print_table(("option", "type", "default", "range", "meaning"), rows)


def _range(field: Field) -> str:
    return field.allowed if field.accepts.scalars or field.accepts.items else ""


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("list")(list_)
    app.command()(info)
    app.command()(plugins)
