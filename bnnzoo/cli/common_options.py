"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from bnnzoo.cli.options import parameter
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.files.user_paths import checked_path


class _RefusedPathError(BnnzooError):
    """An invalid path. It is not a ValueError, because the parser replaces the message of a ValueError."""

    exit_code = UsageError.exit_code


def file(text: str | Path) -> Path:
    """Return the path of a file argument. Every command checks its paths with this function or `folder`."""
    return _path(text, folder=False)


def folder(text: str | Path) -> Path:
    """Return the path of an argument that names a folder or, for some commands, a file."""
    return _path(text, folder=True)


def _path(text: str | Path, *, folder: bool) -> Path:
    try:
        return checked_path(text, folder=folder)
    except UsageError as error:
        raise _RefusedPathError(str(error)) from None


def check_runs(context: Any, runs: Any) -> Any:
    """Check that files are undamaged runs, before slow imports. All run arguments but `Unfinished` use this check."""
    # Typer has its own copy of Click's context class, so no annotation covers both.
    if not context.resilient_parsing:
        from bnnzoo.store import reading

        for run in runs if isinstance(runs, list | tuple) else [runs]:
            if run is not None:
                reading.check(run)
    return runs


def out(metavar: str, help: str, *, parser: Callable[[str | Path], Path] = file, **more: Any) -> Any:
    """Return the option for the output path."""
    return typer.Option("--out", "-o", parser=parser, metavar=metavar, help=help, **more)


def runs(help: str) -> Any:
    """Return the argument for several runs."""
    return typer.Argument(metavar="RUN...", help=help, show_default=False, parser=file, callback=check_runs)


def value(flag: str, metavar: str | None, help: str, **more: Any) -> Any:
    """Return an option whose help does not show the default."""
    return typer.Option(flag, metavar=metavar, help=help, show_default=False, **more)


def parameters(options: dict[str, tuple[Any, Any]], **changes: Any) -> list[inspect.Parameter]:
    """Return options as parameters of a command whose signature is built at run time.

    Args:
        options: annotation and default of each option, by name.
        changes: settings of `typer.Option` that differ from the annotations, such as `hidden`.
    """
    changed = []
    for name, (annotation, default) in options.items():
        kind, info = get_args(annotation)
        info = copy(info)
        vars(info).update(changes)
        changed.append(parameter(name, kind, info, default))
    return changed


_RUN_ARGUMENT: Any = {"metavar": "RUN", "help": "a finished or unfinished run, such as run.nc", "show_default": False}
Run = Annotated[Path, typer.Argument(parser=file, callback=check_runs, **_RUN_ARGUMENT)]
Unfinished = Annotated[Path, typer.Argument(parser=file, **_RUN_ARGUMENT)]
Json = Annotated[bool, typer.Option("--json", help="print one JSON value on stdout")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="show no progress; warnings are still shown")]
Force = Annotated[bool, typer.Option("--force", help="replace an existing file")]
Debug = Annotated[bool, typer.Option("--debug", help="show tracebacks and the warnings of libraries")]
NoPlugins = Annotated[bool, typer.Option("--no-plugins", help="load only bnnzoo itself, no plugins")]

Unseen = Annotated[
    Literal["error", "zero"] | None,
    value(
        "--unseen",
        "error|zero",
        "for text values that the training rows do not contain: raise an error, or encode them with zeros; "
        "default: as in the run",
    ),
]

Interval = Annotated[
    Literal["bayesian", "conformal"] | None,
    value(
        "--interval",
        "bayesian|conformal",
        "add a prediction interval (for classification, a set of classes); conformal guarantees the coverage",
    ),
]
Level = Annotated[float | None, value("--level", "FLOAT", "probability of the interval; default 0.9")]
Calibration = Annotated[
    str | None,
    value(
        "--calibration",
        "FILE|test",
        "for --interval conformal: file of rows with targets that are used neither to train nor to test; or test: the "
        "run's own test rows",
    ),
]

_LOG_HELP = "also write a log while the run is running: jsonl:FILE, tensorboard:DIR or wandb[:PROJECT]; repeatable"
# The help printer interprets square brackets as markup.
LogTo = Annotated[list[str] | None, value("--log-to", "NAME:TEXT", _LOG_HELP.replace("[", "\\["))]

Scheduler = Annotated[
    str | None,
    value("--scheduler", "ADDRESS", "compute passes over all rows on the Dask cluster at tcp://HOST:PORT"),
]

_FLAGS = {"force": Force, "quiet": Quiet, "json": Json, "no_plugins": NoPlugins, "debug": Debug}


def flags(*names: str, **changes: Any) -> list[inspect.Parameter]:
    """Return the flags with these names as parameters of a command. The help lists them in the panel "Output".

    `changes` are passed on to `parameters`.
    """
    return parameters({name: (_FLAGS[name], False) for name in names}, rich_help_panel="Output", **changes)
