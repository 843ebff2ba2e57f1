"""bnnzoo zoo: the recipes the zoo ships, and one table of what they give."""

from __future__ import annotations

import fnmatch
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, no_type_check

import typer

from bnnzoo import registry, signals
from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import print_json, print_table
from bnnzoo.cli.part_command import SETTINGS
from bnnzoo.errors import BnnzooError, InterruptedRunError, NotFoundError, UsageError
from bnnzoo.recipe import part_names, read_layer, shipped_names

COLUMNS = {
    "recipe": ("recipe",),
    "sampler": ("sampler",),
    "acceptance": ("acceptance_rate",),
    "R-hat": ("rhat",),
    "ESS": ("ess_bulk",),
    "NLL": ("nll_standardised", "nll"),
    "NLL moments": ("nll_moment_standardised",),
    "RMSE": ("rmse_standardised", "rmse"),
    "accuracy": ("accuracy",),
    "seconds": ("seconds",),
    "error": ("error",),
}
"""The table's columns: the first of these numbers that a row has. All others are in the JSON."""


def runnable() -> dict[str, str]:
    """Recipes that name all a run needs but perhaps its data: shipped ones by name, and pairs `model.sampler`.

    A pair is a model with an example and a sampler with a recipe of its own, whether or not the two share one.
    """
    shipped = shipped_names()
    installed = {kind: registry.entries(kind) for kind in ("models", "samplers")}
    found: dict[str, str] = {}
    for name, summary in shipped.items():
        if "." in name or name in installed["models"] or name in installed["samplers"]:
            continue
        parts = part_names(None, None, [read_layer(name)])
        if parts["model"] and parts["sampler"] in installed["samplers"]:
            found[name] = summary
    samplers = [name for name in shipped if name in installed["samplers"]]
    for model in (name for name in shipped if name in installed["models"]):
        for sampler in samplers:
            pair = f"{model}.{sampler}"
            found[pair] = shipped.get(pair, shipped[sampler])
    return dict(sorted(found.items()))


@no_type_check  # Typer gives a context of the class that its `Context` derives from
def list_recipes(context: typer.Context, json: common.Json = False, debug: common.Debug = False) -> None:
    """List the recipes that the zoo ships and that can be run as they are, or run some of them.

    Any pair MODEL.SAMPLER of a model with an example and a sampler with a recipe can be run too.

    \b
    Examples:
      bnnzoo zoo
      bnnzoo zoo run mdn.nuts
    """
    del debug
    if context.invoked_subcommand is not None:
        return
    shipped = shipped_names()
    rows = {name: summary for name, summary in runnable().items() if name in shipped}
    if json:
        print_json([{"recipe": name, "summary": summary} for name, summary in rows.items()])
    else:
        print_table(("recipe", "summary"), [[name, summary] for name, summary in rows.items()])


def run(
    patterns: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="recipes of `bnnzoo zoo`, or patterns such as 'airfoil-*' and '*.nuts'",
            show_default=False,
            autocompletion=lambda: list(runnable()),
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="keep each run as DIR/NAME.nc", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="where the recipes' data are", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="seed of every run, instead of the recipes'", show_default=False)
    ] = None,
    force: common.Force = False,
    quiet: common.Quiet = False,
    json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Run recipes one after the other, each in a process of its own, and print one table.

    R-hat and ESS are of predictions. NLL, NLL of a Gaussian with the predictive mean and variance, and RMSE are of the
    test rows in standardised units. Seconds are of the whole command: start, compilation, warm-up and sampling.

    \b
    Examples:
      bnnzoo zoo run 'linear.*'
      bnnzoo zoo run 'airfoil-*' --data airfoil.csv -o runs --json
    """
    names = _matching(patterns)
    if out is not None and not force:
        there = [str(file) for name in names if (file := out / f"{name}.nc").exists()]
        if there:
            raise UsageError(f"{there[0]}: exists; use another -o, or --force to replace it")
    with tempfile.TemporaryDirectory(prefix="bnnzoo-") as temporary:
        folder = out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        words = [*_option("--data", data), *_option("--seed", seed)]
        words += [flag for flag, asked in (("--quiet", quiet), ("--debug", debug)) if asked]
        rows = [_row(name, folder / f"{name}.nc", words) for name in names]
    if json:
        print_json(rows)
    else:
        cells = [[_cell(row, keys) for keys in COLUMNS.values()] for row in rows]
        used = [i for i in range(len(COLUMNS)) if any(line[i] for line in cells)]
        print_table([list(COLUMNS)[i] for i in used], [[line[i] for i in used] for line in cells])
    failed = [row["recipe"] for row in rows if "error" in row]
    if failed:
        raise BnnzooError(f"{len(failed)} of {len(rows)} recipes failed: {', '.join(failed)}")


def _matching(patterns: Sequence[str]) -> list[str]:
    known = runnable()
    found: dict[str, None] = {}
    for pattern in patterns:
        names = fnmatch.filter(known, pattern)
        if not names:
            raise NotFoundError(f"no recipe {pattern!r} that can be run as it is; see bnnzoo zoo")
        found |= dict.fromkeys(names)
    return list(found)


def _option(flag: str, value: object) -> list[str]:
    return [] if value is None else [flag, str(value)]


def _row(name: str, file: Path, options: Sequence[str]) -> dict[str, Any]:
    """One recipe's run, and what its file says."""
    model, _, sampler = name.partition(".")
    words = [*([model, sampler] if sampler else ["--config", name]), *options]
    # A process of its own: the number of devices is chosen once in each, and its time is the whole time.
    command = [sys.executable, "-m", "bnnzoo", "sample", *words, "-o", str(file), "--force"]
    started = time.perf_counter()
    code = _exit_code(command)
    seconds = time.perf_counter() - started
    if code:
        return {"recipe": name, "sampler": sampler, "seconds": seconds, "error": f"exit code {code}"}
    from bnnzoo import zoo

    run = zoo.open(file)
    about = run.attributes
    found = {"recipe": name, "model": about["model"], "sampler": about["sampler"], "seconds": seconds}
    found |= {key: float(about[key]) for key in about if key.startswith("seconds_") or key == "target_evaluations"}
    try:
        return {**found, **run.diagnose(), **run.evaluate(save=False)}
    except BnnzooError as error:
        return {**found, "error": str(error)}


def _exit_code(command: Sequence[str]) -> int:
    """That of a command, which is passed our signals and may write what it has.

    It is in a group of its own: a terminal's Ctrl-C is then sent to us alone, and reaches it once.
    """
    asked: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int) -> None:
        asked.append(number)
        for process in running:
            process.send_signal(number)

    with signals.received_by(pass_on), subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0) as process:
        running.append(process)
        for number in asked:  # that came before there was a process
            process.send_signal(number)
        process.wait()
    if asked:
        raise InterruptedRunError(f"stopped by {signal.Signals(asked[0]).name}", asked[0])
    return process.returncode


def _cell(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    value = next((row[key] for key in keys if key in row), "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(context_settings=SETTINGS, rich_markup_mode="rich")
    group.callback(invoke_without_command=True, help=list_recipes.__doc__)(list_recipes)
    group.command("run", context_settings=SETTINGS)(run)
    app.add_typer(group, name="zoo")
