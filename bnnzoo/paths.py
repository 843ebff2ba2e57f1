"""Checks of paths from the user: invalid paths, and outputs that would replace an input."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bnnzoo.errors import UsageError

_LONGEST_SHOWN = 80


def named(given: str | Path, *, folder: bool = False) -> Path:
    """Return the path of a file, which need not exist.

    Args:
        given: the path as the user typed it.
        folder: whether the path may be a folder.

    Raises:
        UsageError: if it names no file, or if the file system cannot hold the file or the folder of its parts.
    """
    text, path = os.fspath(given), Path(given)
    if not text or (not folder and path.name in ("", "..")):
        raise UsageError(f"{text or repr(text)}: is not the name of a file; give one, such as run.nc")
    if not folder and text.endswith("/"):
        raise UsageError(f"{text}: is the name of a folder; give a file, such as {text}run.nc")
    try:
        for one in (path, path if folder else path.with_name(f"{path.name}.parts")):
            os.path.realpath(one)
            one.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # a missing file is reported where it is read
    except (OSError, ValueError) as error:
        shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
        raise UsageError(f"{shown}: {getattr(error, 'strerror', None) or error}; use another path") from error
    return path


def refuse_read(out: Path, read: Iterable[Any]) -> None:
    """Refuse to replace a file that the command reads, under any name, even with --force.

    Args:
        out: the file to write.
        read: the files that are read; values that are not paths are ignored.

    Raises:
        UsageError: with the file.
    """
    for one in read:
        if isinstance(one, str | Path) and os.fspath(one) and _is_same(out, Path(one)):
            raise UsageError(f"{out}: is read by this command and cannot be replaced; use another [[out]]")


def _is_same(out: Path, other: Path) -> bool:
    try:
        # An unfinished run has no file yet.
        return os.path.realpath(out) == os.path.realpath(other) or os.path.samefile(out, other)
    except (OSError, ValueError):
        return False
