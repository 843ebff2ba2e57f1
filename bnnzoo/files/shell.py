"""Quoting for commands that the user copies into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path


def quoted(path: str | Path | None) -> str:
    """Quote a file name for a shell. It may contain spaces and start with a dash."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
