"""Options that several commands share, spelt once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.paths import named


class _Refused(BnnzooError):
    """A path that is refused while arguments are parsed: the parser words every ValueError anew."""

    exit_code = UsageError.exit_code


def file(text: str | Path) -> Path:
    """A file that was named: every command's files come through here, or through `folder`."""
    return _named(text, folder=False)


def folder(text: str | Path) -> Path:
    """A folder that was named, or a file."""
    return _named(text, folder=True)


def _named(text: str | Path, *, folder: bool) -> Path:
    try:
        return named(text, folder=folder)
    except UsageError as error:
        raise _Refused(str(error)) from None


def checked(context: Any, runs: Any) -> Any:
    """Refuse damaged and strangers' files while nothing heavy is imported: every command's RUN comes through here."""
    # Click's context, of which typer carries a copy with a class of its own: no annotation names both.
    if not context.resilient_parsing:
        from bnnzoo.store import reading

        for run in runs if isinstance(runs, list | tuple) else [runs]:
            if run is not None:
                reading.check(run)
    return runs


def out(metavar: str, help: str, *, parser: Callable[[str | Path], Path] = file, **more: Any) -> Any:
    """The option that says where to write."""
    return typer.Option("--out", "-o", parser=parser, metavar=metavar, help=help, **more)


_ABOUT: Any = {"metavar": "RUN", "help": "run.nc; while it is unfinished, the same name", "show_default": False}
Run = Annotated[Path, typer.Argument(parser=file, callback=checked, **_ABOUT)]
Unfinished = Annotated[Path, typer.Argument(parser=file, **_ABOUT)]
Json = Annotated[bool, typer.Option("--json", help="print one JSON value on stdout")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress; warnings are still shown")]
Force = Annotated[bool, typer.Option("--force", help="replace an existing file")]
Debug = Annotated[bool, typer.Option("--debug", help="show tracebacks and the warnings of libraries")]
NoPlugins = Annotated[bool, typer.Option("--no-plugins", help="load nothing but the zoo itself")]
