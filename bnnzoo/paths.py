"""Paths that a person gave: refused at the door where no file can be there, or where it is one that is read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bnnzoo.errors import UsageError

_LONGEST_SHOWN = 80


def named(given: str | Path, *, folder: bool = False) -> Path:
    """The path of a file, which need not be there.

    Args:
        folder: it may be one's.

    Raises:
        UsageError: where it names no file, or none that a disk takes with the parts of a run beside it.
    """
    text, path = os.fspath(given), Path(given)
    if not text or (not folder and path.name in ("", "..")):
        raise UsageError(f"{text or repr(text)}: names no file; give one, such as run.nc")
    if not folder and text.endswith("/"):
        raise UsageError(f"{text}: names a folder; give a file, such as {text}run.nc")
    try:
        for one in (path, path if folder else path.with_name(f"{path.name}.parts")):
            os.path.realpath(one)
            one.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # what is read is missed where it is looked for
    except (OSError, ValueError) as error:
        shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
        raise UsageError(f"{shown}: {getattr(error, 'strerror', None) or error}; use another path") from error
    return path


def refuse_read(out: Path, read: Iterable[Any]) -> None:
    """Refuse to write over what is read, whatever it is called, and with --force too.

    Args:
        read: files, and what is none.

    Raises:
        UsageError: naming the file.
    """
    for one in read:
        if isinstance(one, str | Path) and os.fspath(one) and _is_same(out, Path(one)):
            raise UsageError(f"{out}: is read by this command, and would be replaced; use another -o")


def _is_same(out: Path, other: Path) -> bool:
    try:
        # A run that is unfinished has no file yet.
        return os.path.realpath(out) == os.path.realpath(other) or os.path.samefile(out, other)
    except (OSError, ValueError):
        return False
