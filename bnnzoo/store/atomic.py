"""Files that are whole or absent, whatever happens while they are written. Every file of bnnzoo goes through here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from bnnzoo.errors import BnnzooError

half_written: set[Path] = set()
"""Temporary files of this moment: a process that ends without unwinding removes them first."""


@contextmanager
def replacing(path: Path, *, kept: str = "what was there is untouched") -> Iterator[IO[bytes]]:
    """A file beside `path`, open for reading and writing, that takes its place at the end of the block.

    Flush, fsync, rename, fsync of the folder. After any exception it is gone, and `path` is as it was.

    Raises:
        BnnzooError: naming the file, when the disk refuses; it ends with `kept`.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    half_written.add(temporary)
    try:
        # What a kill left goes first; x opens nothing that is there, so a planted link is not followed.
        temporary.unlink(missing_ok=True)
        with open(temporary, "x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise BnnzooError(f"{path}: cannot be written: {error.strerror or error}; {kept}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        half_written.discard(temporary)


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write `path` by a function of the open file.

    Raises:
        BnnzooError: naming the file, when the disk refuses; the old file, if any, is untouched.
    """
    with replacing(path) as file:
        write(file)


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file.

    Raises:
        BnnzooError: naming the file, when the disk refuses; the old file, if any, is untouched.
    """
    with open(source, "rb") as content:
        write_whole(path, lambda file: shutil.copyfileobj(content, file))


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
