"""The command line. What is imported here is light: JAX comes in when a command needs it."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer

from bnnzoo.cli import catalogue, check, compare, diagnose, evaluate, new, report, sample, zoo
from bnnzoo.errors import BnnzooError, BnnzooWarning
from bnnzoo.near import near_names

app = typer.Typer(
    name="bnnzoo",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(version("bnnzoo"))
        raise typer.Exit
    return asked


@app.callback()
def _bnnzoo(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and leave"),
    ] = False,
) -> None:
    """A zoo of Bayesian neural networks: any model with any sampler, one command, one file.

    \b
    Examples:
      bnnzoo sample mdn penalty -o run.nc
      bnnzoo evaluate run.nc
      bnnzoo list
    """
    del show_version


for _group in (sample, evaluate, diagnose, compare, report, check, new, catalogue, zoo):
    _group.add_to(app)


def main() -> None:
    """The entry point of the `bnnzoo` command."""
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has left; without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Everything a person should act on is one line on stderr."""
    debug = "--debug" in arguments
    with warnings.catch_warnings():
        warnings.simplefilter("default" if debug else "ignore")
        warnings.simplefilter("always", BnnzooWarning)
        warnings.showwarning = _show_warning
        try:
            command: Any = typer.main.get_command(app)
            return command.main(list(arguments) or ["--help"], prog_name="bnnzoo", standalone_mode=False) or 0
        except BaseException as error:
            if debug and not isinstance(error, SystemExit):
                traceback.print_exc()
            return _exit_code(error, arguments)


def _exit_code(error: BaseException, arguments: Sequence[str]) -> int:
    """Say what happened, and with which code to leave."""
    if isinstance(error, BnnzooError):
        _say(str(error))
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        _say("interrupted")
        return 130
    if isinstance(error, BrokenPipeError):
        return 0
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        _say(_usage(error, arguments))
        return getattr(error, "exit_code", 2)
    text = " ".join(str(error).split())
    _say(f"internal error: {type(error).__name__}: {text} (run again with --debug for the traceback)")
    return 1


def _usage(error: Any, arguments: Sequence[str]) -> str:
    """A usage error of the argument parser, in our words. Its classes are not public, hence by shape."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if hasattr(error, "possibilities") and hasattr(error, "option_name"):
        near = near_names(error.option_name, error.possibilities or [], 1)
        message = f"No such option: {error.option_name}" + (f" (did you mean {near[0]}?)" if near else "")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else " ".join(["bnnzoo", *arguments[:1]])
    return f"{message}; try {command} --help"


def _say(message: str) -> None:
    for line in message.splitlines() or [""]:
        print(f"bnnzoo: {line}", file=sys.stderr)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    if issubclass(category, BnnzooWarning):
        print(f"bnnzoo: warning: {' '.join(str(message).split())}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno), end="", file=sys.stderr)
