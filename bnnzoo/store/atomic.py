"""Files that are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from bnnzoo.errors import BnnzooError


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write `path` through a temporary file beside it: flush, fsync, rename, fsync of the folder.

    Raises:
        BnnzooError: naming the file, when the disk refuses; the old file, if any, is untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BnnzooError(
            f"{path}: cannot be written: {error.strerror or error}; what was there is untouched"
        ) from error


def publish(temporary: Path, path: Path) -> None:
    """Give a finished file its name, durably."""
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
