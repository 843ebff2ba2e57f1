"""bnnzoo plot, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import print_json, print_table, warn_of_convergence


def plot(
    run: common.Run,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="the folder to write into")],
    format: Annotated[
        list[str] | None,
        typer.Option("--format", help="png, svg, pdf, eps or tiff; repeatable; png unless given", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="PICTURE", help="this picture; repeatable; all unless given", show_default=False
        ),
    ] = None,
    ood: Annotated[
        str, typer.Option("--ood", metavar="SPEC", help="the unfamiliar inputs, as for evaluate --ood")
    ] = "noise",
    force: common.Force = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Draw a run: what it predicts, whether it is calibrated, whether it has converged, what its steps were.

    \b
    Examples:
      bnnzoo plot run.nc -o pictures
      bnnzoo plot run.nc -o pictures --only band --format pdf --format png
      bnnzoo plot mnist.nc -o pictures --only ood --ood kmnist.npz
    """
    del debug
    from bnnzoo import zoo

    opened = zoo.open(run)
    warn_of_convergence(opened)
    rows = opened.plot_to(out, formats=format or ["png"], names=only, ood=ood, force=force)
    if json:
        print_json(rows)
    else:
        print_table(("picture", "file"), [(row["picture"], str(row["file"] or f"- {row['why']}")) for row in rows])


def report(
    run: common.Run,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="the .html file to write")],
    force: common.Force = False,
    debug: common.Debug = False,
) -> None:
    """Write a run on one page: a verdict in plain words, pictures, numbers, and how to repeat it.

    The page holds everything; it asks nothing of a network.

    \b
    Examples:
      bnnzoo report run.nc -o report.html
    """
    del debug
    from bnnzoo import zoo

    opened = zoo.open(run)
    warn_of_convergence(opened)
    opened.report(out, force=force)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(plot)
    app.command()(report)
