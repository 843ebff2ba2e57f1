"""The command `bnnzoo audit`."""

from __future__ import annotations

from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import print_json, print_record
from bnnzoo.errors import GateError


def audit(
    run: common.Run,
    chains: Annotated[int, typer.Option("--chains", min=2, help="largest number of exact chains")] = 128,
    seconds: Annotated[
        float | None,
        common.value(
            "--seconds", "S", "approximate duration; default: half the duration of the run, and at least 20 s", min=0
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            min=0,
            help="largest acceptable bias of a mean (in posterior sds) or of an sd (relative); for the pooled sd of "
            "all predictions, half of this value",
        ),
    ] = 0.2,
    seed: Annotated[int, typer.Option("--seed", min=0, help="seed of the exact chains")] = 0,
    gate: Annotated[bool, typer.Option("--gate", help="exit with code 3 unless the run passes")] = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Test whether a run's draws are from the posterior.

    The command starts Markov chains at some of the draws. An exact sampler moves the chains, so their distribution
    changes only if the draws are not from the posterior. For a linear model, the weights are tested too.

    \b
    passed     with 95 % confidence, no bias of predictions or noise exceeds --tolerance
    drifted    the draws are not from the posterior
    undecided  the draws and the steps are too few to show that the run passed or drifted

    \b
    Examples:
      bnnzoo audit run.nc
      bnnzoo audit run.nc --seconds 30 --json
      bnnzoo audit run.nc --gate
    """
    del debug
    from bnnzoo.api import entrances

    result = entrances.open(run).audit(chains=chains, seconds=seconds, tolerance=tolerance, seed=seed)
    (print_json if json else print_record)(result.record())
    if gate and not result.passed:
        raise GateError(result.verdict)


def add_to(app: typer.Typer) -> None:
    """Add the command `audit` to the application."""
    app.command()(audit)
