"""Options that several commands share, spelt once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="run.nc; while it is unfinished, the same name", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON value on stdout")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress; warnings are still shown")]
Force = Annotated[bool, typer.Option("--force", help="replace an existing file")]
Debug = Annotated[bool, typer.Option("--debug", help="show tracebacks and the warnings of libraries")]
NoPlugins = Annotated[bool, typer.Option("--no-plugins", help="load nothing but the zoo itself")]
