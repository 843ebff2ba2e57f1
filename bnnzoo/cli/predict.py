"""The command `bnnzoo predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo_csv, warn_of_convergence
from bnnzoo.progress_bar import observer


def predict(
    run: common.Run,
    data: Annotated[
        str | None,
        common.value("--data", "FILE", "inputs (targets are not needed); columns of a CSV file are matched by name"),
    ] = None,
    draws: Annotated[
        int | None, common.value("--draws", "N", "draw N new rows from a density model instead", min=1)
    ] = None,
    out: Annotated[Path | None, common.out("FILE", "the .csv or .nc file to write; default: CSV on stdout")] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="INT", min=0, help="seed of all random numbers")] = 0,
    interval: common.Interval = None,
    level: common.Level = None,
    calibration: common.Calibration = None,
    unseen: common.Unseen = None,
    quiet: common.Quiet = False,
    force: common.Force = False,
    debug: common.Debug = False,
) -> None:
    """Predict the targets of new inputs, in the units of the data, or draw new rows from a density model.

    Regression: mean, sd, aleatoric_sd, epistemic_sd and quantiles.

    Classification: the probability of each class, the entropy, and the most probable class.

    Density: the log density of each row.

    With --interval: the ends of an interval, lower and upper, or a set of classes.

    \b
    Examples:
      bnnzoo predict run.nc --data new.csv -o predictions.csv
      bnnzoo predict run.nc --data new.csv --interval conformal --level 0.9
      bnnzoo predict moons.nc --draws 1000 -o new.csv
    """
    del debug
    from bnnzoo.api import entrances
    from bnnzoo.evaluation.predictions.csv_text import csv_text

    with observer(quiet=quiet or interval != "conformal") as watch:
        opened_run = entrances.open(run)
        options: dict[str, Any] = {"draws": draws, "seed": seed, "unseen": unseen, "observer": watch}
        options |= {"interval": interval, "level": level, "calibration": calibration}
        predictions = opened_run.predict(data, **options) if out is None else None
        if out is not None:
            opened_run.predict_to(data, out, force=force, **options)
    if predictions is not None:
        echo_csv(csv_text(predictions))
    warn_of_convergence(opened_run)


def add_to(app: typer.Typer) -> None:
    """Add the command `predict` to the application."""
    app.command()(predict)
