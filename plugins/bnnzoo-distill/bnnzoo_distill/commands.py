"""The command `bnnzoo distill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo, print_json, print_rows, warn_of_convergence
from bnnzoo.progress_bar import observer


def distill(
    run: common.Run,
    out: Annotated[Path, common.out("FILE", "the .nc or .onnx file of the student")],
    data: Annotated[
        str | None,
        common.value(
            "--data", "FILE", "rows near which the student is trained, without targets; default: the training rows"
        ),
    ] = None,
    test: Annotated[
        str | None,
        common.value("--test", "FILE", "rows with targets on which the student is checked; default: the test rows"),
    ] = None,
    inputs: Annotated[int, typer.Option("--inputs", min=200, help="number of training inputs")] = 40_000,
    steps: Annotated[int, typer.Option("--steps", min=1, help="number of optimisation steps")] = 20_000,
    width: Annotated[int, typer.Option("--width", min=1, help="units of each of the three hidden layers")] = 128,
    seed: Annotated[int, typer.Option("--seed", metavar="INT", min=0, help="seed of all random numbers")] = 0,
    quiet: common.Quiet = False,
    json: common.Json = False,
    force: common.Force = False,
    debug: common.Debug = False,
) -> None:
    """Train one network that predicts like all draws of a run, with aleatoric and epistemic uncertainty.

    The table compares the student with the run: the difference of the negative log likelihoods (nll_gap), the error
    of the mean in standard deviations of the target (rmse_mean), and the correlation of the epistemic uncertainties.

    \b
    Examples:
      bnnzoo distill run.nc -o student.nc
      bnnzoo distill run.nc --test test.csv -o student.nc
      bnnzoo distill run.nc -o student.onnx
    """
    del debug
    import bnnzoo
    from bnnzoo.files.user_paths import refuse_input_as_output
    from bnnzoo_distill.distilling import distill as distill_run
    from bnnzoo_distill.files import check_output

    refuse_input_as_output(out, [run, data, test])
    check_output(out, force=force)
    settings: dict[str, Any] = {"inputs": inputs, "steps": steps, "width": width, "seed": seed}
    with observer(quiet=quiet) as watch:
        opened_run = bnnzoo.open(run)
        student = distill_run(opened_run, data=data, test=test, observer=watch, **settings)
        student.save(out, force=force)
    warn_of_convergence(opened_run)
    if json:
        print_json({"file": str(out), **student.about, **student.report})
        return
    # Only test rows have these columns, so they are the last columns of the table.
    last_columns = ("nll_teacher", "nll_student", "nll_gap", "nll_gap_se")
    rows = []
    for name, scores in student.report.items():
        ordered = {key: scores[key] for key in sorted(scores, key=lambda key: key in last_columns)}
        rows.append({"inputs": name} | {key: value for key, value in ordered.items() if value is not None})
    print_rows(rows)
    draws = student.about["chains"] * student.about["draws"]
    echo(f"\n{out}: one network instead of {draws} draws")
