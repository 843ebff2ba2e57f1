"""The commands `bnnzoo plot` and `bnnzoo report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import print_json, print_table, warn_of_convergence
from bnnzoo.errors import UsageError


class _Plot(TyperCommand):
    """A command with two shorthands: `--range LOW HIGH` for `--range LOW,HIGH`, and `--truth` for `--truth data`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite the two shorthands and parse the arguments."""
        options = {flag for parameter in self.params for flag in parameter.opts if flag.startswith("-")}
        rewritten: list[str] = []
        for argument in args:
            if rewritten and rewritten[-1] == "--truth" and argument in options:
                rewritten.append("data")
            if len(rewritten) > 1 and rewritten[-2] == "--range" and _is_number(rewritten[-1]) and _is_number(argument):
                rewritten[-1] += f",{argument}"
            else:
                rewritten.append(argument)
        return super().parse_args(ctx, [*rewritten, "data"] if rewritten[-1:] == ["--truth"] else rewritten)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    numbers = text.split(",")
    if len(numbers) != 2 or not all(map(_is_number, numbers)):
        raise UsageError(f"--range {text}: must be two numbers, such as --range -1.5,1.5")
    return float(numbers[0]), float(numbers[1])


def plot(
    runs: Annotated[list[Path], common.runs("files of finished or unfinished runs; several runs share a figure")],
    out: Annotated[
        Path, common.out("DIR", "folder for the pictures, or FILE.png for a single picture", parser=common.folder)
    ],
    format: Annotated[
        list[str] | None,
        common.value("--format", None, "png, svg, pdf, eps or tiff; repeatable; default png"),
    ] = None,
    only: Annotated[
        list[str] | None,
        common.value(
            "--only",
            "PICTURE",
            "draw only this picture; repeatable; default for a file: band; default for a folder: all pictures of one "
            "run, or band, ood and loss of several runs",
        ),
    ] = None,
    range: Annotated[
        str | None, common.value("--range", "LOW,HIGH", "for the picture band: range of the input")
    ] = None,
    band: Annotated[
        str | None,
        common.value(
            "--band",
            "predictive|function",
            "for the picture band: distribution of the target (predictive, the default) or of its mean f(x) (function)",
        ),
    ] = None,
    truth: Annotated[
        str | None,
        common.value(
            "--truth",
            "data|EXPR|FILE",
            "for the picture band: add a true curve: an expression of x, a file, or data (the known curve of the data "
            "set, the default if no value is given)",
        ),
    ] = None,
    overlay: Annotated[
        bool, typer.Option("--overlay", help="for the picture band: draw several runs on the same axes")
    ] = False,
    ood: Annotated[
        str, typer.Option("--ood", metavar="SPEC", help="out-of-distribution inputs, as for evaluate --ood")
    ] = "noise",
    force: common.Force = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Plot a run: its predictions, calibration, convergence and sampler statistics.

    With several runs, only the pictures band, ood and loss are available. Each of these pictures shows all runs.

    \b
    Examples:
      bnnzoo plot run.nc -o pictures
      bnnzoo plot run.nc -o pictures --only band --format pdf --format png
      bnnzoo plot mnist.nc -o pictures --only ood --ood kmnist.npz
      bnnzoo plot penalty.nc nuts.nc -o both.png --overlay --truth "sin(3 * x)"
    """
    del debug
    band_options = {"range": _range(range), "band": band, "truth": truth, "overlay": overlay or None}
    from bnnzoo.api import entrances

    opened_runs = [entrances.open(run) for run in runs]
    for run in opened_runs:
        warn_of_convergence(run)
    rows = opened_runs[0].plot_to(
        out,
        others=opened_runs[1:],
        formats=format,
        names=only,
        ood=ood,
        force=force,
        **{name: value for name, value in band_options.items() if value is not None},
    )
    if json:
        print_json(rows)
    else:
        print_table(("picture", "file"), [(row["picture"], str(row["file"] or f"- {row['why']}")) for row in rows])


def report(
    run: common.Run,
    out: Annotated[Path, common.out("FILE", "the .html file to write")],
    force: common.Force = False,
    debug: common.Debug = False,
) -> None:
    """Write a report of a run: a verdict, pictures, numbers, and the commands that repeat the run.

    The HTML page is one self-contained file and needs no internet access.

    \b
    Examples:
      bnnzoo report run.nc -o report.html
    """
    del debug
    from bnnzoo.api import entrances

    opened_run = entrances.open(run)
    warn_of_convergence(opened_run)
    opened_run.report(out, force=force)


def add_to(app: typer.Typer) -> None:
    """Add the commands `plot` and `report` to the application."""
    app.command(cls=_Plot)(plot)
    app.command()(report)
