"""The command `bnnzoo merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import print_run
from bnnzoo.files.user_paths import refuse_input_as_output


def merge(
    runs: Annotated[list[Path], common.runs("two or more finished runs")],
    out: Annotated[Path, common.out("FILE", "the file to write")],
    force: common.Force = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Join runs of one recipe with different seeds into one file with all their chains.

    Convergence is tested again for all chains together.

    \b
    Examples:
      bnnzoo merge 0.nc 1.nc 2.nc -o all.nc
      bnnzoo merge runs/mlp.nuts,seed=*.nc -o mlp.nuts.nc
    """
    del debug
    from bnnzoo.store import check_room, refuse_existing

    refuse_input_as_output(out, runs)
    refuse_existing(out, force=force)
    check_room(out, 0)
    from bnnzoo.api import concat, entrances

    concat.concat(runs).save(out, force=force)
    print_run(entrances.open(out), json=json)


def add_to(app: typer.Typer) -> None:
    """Add the command `merge` to the application."""
    app.command()(merge)
