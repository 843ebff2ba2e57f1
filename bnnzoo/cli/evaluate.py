"""bnnzoo evaluate, predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import print_json, print_rows, print_warning, warn_of_convergence
from bnnzoo.cli.progress_bar import observer

Unseen = Annotated[
    Literal["error", "zero"] | None,
    typer.Option(
        "--unseen",
        metavar="error|zero",
        help="levels of text that training did not see: an error, or none of the known ones",
        show_default=False,
    ),
]

_FIRST = ("nll", "rmse", "accuracy", "crps", "brier", "coverage_90", "ece", "rows")
"""What most people ask for, of a regression or a classification; `--all` and `--json` have the rest."""


def evaluate(
    run: common.Run,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="TEST", help="test rows; the run's own unless given", show_default=False),
    ] = None,
    ood: Annotated[
        str | None,
        typer.Option("--ood", metavar="SPEC", help="unfamiliar inputs, as for --data; or noise", show_default=False),
    ] = None,
    unseen: Unseen = None,
    every: Annotated[bool, typer.Option("--all", help="every metric, not only the first few")] = False,
    quiet: common.Quiet = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Score a run's predictions on rows it was not trained on.

    \b
    Examples:
      bnnzoo evaluate run.nc
      bnnzoo evaluate run.nc --data test.csv --json
      bnnzoo evaluate run.nc --ood noise
      bnnzoo evaluate run.nc --all
    """
    del debug
    from bnnzoo import zoo
    from bnnzoo.evaluation.metrics import flat

    with observer(quiet=quiet) as watch:
        opened = zoo.open(run)
        estimates = opened.estimates(data, ood=ood, observer=watch, save=True, unseen=unseen)
    warn_of_convergence(opened)
    caveat = opened.loo_caveat if "loo_nll" in estimates else ""
    if caveat:
        print_warning(caveat)
    if json:
        print_json({**flat(estimates), **({"loo_caveat": caveat} if caveat else {})})
        return
    shown = {name: e for name, e in estimates.items() if every or name in _FIRST or "ood" in name}
    rows = [{"metric": name, "value": e.value, "se": e.se, "mcse": e.mcse} for name, e in shown.items()]
    print_rows([{key: value for key, value in row.items() if value is not None} for row in rows])
    if left := len(estimates) - len(shown):
        typer.echo(f"bnnzoo: {left} more: bnnzoo evaluate {run} --all", err=True)


def predict(
    run: common.Run,
    data: Annotated[
        str,
        typer.Option("--data", metavar="FILE", help="inputs; CSV columns are matched by name, no target needed"),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="the .csv or .nc file to write")],
    unseen: Unseen = None,
    force: common.Force = False,
    debug: common.Debug = False,
) -> None:
    """Predict for new inputs, one row each, in the units of the data.

    Regression: mean, sd, aleatoric_sd, epistemic_sd and quantiles.

    Classification: a probability a class, the entropy, and the likeliest class.

    \b
    Examples:
      bnnzoo predict run.nc --data new.csv -o predictions.csv
    """
    del debug
    from bnnzoo import zoo

    opened = zoo.open(run)
    opened.predict_to(data, out, force=force, unseen=unseen)
    warn_of_convergence(opened)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(evaluate)
    app.command()(predict)
