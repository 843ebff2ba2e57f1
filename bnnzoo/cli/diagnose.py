"""The command `bnnzoo diagnose`."""

from __future__ import annotations

from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo, print_json, print_record, print_rows
from bnnzoo.errors import GateError


def diagnose(
    run: common.Run,
    gate: Annotated[
        bool, typer.Option("--gate", help="exit with code 3 if a problem is found, such as a value beyond its limit")
    ] = False,
    rhat: Annotated[float, typer.Option("--rhat", help="largest acceptable R-hat")] = 1.01,
    ess: Annotated[
        float,
        typer.Option(
            "--ess", help="smallest acceptable bulk and tail ESS, divided by the number of chains, or by 4 if fewer"
        ),
    ] = 100.0,
    diverging: Annotated[
        float, typer.Option("--diverging", help="largest acceptable fraction of divergent steps")
    ] = 0.01,
    ebfmi: Annotated[float, typer.Option("--ebfmi", help="smallest acceptable E-BFMI")] = 0.3,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Report convergence and validity of a run: R-hat, ESS, sampler statistics, and a table of parameter blocks.

    \b
    Examples:
      bnnzoo diagnose run.nc
      bnnzoo diagnose run.nc --gate --rhat 1.05 --ess 25
    """
    del debug
    from bnnzoo.api import entrances
    from bnnzoo.evaluation.convergence.findings import Limits
    from bnnzoo.evaluation.convergence.outcome import verdict
    from bnnzoo.finding import sentence

    opened_run = entrances.open(run)
    diagnosis = opened_run.diagnose()
    run_findings = opened_run.findings(diagnosis, Limits(rhat=rhat, ess=ess, diverging=diverging, ebfmi=ebfmi))
    diagnosis["verdict"] = verdict(diagnosis, run_findings)
    failures = [sentence(finding) for finding in run_findings]
    if json:
        print_json({**diagnosis, "failures": failures, "blocks": opened_run.blocks()})
    else:
        print_record({"verdict": diagnosis["verdict"], **diagnosis})
        echo("")
        print_rows(opened_run.blocks())
    if gate and run_findings:
        raise GateError("; ".join(failures))


def add_to(app: typer.Typer) -> None:
    """Add the command `diagnose` to the application."""
    app.command()(diagnose)
