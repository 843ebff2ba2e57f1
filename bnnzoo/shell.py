"""Commands to be pasted."""

from __future__ import annotations

import shlex
from pathlib import Path


def quoted(path: str | Path | None) -> str:
    """A file as a shell takes it, whatever is in its name: also a dash at its front, or a space."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
