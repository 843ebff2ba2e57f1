"""The command `bnnzoo evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo, print_json, print_rows, print_warning, warn_of_convergence, with_error
from bnnzoo.progress_bar import observer

if TYPE_CHECKING:
    from bnnzoo.evaluation.formulas.metrics import Estimate

_FIRST = ("nll", "nll_rounded", "rmse", "accuracy", "crps", "brier", "coverage_90", "ece", "rows")
"""The main metrics of regression and classification; `--all` and `--json` also print the others."""
_FIRST_OF_SEVERAL = ("rmse_standardised", "crps_standardised")
"""Further main metrics of a run with several targets."""
_BY_TARGET = ("rmse", "rmse_standardised", "mae", "crps", "coverage_90")
"""Columns of the table that has one row per target; printed for a run with several targets."""


def evaluate(
    run: common.Run,
    data: Annotated[
        str | None, common.value("--data", "TEST", "test rows, as for sample --data; default: the test rows of the run")
    ] = None,
    ood: Annotated[
        str | None, common.value("--ood", "SPEC", "out-of-distribution inputs, as for sample --data; or noise")
    ] = None,
    interval: common.Interval = None,
    level: common.Level = None,
    calibration: common.Calibration = None,
    unseen: common.Unseen = None,
    scheduler: common.Scheduler = None,
    every: Annotated[bool, typer.Option("--all", help="print every metric, not only the main ones")] = False,
    quiet: common.Quiet = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Score a run's predictions on rows that it was not trained on.

    \b
    Examples:
      bnnzoo evaluate run.nc
      bnnzoo evaluate run.nc --data test.csv --json
      bnnzoo evaluate run.nc --ood noise
      bnnzoo evaluate run.nc --interval conformal --level 0.9
      bnnzoo evaluate run.nc --all
    """
    del debug
    from bnnzoo.api import entrances
    from bnnzoo.evaluation.formulas.metrics import flat

    with observer(quiet=quiet) as watch:
        opened_run = entrances.open(run)
        estimates = opened_run.estimates(
            data,
            ood=ood,
            observer=watch,
            save=True,
            unseen=unseen,
            interval=interval,
            level=level,
            calibration=calibration,
            scheduler=scheduler,
        )
    warn_of_convergence(opened_run)
    caveats = opened_run.caveats(estimates)
    for caveat in caveats.values():
        print_warning(caveat)
    if json:
        print_json({**flat(estimates), **caveats})
        return
    _print_estimates(estimates, opened_run.predictor.signature.target_names, every=every)


def _is_of_interval(name: str) -> bool:
    """Whether the metric with this name is computed only with --interval."""
    return name == "interval_level" or "_bayesian" in name or "_conformal" in name


def _print_estimates(estimates: Mapping[str, Estimate], targets: Sequence[str], *, every: bool) -> None:
    """Print a table of metrics. If there are several targets, print another table with one row per target."""
    target_names = targets if len(targets) > 1 else ()
    by_target = {f"{target}_{metric}" for target in target_names for metric in _BY_TARGET} & set(estimates)
    first_metrics = {*_FIRST, *(_FIRST_OF_SEVERAL if target_names else ())}
    shown_estimates = {
        name: estimate
        for name, estimate in estimates.items()
        if name not in by_target and (every or name in first_metrics or "ood" in name or _is_of_interval(name))
    }
    rows = [
        {"metric": name, "value": estimate.value, "se": estimate.se, "mcse": estimate.mcse}
        for name, estimate in shown_estimates.items()
    ]
    print_rows([{key: value for key, value in row.items() if value is not None} for row in rows])
    if by_target:
        echo("")
        print_rows(
            [
                {"target": target}
                | {
                    metric: with_error(estimates[f"{target}_{metric}"])
                    for metric in _BY_TARGET
                    if f"{target}_{metric}" in by_target
                }
                for target in target_names
            ]
        )
    if num_hidden := len(estimates) - len(shown_estimates) - len(by_target):
        typer.echo(f"bnnzoo: not shown: {num_hidden} of {len(estimates)} metrics; use --all to print all", err=True)


def add_to(app: typer.Typer) -> None:
    """Add the command `evaluate` to the application."""
    app.command()(evaluate)
