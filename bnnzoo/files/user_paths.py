"""Checks of paths from the user: invalid paths, and outputs that would replace an input."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bnnzoo.errors import UsageError

_LONGEST_SHOWN = 80
"""Maximal number of characters of a path in the message for a path that the file system does not allow."""


def checked_path(path_given: str | Path, *, folder: bool = False) -> Path:
    """Return a path from the user as a `Path`, after checks. The file need not exist.

    Args:
        path_given: the path as the user typed it.
        folder: whether the path may be a folder.

    Raises:
        UsageError: if the path is not the name of a file. Also if the file system does not allow the path, or the path
            PATH.parts, where a run stores its part files.
    """
    text, path = os.fspath(path_given), Path(path_given)
    if not text or (not folder and path.name in ("", "..")):
        kind, example = ("folder", "runs") if folder else ("file", "run.nc")
        raise UsageError(f"{text or repr(text)}: is not the name of a {kind}; give a name, such as {example}")
    if not folder and text.endswith("/"):
        raise UsageError(f"{text}: is the name of a folder; give a file, such as {text}run.nc")
    try:
        for candidate in (path, path if folder else path.with_name(f"{path.name}.parts")):
            os.path.realpath(candidate)
            candidate.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # a missing file is reported where it is read
    except (OSError, ValueError) as error:
        short_text = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
        raise UsageError(f"{short_text}: {getattr(error, 'strerror', None) or error}; use another path") from error
    return path


def refuse_input_as_output(out: Path, inputs: Iterable[Any]) -> None:
    """Check that the output of a command is not one of its inputs, even if a link gives the same file two paths.

    Args:
        out: the file to write.
        inputs: the files that are read; values that are not paths are ignored.

    Raises:
        UsageError: if the output is one of the inputs, even with `--force`.
    """
    for input_path in inputs:
        if isinstance(input_path, str | Path) and os.fspath(input_path) and _is_same(out, Path(input_path)):
            raise UsageError(f"{out}: is read by this command and cannot be replaced; use another [[out]]")


def _is_same(out: Path, input_path: Path) -> bool:
    try:
        # The paths are compared too, because an unfinished run has no file yet.
        return os.path.realpath(out) == os.path.realpath(input_path) or os.path.samefile(out, input_path)
    except (OSError, ValueError):
        return False
