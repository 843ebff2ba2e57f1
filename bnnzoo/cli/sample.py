"""The commands `bnnzoo sample`, `bnnzoo resume` and `bnnzoo show`."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli import distributed as together
from bnnzoo.cli.catalogue import show_by_name
from bnnzoo.cli.options import parameter
from bnnzoo.cli.output import echo, print_run, scores_or_warning
from bnnzoo.cli.recipe_command import add_recipe_command
from bnnzoo.cli.signals import stop_signals
from bnnzoo.progress_bar import observer
from bnnzoo.recipe import Recipe

_SCORES = ("rmse", "rmse_standardised", "accuracy", "nll", "coverage_90", "ece")
"""Metrics of the test rows that are printed if bnnzoo chose the recipe for the data."""


def _extras(*, hidden: bool) -> list[inspect.Parameter]:
    """Return the options of `sample` that are not in a recipe. `show` accepts and ignores them."""
    out = common.out("FILE", "the file to write", rich_help_panel="Output", hidden=hidden)
    return [
        parameter("out", Path, out, Path("run.nc")),
        *common.flags("force", "quiet", hidden=hidden),
        *common.flags("json", help="print the summary as JSON", hidden=hidden),
        *common.parameters({"log_to": (common.LogTo, None)}, rich_help_panel="Output", hidden=hidden),
        *common.parameters({"scheduler": (common.Scheduler, None)}, rich_help_panel="Run", hidden=hidden),
        *common.flags("no_plugins", "debug"),
    ]


def _sample(
    recipe: Recipe,
    dataset: Any,
    is_recipe_chosen: bool,
    *,
    out: Path,
    force: bool,
    quiet: bool,
    json: bool,
    log_to: list[str] | None,
    scheduler: str | None,
    **others: Any,
) -> None:
    """Sample the posterior of MODEL with SAMPLER and write one NetCDF file.

    Without --data, the example data set of the model is used. With --data alone, the data determine MODEL and SAMPLER.

    With MODEL and SAMPLER, --help also lists the options of both.

    \b
    Examples:
      bnnzoo sample mdn penalty -o run.nc
      bnnzoo sample --data houses.csv
      bnnzoo sample mlp nuts --data houses.csv --target price --chains 8
      bnnzoo sample mdn penalty --model.hidden 50,50 --sampler.step-size 1e-3
      bnnzoo sample mlp nuts --config tutorial -o run.nc
      bnnzoo sample mdn penalty --help
    """
    with observer(quiet=quiet) as watch, together.join_if_requested(others):
        from bnnzoo.api import entrances
        from bnnzoo.evaluation.scores import evaluate
        from bnnzoo.store import Command

        with stop_signals() as stop:
            run = entrances.run_recipe(
                recipe,
                out=out,
                force=force,
                observer=watch,
                log_to=log_to,
                stop=stop,
                dataset=dataset,
                scheduler=scheduler,
                started_by=Command.from_words(others["words"]),
            )
        stop.refuse_more(out)
        if not together.is_first():
            return
        # The command `evaluate` also computes leave-one-out metrics, which take longer, and stores predictions.
        start_time, is_scored = time.perf_counter(), is_recipe_chosen and recipe.test_fraction
        scores = (
            scores_or_warning(out, lambda: evaluate.of_rows(run.predictor, *run.test_rows()).estimates)
            if is_scored
            else {}
        )
        seconds = {"seconds_scoring": round(time.perf_counter() - start_time, 2)} if is_scored else {}
    shown_scores = {name: scores[name] for name in _SCORES if name in scores}
    if "rmse" in shown_scores:
        shown_scores.pop("rmse_standardised", None)
    print_run(run, json=json, scores=shown_scores, seconds=seconds)


def _show(recipe: Recipe, dataset: Any, is_recipe_chosen: bool, **_: Any) -> None:
    """Print the recipe that `sample` would use, or the recipe of a run file, as YAML for --config.

    With one NAME and no option, describe the part, data set, observer, reference or recipe with this name.

    \b
    Examples:
      bnnzoo show mdn
      bnnzoo show mdn penalty
      bnnzoo show run.nc
      bnnzoo show mlp nuts --data houses.csv > houses.yaml
      bnnzoo sample --config houses.yaml
    """
    del is_recipe_chosen
    from bnnzoo.api import entrances

    echo(entrances.resolved_recipe(recipe, dataset), nl=False)


def _show_name(name: str) -> None:
    if name.endswith(".nc"):
        from bnnzoo import store

        echo(store.open_tree(common.file(name)).attrs["recipe"], nl=False)
    else:
        show_by_name(name)


def resume(
    run: common.Unfinished,
    draws: Annotated[
        int | None,
        common.value("--draws", "INT", "add draws to a finished run: the new number of draws per chain", min=1),
    ] = None,
    budget: Annotated[
        str | None,
        common.value("--budget", "TIME", "add draws to a finished run until it has converged, for at most this time"),
    ] = None,
    allow_inexact_resume: Annotated[
        bool,
        typer.Option(
            "--allow-inexact-resume", help="resume even if the draws will differ from those of an uninterrupted run"
        ),
    ] = False,
    from_part: Annotated[
        int | None,
        common.value(
            "--from-part",
            "N",
            "resume from the newest checkpoint that uses at most N part files, if a later part file is damaged",
            min=0,
        ),
    ] = None,
    break_lock: Annotated[
        bool,
        typer.Option("--break-lock", help="take over the run from a process that showed no activity for a minute"),
    ] = False,
    distributed: together.Distributed = False,
    coordinator: together.Coordinator = None,
    processes: together.Count = None,
    rank: together.Rank = None,
    log_to: common.LogTo = None,
    quiet: common.Quiet = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Resume an interrupted run, or add draws to a finished run. The draws equal those of one long run, bit for bit.

    \b
    Examples:
      bnnzoo resume run.nc
      bnnzoo resume run.nc --budget 2m
      bnnzoo resume run.nc --draws 4000
      bnnzoo resume run.nc --from-part 12
    """
    del debug
    from bnnzoo import store

    adds_draws = draws is not None or budget is not None
    removed_leftovers = from_part is None and store.remove_leftovers(run)
    if removed_leftovers and not adds_draws:
        from bnnzoo.api import entrances

        if not quiet:
            typer.echo(f"bnnzoo: note: {run}: the run is finished already; leftover part files were removed", err=True)
        print_run(entrances.open(run), json=json)
        return
    # These checks report errors before JAX is imported.
    if adds_draws:
        store.check_extensible(run)
    else:
        store.resumable(run, from_part)
    process_options = {"distributed": distributed, "coordinator": coordinator, "processes": processes, "rank": rank}
    with observer(quiet=quiet) as watch, together.join_if_requested(process_options):
        from bnnzoo.api import resuming

        resume_options: dict[str, Any] = {
            "draws": draws,
            "budget": budget,
            "allow_inexact": allow_inexact_resume,
            "from_part": from_part,
            "break_lock": break_lock,
            "log_to": log_to,
        }
        with stop_signals() as stop:
            resumed_run = resuming.resume(run, progress=False, observer=watch, stop=stop, **resume_options)
        stop.refuse_more(run)
        if not together.is_first():
            return
    print_run(resumed_run, json=json)


def add_to(app: typer.Typer) -> None:
    """Add the commands `sample`, `resume` and `show` to the application."""
    add_recipe_command(app, "sample", _sample, [*_extras(hidden=False), *together.parameters(hidden=False)])
    app.command()(resume)
    add_recipe_command(app, "show", _show, [*_extras(hidden=True), *together.parameters(hidden=True)], _show_name)
