"""The command `bnnzoo bench`: run a benchmark, show its table, and verify its results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo, print_json, print_table
from bnnzoo.errors import BnnzooWarning, GateError, UsageError

app = typer.Typer(help="Compare methods on the same problems and splits.", rich_markup_mode="rich")

_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="folder of bnnzoo bench run", show_default=False)]
_Problems = Annotated[
    list[Path] | None,
    typer.Option(
        "--problems",
        metavar="FOLDER|FILE.csv",
        help="a CSV file with a header; a folder with data.csv.gz and test_mask.csv.gz; or a folder that contains such "
        "files or folders; references or references:NAME for reference posteriors; repeatable; default: scikit-learn's "
        "diabetes table",
        show_default=False,
    ),
]


@app.command()
def run(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="folder of the results")],
    problems: _Problems = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            help="comma-separated methods: default (the model and sampler that bnnzoo sample chooses), MODEL:SAMPLER, "
            "recipe.yaml, package.module:Class, or a peer (mean, linear, gp, catboost, ngboost, laplace-torch, "
            "realmlp, tabm, or a peer that another package offers); SAMPLER for references; default: "
            "default,linear,gp",
            show_default=False,
        ),
    ] = None,
    folds: Annotated[
        str, typer.Option("--folds", help="divisions into training and test rows: 0-2 or 0,3,5-7")
    ] = "0-2",
    budget: Annotated[str, typer.Option("--budget", help="time of a fit, such as 90s, 5m or 2h")] = "60s",
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**32 - 1, help="seed of fits and of folds of CSV files")
    ] = 0,
    target: Annotated[
        str | None,
        typer.Option("--target", help="target column of CSV files; default: the last column", show_default=False),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="repeat failed fits")] = False,
    quiet: common.Quiet = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Fit every method on every fold of every problem, and append one line per fit to FOLDER/results.jsonl.

    Fits that have a result are not repeated. After an interruption, type the same command again.

    \b
    Examples:
      bnnzoo bench run --problems houses.csv --methods default,linear,gp --budget 30s -o bench
      bnnzoo bench run --problems uci --methods default,mlp:nuts,catboost --folds 0-9 -o bench
      bnnzoo bench run --problems references:boston --methods nuts,laplace --budget 20s -o distances
    """
    del debug
    import warnings

    from bnnzoo_bench.methods import parse_methods
    from bnnzoo_bench.problems import find_problems
    from bnnzoo_bench.results import open_results
    from bnnzoo_bench.running import Plan, check_plan, parse_budget, parse_folds, run_plan

    names = [name.strip() for text in methods or ["default,linear,gp"] for name in text.split(",") if name.strip()]
    plan = Plan(
        find_problems(problems or [], target), parse_folds(folds), parse_methods(names), parse_budget(budget), seed
    )

    def report(text: str) -> None:
        typer.echo(f"bnnzoo: {text}", err=True)

    check_plan(plan)
    with open_results(out) as results:
        if results.truncated_bytes:
            report(f"{out}: the last line of the results was incomplete and is removed; its fit is repeated")
        new = run_plan(plan, results, retry_failed=retry_failed, report=None if quiet else report)
        lines = results.lines
    failed = sum(line["status"] == "failed" for line in lines)
    if failed:
        warnings.warn(
            BnnzooWarning(f"{out}: {failed} of {len(lines)} fits failed; --retry-failed repeats them"), stacklevel=1
        )
    summary = {"folder": str(out), "fits": len(lines), "new": len(new), "failed": failed}
    summary["next"] = f"bnnzoo bench table {out}"
    if json:
        print_json(summary)
    else:
        print_table(list(summary), [[str(value) for value in summary.values()]])


@app.command()
def table(
    folder: _Folder,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="table.html or table.md; default: Markdown on stdout"),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            help="metric of ranks and differences: crps, nll, rmse or interval_score_90; default: crps",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            help="method with which the others are compared; default: the method default if it has results, otherwise "
            "the best method",
            show_default=False,
        ),
    ] = None,
    force: common.Force = False,
    debug: common.Debug = False,
) -> None:
    """Show the mean ranks with a critical difference, paired differences, and the scores of each problem.

    For reference posteriors, show the distances from each reference and the cost of each sampler instead.

    \b
    Examples:
      bnnzoo bench table bench
      bnnzoo bench table bench -o table.html
    """
    del debug
    from bnnzoo_bench import reference_tables
    from bnnzoo_bench.page import to_html, to_markdown, write
    from bnnzoo_bench.results import read_results
    from bnnzoo_bench.tables import sections

    if out is not None and out.suffix not in (".md", ".html"):
        raise UsageError(f"{out}: unknown format; use a name that ends with .md or .html")
    if out is not None and out.exists() and not force:
        raise UsageError(f"{out}: exists; use --force to replace it, or another name with -o")
    lines = read_results(folder)
    if reference_tables.is_of_references(lines):
        if given := [name for name, value in (("--metric", metric), ("--reference", reference)) if value is not None]:
            options = ", ".join(given)
            raise UsageError(f"{options}: not supported for results on reference posteriors; remove {options}")
        parts = reference_tables.sections(lines)
    else:
        parts = sections(lines, metric or "crps", reference)
    if out is None:
        echo(to_markdown(parts))
    else:
        write(out, to_html(parts) if out.suffix == ".html" else to_markdown(parts))


@app.command()
def verify(
    folder: _Folder,
    rows: Annotated[int, typer.Option("--rows", min=1, help="number of fits to repeat, chosen at random")] = 3,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            min=0,
            help="largest accepted relative difference of a metric; for NLL and coverage see docs/bench.md",
        ),
    ] = 0.05,
    problems: Annotated[
        list[Path] | None,
        typer.Option(
            "--problems",
            metavar="FOLDER|FILE.csv",
            help="paths of the data, as for bnnzoo bench run; only fits of the problems at these paths are repeated; "
            "repeatable; default: the paths in the results",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            help="comma-separated methods whose fits are repeated; default: all; a method requires its package",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="seed of the random choice of fits; default: a new choice each time"),
    ] = None,
    quiet: common.Quiet = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Repeat some fits and compare their metrics with the stored results.

    The exit code is 3 if a metric differs by more than the tolerance.

    \b
    Examples:
      bnnzoo bench verify bench
      bnnzoo bench verify bench --rows 10 --tolerance 0.01
      bnnzoo bench verify bench --problems uci --methods default,gp
    """
    del debug
    from bnnzoo_bench.problems import find_problems
    from bnnzoo_bench.results import read_results
    from bnnzoo_bench.verifying import COLUMNS, verify_fits

    def report(text: str) -> None:
        typer.echo(f"bnnzoo: {text}", err=True)

    places = find_problems(problems) if problems else ()
    names = [name.strip() for text in methods or () for name in text.split(",") if name.strip()]
    checks = verify_fits(read_results(folder), rows, tolerance, seed, None if quiet else report, places, names)
    if json:
        print_json([check._asdict() for check in checks])
    else:
        print_table(COLUMNS, [check.cells() for check in checks])
    if different := [check for check in checks if not check.agrees]:
        first = different[0]
        raise GateError(
            f"{folder}: {len(different)} of {len(checks)} metrics differ by more than the tolerance, such as "
            f"{first.metric} of {first.method} on {first.problem}, fold {first.fold}: expected {first.expected:.4g}, "
            f"got {first.got:.4g}; compare the machine and the package versions in bnnzoo bench table {folder}"
            if first.got is not None
            else f"{folder}: {first.method} on {first.problem}, fold {first.fold} failed: {first.reason}"
        )
