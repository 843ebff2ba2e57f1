"""The command `bnnzoo compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo, print_json, print_rows, with_error


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="two or more runs",
            show_default=False,
            parser=common.file,
            callback=common.checked,
        ),
    ],
    reference: Annotated[
        Path | None,
        typer.Option(
            "--reference",
            metavar="RUN",
            help="a run to take as the truth",
            show_default=False,
            parser=common.file,
            callback=common.checked,
        ),
    ] = None,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Compare runs on the same data: metrics, paired differences, distance to a reference, cost.

    \b
    Examples:
      bnnzoo compare penalty.nc nuts.nc
      bnnzoo compare penalty.nc sgld.nc --reference nuts.nc --json
    """
    del debug
    from bnnzoo.comparison import compare as compared

    found = compared(runs, reference=reference)
    if json:
        print_json({"runs": found.runs, "differences": found.differences, "words": found.words})
        return
    print_rows(
        [
            {"run": run.name, **run.about, **{name: with_error(e) for name, e in run.estimates.items()}, **run.numbers}
            for run in found.compared
        ]
    )
    if found.paired:
        echo("")
        rows = [(one, with_error(one.estimate)) for one in found.paired]
        print_rows(
            [{"first": o.first, "second": o.second, "metric": o.metric, "difference": shown} for o, shown in rows]
        )
        echo("")
        for sentence in found.words:
            echo(sentence)


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(compare)
