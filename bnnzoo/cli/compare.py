"""The command `bnnzoo compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo, print_json, print_rows, with_error
from bnnzoo.plugins.entry_files import is_reference_name


def _reference(text: str) -> Path | str:
    """Return the path of a run, or the name of a stored reference."""
    return text if is_reference_name(text) else common.file(text)


def _check(context: Any, reference: Any) -> Any:
    """Check the file of a reference run. The name of a stored reference is checked later, when plugins are loaded."""
    return reference if isinstance(reference, str) else common.check_runs(context, reference)


def compare(
    runs: Annotated[list[Path], common.runs("two or more runs, or one run with --reference")],
    reference: Annotated[
        Any,
        common.value(
            "--reference",
            "RUN|NAME",
            "the run that is treated as the truth, or the name of a stored reference (see bnnzoo list references)",
            parser=_reference,
            callback=_check,
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
      bnnzoo compare run.nc --reference boston
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
    if comparison.words:
        echo("")
        for sentence in comparison.words:
            echo(sentence)


def add_to(app: typer.Typer) -> None:
    """Add the command `compare` to the application."""
    app.command()(compare)
