"""bnnzoo audit."""

from __future__ import annotations

from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import print_json, print_record
from bnnzoo.errors import GateError


def audit(
    run: common.Run,
    chains: Annotated[int, typer.Option("--chains", min=2, help="short chains, at most")] = 128,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=0,
            metavar="S",
            help="what it may take, about; half of what the run took unless given",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="of the chains")] = 0,
    gate: Annotated[bool, typer.Option("--gate", help="leave with 3 if something drifts")] = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Check a run's draws by exact chains that start from them: where they are right, predictions stay as they are.

    For any sampler, approximations too.

    \b
    Examples:
      bnnzoo audit run.nc
      bnnzoo audit run.nc --seconds 30 --json
      bnnzoo audit run.nc --gate
    """
    del debug
    from bnnzoo import zoo

    found = zoo.open(run).audit(chains=chains, seconds=seconds, seed=seed)
    (print_json if json else print_record)(found.record())
    if gate and not found.passed:
        raise GateError(found.verdict)


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(audit)
