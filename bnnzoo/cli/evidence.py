"""The command `bnnzoo evidence`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import print_json, print_record, warn_of_convergence


def evidence(
    runs: Annotated[list[Path], common.runs("one run, or several that differ only in --likelihood-power")],
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Estimate log p(D), the evidence for the model, from one run or from runs with different likelihood powers.

    \b
    Examples:
      bnnzoo evidence importance.nc
      bnnzoo evidence power-*.nc --json
    """
    del debug
    from bnnzoo.api import entrances

    opened_runs = [entrances.open(run) for run in runs]
    record = opened_runs[0].evidence(*opened_runs[1:]).record()
    for run in opened_runs:
        warn_of_convergence(run)
    if json:
        print_json(record)
        return
    print_record({key: f"{value:.3f}" if isinstance(value, float) else value for key, value in record.items()})


def add_to(app: typer.Typer) -> None:
    """Add the command `evidence` to the application."""
    app.command()(evidence)
