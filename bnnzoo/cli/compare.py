"""The command `bnnzoo compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo, print_json, print_rows, with_error


def compare(
    runs: Annotated[list[Path], common.runs("two or more runs")],
    reference: Annotated[
        Path | None,
        common.value(
            "--reference", "RUN", "a run that is treated as the truth", parser=common.file, callback=common.check_runs
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
    from bnnzoo.api.compare import compare as compare_runs

    comparison = compare_runs(runs, reference=reference)
    if json:
        print_json({"runs": comparison.runs, "differences": comparison.differences, "words": comparison.words})
        return
    print_rows(
        [
            {
                "run": run.name,
                **run.about,
                **{name: with_error(estimate) for name, estimate in run.estimates.items()},
                **run.numbers,
            }
            for run in comparison.compared
        ]
    )
    if comparison.paired:
        echo("")
        print_rows(
            [
                {"first": d.first, "second": d.second, "metric": d.metric, "difference": with_error(d.estimate)}
                for d in comparison.paired
            ]
        )
        echo("")
        for sentence in comparison.words:
            echo(sentence)


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(compare)
