"""bnnzoo compare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import print_json, print_rows


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="two or more runs", show_default=False)],
    reference: Annotated[
        Path | None,
        typer.Option("--reference", metavar="RUN", help="a run to take as the truth", show_default=False),
    ] = None,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Put runs on the same data side by side: metrics, paired differences, distance to a reference, cost.

    \b
    Examples:
      bnnzoo compare penalty.nc nuts.nc
      bnnzoo compare penalty.nc sgld.nc --reference nuts.nc --json
    """
    del debug
    from bnnzoo.comparison import compare as compared

    found = compared(runs, reference=reference)
    if json:
        print_json(found._asdict())
        return
    print_rows([_with_errors(row) for row in found.runs])
    if found.differences:
        typer.echo("")
        print_rows([_with_errors(row, "difference", "se") for row in found.differences])


def _with_errors(row: Mapping[str, Any], value: str = "", error: str = "") -> dict[str, Any]:
    """The row with each error beside its value: 1.23 ± 0.04."""
    pairs = {value: error} if value else {name: f"{name}_se" for name in row if f"{name}_se" in row}
    shown = {name: f"{row[name]:.4g} ± {row[end]:.2g}" for name, end in pairs.items()}
    return {name: shown.get(name, cell) for name, cell in row.items() if name not in pairs.values()}


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(compare)
