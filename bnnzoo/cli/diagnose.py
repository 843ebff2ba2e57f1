"""bnnzoo diagnose."""

from __future__ import annotations

from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import print_json, print_record
from bnnzoo.errors import GateError


def diagnose(
    run: common.Run,
    gate: Annotated[bool, typer.Option("--gate", help="leave with 3 if a limit is not held")] = False,
    rhat: Annotated[float, typer.Option("--rhat", help="the gate's largest R-hat of predictions")] = 1.05,
    ess: Annotated[float, typer.Option("--ess", help="the gate's smallest bulk ESS of predictions")] = 100.0,
    diverging: Annotated[float, typer.Option("--diverging", help="the gate's largest share of diverging draws")] = 0.01,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Say whether a run has converged and was right: R-hat and ESS of its predictions, its statistics, its regime.

    \b
    Examples:
      bnnzoo diagnose run.nc
      bnnzoo diagnose run.nc --gate --rhat 1.01 --ess 400
    """
    del debug
    from bnnzoo import zoo
    from bnnzoo.diagnostics import Limits, failures

    found = zoo.open(run).diagnose()
    said = failures(found, Limits(rhat, ess, diverging))
    if json:
        print_json({**found, "failures": said})
    else:
        print_record({**found, "failures": said or "none"})
    if gate and said:
        raise GateError("; ".join(said))


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(diagnose)
