"""Options that several commands share, spelt once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def checked(context: Any, runs: Any) -> Any:
    """Refuse damaged and strangers' files while nothing heavy is imported: every command's RUN comes through here."""
    # Click's context, of which typer carries a copy with a class of its own: no annotation names both.
    if not context.resilient_parsing:
        from bnnzoo.store import reading

        for run in runs if isinstance(runs, list | tuple) else [runs]:
            if run is not None:
                reading.check(run)
    return runs


_ABOUT: Any = {"metavar": "RUN", "help": "run.nc; while it is unfinished, the same name", "show_default": False}
Run = Annotated[Path, typer.Argument(callback=checked, **_ABOUT)]
Unfinished = Annotated[Path, typer.Argument(**_ABOUT)]
Json = Annotated[bool, typer.Option("--json", help="print one JSON value on stdout")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress; warnings are still shown")]
Force = Annotated[bool, typer.Option("--force", help="replace an existing file")]
Debug = Annotated[bool, typer.Option("--debug", help="show tracebacks and the warnings of libraries")]
NoPlugins = Annotated[bool, typer.Option("--no-plugins", help="load nothing but the zoo itself")]
