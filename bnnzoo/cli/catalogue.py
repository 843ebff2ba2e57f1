"""The commands `bnnzoo list`, `bnnzoo info` and `bnnzoo plugins`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo, print_json, print_table
from bnnzoo.errors import GateError, NotFoundError, UsageError
from bnnzoo.plugins import registry
from bnnzoo.plugins.entry_files import file_of
from bnnzoo.recipe import Field, broken_parts, broken_recipes, fields_of, shipped, shipped_names
from bnnzoo.suggestions import near_names

_KINDS = (*registry.KINDS, registry.OBSERVERS, registry.REFERENCES)
"""Kinds whose entries `bnnzoo list` prints if no KIND is given. Recipes are only counted, because there are many."""


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]",
            help=f"{', '.join(_KINDS)} or {registry.RECIPES}; default: all",
            show_default=False,
            autocompletion=lambda: [*_KINDS, registry.RECIPES],
        ),
    ] = None,
    json: common.Json = False,
    no_plugins: common.NoPlugins = False,
    debug: common.Debug = False,
) -> None:
    """List all models, samplers, data sets, likelihoods, priors, observers, references and recipes.

    The command imports no model or other part. Without KIND, only the number of recipes is shown; --json lists them.

    \b
    Examples:
      bnnzoo list
      bnnzoo list configs
      bnnzoo list samplers --json
    """
    del debug, no_plugins
    kinds = [*_KINDS, registry.RECIPES] if kind is None else [_kind(kind)]
    if json:
        print_json([row for kind_name in kinds for row in _rows(kind_name)])
    elif kind is not None:
        _print_rows(_rows(kinds[0]))
    else:
        for kind_name in (kind_name for kind_name in _KINDS if registry.entries(kind_name)):
            echo(f"{kind_name}:")
            _print_rows(_rows(kind_name), indent="  ")
            echo("")
        count = len(registry.entries(registry.RECIPES))
        echo(f"{registry.RECIPES}: {count} recipes; bnnzoo list {registry.RECIPES} lists their names")
        echo("\nbnnzoo show NAME describes the entry with this name.")


def info(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="model, sampler, dataset, likelihood, prior, observer, reference or config"
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="see bnnzoo list")],
    debug: common.Debug = False,
) -> None:
    """Describe one part, data set, observer, reference or recipe of the zoo, with its options.

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
    if kind == registry.REFERENCES:
        _describe_reference(entry)
        return
    part = registry.load(kind, name)
    exactness = f" ({entry.exactness})" if entry.exactness else ""
    echo(f"{registry.singular(kind)} {entry.name}{exactness}, from {entry.distribution} {entry.version}\n")
    echo(inspect.getdoc(part) or entry.summary)
    if isinstance(part, type) and kind != registry.OBSERVERS:  # an observer has only the TEXT of --log-to NAME:TEXT
        _print_fields(registry.singular(kind), part)


def _describe_reference(entry: registry.Registered) -> None:
    """Print the origin and the diagnostics of a reference from the attributes of its file."""
    from bnnzoo.store import open_tree

    attributes = {str(key): value for key, value in open_tree(file_of(entry)).attrs.items()}
    echo(f"reference {entry.name}, from {entry.distribution} {entry.version}\n\n{entry.summary}\n")
    prefix = "reference_"
    rows = {key.removeprefix(prefix): value for key, value in attributes.items() if key.startswith(prefix)}
    rows |= {key: attributes[key] for key in ("rows", "draws_done", "versions")}
    print_table(("property", "value"), [[key, _short(value)] for key, value in rows.items() if key != "name"])
    echo(f"\nrecipe:\n{attributes['recipe']}", nl=False)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_by_name(name: str) -> None:
    """Print every entry with this name. A name can have several entries: `laplace` is a sampler and a prior.

    Raises:
        NotFoundError: if the name is unknown, or if two packages have an entry of the same kind with this name. For an
            unknown name, the message proposes similar names of all kinds.
    """
    kinds = [kind for kind in _KINDS if registry.get(kind, name)]
    if kinds:
        for number, kind in enumerate(kinds):
            echo("\n" if number else "", nl=False)
            describe(kind, name)
        if shipped(name):
            echo(f"\nrecipe: bnnzoo info config {name}")
    elif shipped(name):
        describe(registry.RECIPES, name)
    else:
        kind_by_name = {
            entry_name: kind for kind in (registry.RECIPES, *_KINDS) for entry_name in registry.entries(kind)
        }
        similar_names = [
            f"{entry_name} ({_with_article(registry.singular(kind_by_name[entry_name]))})"
            for entry_name in near_names(name, kind_by_name)
        ]
        remedy = f"did you mean {' or '.join(similar_names)}?" if similar_names else "see bnnzoo list"
        raise NotFoundError(f"show: unknown name {name!r}; {remedy}")


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def plugins(
    check: Annotated[
        bool,
        typer.Option("--check", help="import everything that plugins offer, and print each failure with file and line"),
    ] = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """List the plugins. If a plugin cannot be loaded, show its error. The command works even if all plugins fail.

    \b
    Examples:
      bnnzoo plugins
      bnnzoo plugins --check
    """
    if check:
        _check(json=json)
        return
    all_plugins = registry.plugins()
    if json:
        rows = [plugin._asdict() for plugin in all_plugins]
        print_json([{key: row[key] for key in row if key != "traceback" or debug} for row in rows])
        return
    print_table(
        ("plugin", "distribution", "version", "offers", "state"),
        [
            [plugin.name, plugin.distribution, plugin.version, _count_entries(plugin), plugin.error or "ok"]
            for plugin in all_plugins
        ],
    )
    for plugin in all_plugins:
        if debug and plugin.traceback:
            typer.echo(f"\n{plugin.distribution}: {plugin.traceback}", err=True)


def _check(*, json: bool) -> None:
    problems = [*registry.import_failures(), *broken_parts(), *broken_recipes()]
    if json:
        print_json(problems)
    else:
        for line in problems or ["ok"]:
            echo(line)
    if problems:
        raise GateError(f"plugins: problems found: {len(problems)}; correct or uninstall the plugins listed above")


def _count_entries(plugin: registry.Plugin) -> str:
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
    """Print a table of entries. Omit the column `exactness` if it is empty, and `from` if bnnzoo offers all entries."""
    columns = {"name": "name", "exactness": "exactness", "distribution": "from", "summary": "summary"}
    if all(row["distribution"] == registry.OWN for row in rows):
        del columns["distribution"]
    if not any(row["exactness"] for row in rows):
        del columns["exactness"]
    header, *other_columns = columns.values()
    print_table(
        [indent + header, *other_columns],
        [[indent + row["name"], *(row[key] for key in [*columns][1:])] for row in rows],
    )


def _kind(word: str) -> str:
    """Return the plural of a kind that the user wrote in the singular or in the plural."""
    kinds = [*_KINDS, registry.RECIPES]
    for kind in kinds:
        if word.lower() in (kind, registry.singular(kind)):
            return kind
    raise UsageError(f"unknown kind {word!r}; use one of {', '.join(kinds)}")


def _print_fields(prefix: str, cls: type[Any]) -> None:
    rows = [
        [f"--{prefix}.{f.name.replace('_', '-')}", f.accepts.type, f.default_text, _range(f), f.help]
        for f in fields_of(cls)
    ]
    if rows:
        echo("")
        print_table(("option", "type", "default", "range", "meaning"), rows)


def _range(field: Field) -> str:
    return field.accepts.allowed if field.accepts.scalars or field.accepts.items else ""


def add_to(app: typer.Typer) -> None:
    """Add the commands `list`, `info` and `plugins` to the application."""
    app.command("list")(list_)
    app.command()(info)
    app.command()(plugins)
