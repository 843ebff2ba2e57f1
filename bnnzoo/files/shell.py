"""Quoting for commands that the user copies into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path


def quoted(path: str | Path | None) -> str:
    """Quote a file name for a shell. The name can contain spaces, and it can start with a dash."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
