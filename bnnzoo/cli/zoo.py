"""The command `bnnzoo zoo`, which lists recipes, runs them and prints a table of the results."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import signal
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, no_type_check

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.fleet_runs import RunFiles, compare_files, missing_jobs, next_command, print_runs, row_of
from bnnzoo.cli.fleet_screen import fleet_screen
from bnnzoo.cli.output import echo, print_json, print_table
from bnnzoo.cli.part_command import SETTINGS
from bnnzoo.errors import BnnzooError, InterruptedRunError, NotFoundError, UsageError
from bnnzoo.fleet import AbstractExecutor, DaskExecutor, Job, LocalExecutor, Outcome, parse_seeds, points
from bnnzoo.plugins import registry
from bnnzoo.process import signals
from bnnzoo.recipe import (
    PARTS,
    Layer,
    Part,
    Recipe,
    Value,
    build_all,
    part_names,
    read_layer,
    resolve,
    shipped_names,
    warn_of,
)

_REFUSED_PAIRS = ("*.rejection", "density.dropout")
"""Patterns of the pairs `model.sampler` that fail on the example data of the model.

Rejection sampling needs a bounded likelihood and few data. Dropout needs a weight matrix.
"""
_MAX_NAME_BYTES = 255
"""Longest name of a file in the usual file systems."""


def runnable() -> dict[str, str]:
    """Return the complete recipes with their summaries: shipped recipes by name, and pairs `model.sampler`.

    A complete recipe names a model and a sampler; only the data may be missing. A pair `model.sampler` needs a recipe
    of the model and a recipe of the sampler. The pair needs no recipe of its own.
    """
    shipped, recipes = shipped_names(), registry.entries(registry.RECIPES)
    installed = {kind: registry.entries(kind) for kind in ("models", "samplers")}
    runnable_parts = {
        kind: [name for name in shipped if name in parts and parts[name].distribution == recipes[name].distribution]
        for kind, parts in installed.items()
    }
    summaries: dict[str, str] = {}
    for name, summary in shipped.items():
        if "." in name or name in runnable_parts["models"] or name in runnable_parts["samplers"]:
            continue
        try:
            parts = part_names(None, None, [read_layer(name)])
        except UsageError as error:
            warn_of(name, error)
            continue
        if parts["model"] and parts["sampler"] in installed["samplers"]:
            summaries[name] = summary
    for model in runnable_parts["models"]:
        for sampler in runnable_parts["samplers"]:
            pair = f"{model}.{sampler}"
            summaries[pair] = shipped.get(pair, shipped[sampler])
    return dict(sorted(summaries.items()))


@no_type_check  # Typer passes a context of the base class of its `Context`
def list_recipes(context: typer.Context, json: common.Json = False, debug: common.Debug = False) -> None:
    """List the recipes of the zoo that name a model and a sampler, or run some of them.

    Some of these recipes need --data. Any pair MODEL.SAMPLER can be run too, if the model and the sampler each have a
    recipe.

    \b
    Examples:
      bnnzoo zoo
      bnnzoo zoo run mdn.nuts
    """
    del debug
    if context.invoked_subcommand is not None:
        return
    shipped = registry.entries(registry.RECIPES)
    rows = {name: summary for name, summary in runnable().items() if name in shipped}
    if json:
        print_json([{"recipe": name, "summary": summary} for name, summary in rows.items()])
    else:
        print_table(("recipe", "summary"), [[name, summary] for name, summary in rows.items()])


def run(
    patterns: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="recipes of `bnnzoo zoo`, patterns such as 'airfoil-*' and '*.nuts', or recipe files (.yaml)",
            show_default=False,
            autocompletion=lambda: list(runnable()),
        ),
    ],
    out: Annotated[
        Path | None,
        common.out("DIR", "keep each run as DIR/NAME.nc", parser=common.folder),
    ] = None,
    data: Annotated[str | None, common.value("--data", "DATA", "data for all recipes, as for sample")] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="FILE|NAME",
            help="recipe with options for all runs; an option can have several values (a sweep)",
        ),
    ] = None,
    seed: Annotated[int | None, common.value("--seed", None, "seed of every run")] = None,
    seeds: Annotated[
        str | None, common.value("--seeds", "LIST", "run each recipe with these seeds: 0-19, 0,3,5-7")
    ] = None,
    workers: Annotated[int | None, common.value("--workers", "N", "number of parallel runs; default 1", min=1)] = None,
    scheduler: Annotated[
        str | None, common.value("--scheduler", "ADDRESS", "run on the Dask cluster at tcp://HOST:PORT")
    ] = None,
    force: common.Force = False,
    quiet: common.Quiet = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Run recipes, each in its own process, and print one table. The runs are sequential, or parallel with --workers.

    If a command with -o was stopped, the same command continues: each unfinished run resumes from its last checkpoint.

    R-hat and ESS are the worst values over predictions and other tested quantities. NLL and RMSE are computed for the
    test rows, for regression in standardised units. NLL moments is the NLL of a Gaussian with the predictive mean and
    variance. The column seconds has the time of the whole process: start, compilation, warm-up and sampling.

    \b
    Examples:
      bnnzoo zoo run 'linear.*'
      bnnzoo zoo run 'airfoil-*' --data airfoil.csv -o runs --json
      bnnzoo zoo run mlp.nuts houses.yaml --seeds 0-19 -o runs --workers 4
      bnnzoo zoo run 'mlp.*' --seeds 0-3 -o runs --scheduler tcp://host:8786
    """
    if scheduler and workers:
        raise UsageError(
            "--workers: conflicts with --scheduler, because a Dask cluster has its own workers; remove --workers"
        )
    if seeds and seed is not None:
        raise UsageError("--seed: conflicts with --seeds; remove one of them")
    layers = [read_layer(source) for source in config or []]
    recipes = _recipes(
        _matching_recipes(patterns), layers, {"data": data, "seed": seed}, parse_seeds(seeds) if seeds else []
    )
    with tempfile.TemporaryDirectory(prefix="bnnzoo-") as temporary:
        folder = out or Path(temporary)
        jobs = [
            Job(name, recipe, (folder / f"{name}.nc").absolute(), Path.cwd(), debug, _packages(recipe))
            for name, recipe in recipes.items()
        ]
        rows = _run_jobs(jobs, scheduler, workers or 1, force=force, keep=out is not None, quiet=quiet)
        files = [job.out for job, row in zip(jobs, rows, strict=True) if "error" not in row]
        sentences = [] if json else compare_files(files)
    if json:
        print_json(rows)
    else:
        print_runs(rows)
        for sentence in ["", *sentences] if sentences else []:
            echo(sentence)
        if out is not None and (words := next_command(out, rows, recipes)):
            echo(f"\nnext  {words}")
    failed = [row["recipe"] for row in rows if "error" in row]
    if failed:
        raise BnnzooError(f"{len(failed)} of {len(rows)} recipes failed: {', '.join(failed)}")


def _run_jobs(
    jobs: Sequence[Job], scheduler: str | None, workers: int, *, force: bool, keep: bool, quiet: bool
) -> list[dict[str, Any]]:
    """Run the jobs whose runs are not complete, and return one row of the table for every job."""
    missing = missing_jobs(jobs, force=force)
    executor = DaskExecutor(scheduler) if scheduler and missing else LocalExecutor(workers)
    run_files = RunFiles()
    missing = run_files.prepare(missing, force=force)
    outcomes = _run_all(executor, missing, len(jobs), run_files, keep=keep, quiet=quiet)
    return [row_of(job, outcomes.get(job.name)) for job in jobs]


def _run_all(
    executor: AbstractExecutor, missing: Sequence[Job], total: int, run_files: RunFiles, *, keep: bool, quiet: bool
) -> dict[str, Outcome]:
    """Run the missing jobs and return their outcomes by name. Show the progress, and pass signals on to the jobs.

    Raises:
        InterruptedRunError: if a signal stopped the fleet.
    """
    received_signals: list[int] = []
    outcomes: dict[str, Outcome] = {}
    job_by_name = {job.name: job for job in missing}

    def pass_on(number: int) -> None:
        received_signals.append(number)
        executor.stop(number)

    with signals.receive_signals(pass_on), fleet_screen(total, total - len(missing), quiet=quiet) as screen:
        for outcome in executor.outcomes(missing, screen.tell):
            screen.end(outcome)
            run_files.end(job_by_name[outcome.name], outcome)
            outcomes[outcome.name] = outcome
    run_files.tidy(missing)
    if received_signals:
        done = total - sum(outcome.code != 0 for outcome in outcomes.values())
        remedy = "run the same command again to continue" if keep else "use -o DIR to keep finished runs"
        if keep and any(job.replaces for job in missing):
            remedy = "run the same command with --force again to start from the beginning"
        name = signal.Signals(received_signals[0]).name
        raise InterruptedRunError(f"stopped by {name}: {done} of {total} runs are done; {remedy}", received_signals[0])
    return outcomes


def _matching_recipes(patterns: Sequence[str]) -> list[str]:
    """Return the recipe files among the patterns, and the names of the recipes that match the other patterns."""
    runnable_names = runnable()
    matched: dict[str, None] = {}
    for pattern in patterns:
        names = [pattern] if _is_file(pattern) else _names_of(pattern, runnable_names)
        matched |= dict.fromkeys(names)
    return list(matched)


def _names_of(pattern: str, runnable_names: Collection[str]) -> list[str]:
    """Return the names of the recipes that a name or a pattern selects.

    Refused pairs (`_REFUSED_PAIRS`) are left out, unless all selected recipes are refused pairs.

    Raises:
        NotFoundError: if no recipe matches the pattern.
    """
    names = fnmatch.filter(runnable_names, pattern.casefold()) or [_listed_name(pattern)]
    if names[0] not in runnable_names:
        raise NotFoundError(f"no recipe {pattern!r} with both a model and a sampler; see bnnzoo zoo")
    is_refused = {name: any(fnmatch.fnmatchcase(name, refused) for refused in _REFUSED_PAIRS) for name in names}
    return [name for name in names if not is_refused[name]] or names


def _listed_name(name: str) -> str:
    """Return the name in `runnable` of a recipe or a pair. The given name may have packages as prefixes.

    For example, `bnnzoo-houses:houses` is listed as `houses` if no other package has a recipe of this name.
    """
    pieces = name.partition(".")

    def key(kind: str, piece: str) -> str:
        entry = registry.get(kind, piece)
        return next((key for key, listed in registry.entries(kind).items() if listed == entry), piece)

    if not pieces[1]:
        return key(registry.RECIPES, name)
    return f"{key('models', pieces[0])}.{key('samplers', pieces[2])}"


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _recipes(
    names: Sequence[str], over: Sequence[Layer], options: Mapping[str, Any], seeds: Sequence[int]
) -> dict[str, Recipe]:
    """Return the recipes of all runs by name. There is a run for each recipe and each combination of swept values.

    Args:
        names: names of recipes, or recipe files.
        over: the recipes of --config, which have precedence over the named recipes.
        options: options with precedence over all recipes.
        seeds: seeds of the runs; if empty, each recipe determines its own seeds.
    """
    recipes: dict[str, Recipe] = {}
    for name in names:
        model, _, sampler = ("", "", "") if _is_file(name) else name.partition(".")
        layers = [*([] if sampler else [read_layer(name)]), *over]
        given_options = {key for key, value in options.items() if value is not None}  # an option replaces a sweep
        sweep = {key: values for layer in layers for key, values in layer.sweep.items() if key not in given_options}
        recipe_seeds = sweep.pop("seed", ())
        seed_values = tuple(Value(number, "--seeds") for number in seeds) or recipe_seeds
        if sampler:
            _refuse_swept_parts(name, sweep)
        # The seed comes last, so that the names of runs with different seeds differ only at their end.
        sweep |= {"seed": seed_values} if seed_values else {}
        layers_without_sweep = [dataclasses.replace(layer, sweep={}) for layer in layers]
        for point in points(sweep):
            full_name = (Path(name).stem if _is_file(name) else name) + point.suffix
            if len(os.fsencode(f"{full_name}.nc.parts")) > _MAX_NAME_BYTES:
                raise UsageError(
                    f"{name}: the name of a run is too long for a file (got {full_name[:80]}...); use a shorter name "
                    "of the recipe, or shorter or fewer values in the sweep"
                )
            if full_name in recipes:
                raise UsageError(f"{name}: two runs would be called {full_name}; rename one of the recipe files")
            part_names_given = (model, sampler) if sampler else (None, None)
            recipes[full_name] = resolve(*part_names_given, layers_without_sweep, {**options, **point.options})
    for recipe in recipes.values():
        _check_parts(recipe)
    return recipes


def _refuse_swept_parts(pair: str, sweep: Mapping[str, Sequence[Value]]) -> None:
    """Refuse a sweep over models or samplers, because a pair `model.sampler` names both."""
    for kind in ("model", "sampler"):
        if kind in sweep:
            raise UsageError(
                f"{sweep[kind][0].where}: sweep.{kind}: conflicts with the pair {pair}, which names the {kind}; remove "
                "it from the sweep, or run the recipe file"
            )


def _packages(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    """Return name and version of bnnzoo, and of the packages that contain the parts or the data of a recipe."""
    entries = [registry.find(f"{kind}s", part.name) for kind, part in _named_parts(recipe).items()]
    entries += [entry for name in (recipe.data, recipe.keep_at) if name and (entry := registry.get("datasets", name))]
    own_version = {
        plugin.distribution: plugin.version for plugin in registry.plugins() if plugin.distribution == registry.OWN
    }
    return tuple((own_version | {entry.distribution: entry.version for entry in entries}).items())


def _named_parts(recipe: Recipe) -> dict[str, Part]:
    return {kind: part for kind in PARTS if (part := getattr(recipe, kind)) is not None and part.name}


def _check_parts(recipe: Recipe) -> None:
    """Check the parts of a recipe and their fields here, so that no process repeats the same error message."""
    parts = _named_parts(recipe)
    for kind, part in parts.items():
        registry.find(f"{kind}s", part.name)  # checking the name is fast, importing a part is slow
    build_all([(registry.load(f"{kind}s", part.name), part, kind) for kind, part in parts.items()])


def add_to(app: typer.Typer) -> None:
    """Add the commands `zoo` and `zoo run` to the application."""
    group = typer.Typer(context_settings=SETTINGS, rich_markup_mode="rich")
    group.callback(invoke_without_command=True, help=list_recipes.__doc__)(list_recipes)
    group.command("run", context_settings=SETTINGS)(run)
    app.add_typer(group, name="zoo")
