"""Atomic writes: a file is complete or absent, whatever interrupts its writer. Every file of bnnzoo is written here."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from bnnzoo.errors import BnnzooError, UsageError

half_written: set[Path] = set()
"""Temporary files that exist now; a process that exits without unwinding removes them first."""


class OvertakenError(Exception):
    """Another process has replaced the file that this one was about to replace."""


@contextmanager
def replacing(
    path: Path, *, on_failure: str = "the previous file is unchanged", instead_of: IO[bytes] | None = None
) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`, for reading and writing, that replaces `path` at the end of the block.

    The steps are flush, fsync, rename and fsync of the folder. After an exception the temporary file is removed and
    `path` is unchanged. Each writer has its own temporary file: with several writers the last one's file remains,
    complete.

    Args:
        path: the file to replace.
        on_failure: end of the error message, about the data that remain.
        instead_of: the open file that `path` must still be.

    Yields:
        the open temporary file.

    Raises:
        BnnzooError: if the file cannot be written; the message names it and ends with `on_failure`.
        OvertakenError: if `path` is no longer the file `instead_of`.
    """
    try:
        _remove_stale_files(path)
        with _temporary(path) as (temporary, file):
            yield file
            file.flush()
            os.fsync(file.fileno())
            _publish(temporary, path, instead_of)
    except OSError as error:
        raise BnnzooError(f"{path}: cannot be written: {error.strerror or error}; {on_failure}") from error


def check_free(path: Path, *, force: bool, remedy: str = "another [[out]], or [[force=True]]") -> None:
    """Raise if a file at `path` could not be written, or would replace something without `force`.

    Args:
        path: the file to write.
        force: a regular file may be replaced; anything else is refused in any case.
        remedy: remedy in the message if there is a file.

    Raises:
        UsageError: with the remedy.
    """
    try:
        exists = path.exists()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; use another [[out]]") from error
    if not exists and path.is_symlink():
        raise UsageError(f"{path}: is a link to a file that does not exist; use another [[out]], or remove it")
    if exists and not path.is_file():
        raise UsageError(f"{path}: is {'a folder' if path.is_dir() else 'not a regular file'}; use another [[out]]")
    if exists and not force:
        raise UsageError(f"{path}: exists; use {remedy} to replace it")


def make_folder(folder: Path) -> None:
    """Make a folder and its parents.

    Raises:
        UsageError: if the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be created: {error.strerror or error}; use another [[out]]") from error


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write `path` by a function of the open file, completely or not at all.

    Raises:
        BnnzooError: if the file cannot be written; the message names it, and an old file is unchanged.
    """
    with replacing(path) as file:
        write(file)


def copy_atomically(source: Path, path: Path) -> None:
    """Copy a file, completely or not at all.

    Raises:
        BnnzooError: if the copy cannot be written; the message names it, and an old file is unchanged.
    """
    with open(source, "rb") as content:
        write_atomically(path, lambda file: shutil.copyfileobj(content, file))


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names to disk; otherwise a power failure may lose a new or renamed file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(temporary: Path, path: Path, instead_of: IO[bytes] | None) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # without locks on folders, another process can act between the comparison and the rename
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        if instead_of is not None and not os.path.samestat(os.fstat(instead_of.fileno()), path.stat()):
            raise OvertakenError
        os.replace(temporary, path)
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Open a new file beside `path` with a lock that marks it as in use, and remove it unless it was renamed."""
    while True:
        temporary = path.with_name(f".{_stem(path)}.{secrets.token_hex(8)}.tmp")
        half_written.add(temporary)
        try:
            # Mode x fails if the name exists, so it never follows a link that someone planted.
            with open(temporary, "x+b") as file:
                # not every file system has locks; a shared lock lets HDF5 read the finished file
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_SH)
                with suppress(OSError):  # users who could not read the old file must not be able to read the new one
                    if stat.S_ISREG((old_status := path.lstat()).st_mode):
                        os.fchmod(file.fileno(), stat.S_IMODE(old_status.st_mode))
                if os.fstat(file.fileno()).st_nlink:  # otherwise another writer removed the file before it was locked
                    yield temporary, file
                    return
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            half_written.discard(temporary)


def _stem(path: Path) -> str:
    """Return the beginning of the file's name, short enough to add a suffix within 255 bytes."""
    return os.fsencode(path.name)[:200].decode(errors="ignore")


def _remove_stale_files(path: Path) -> None:
    """Remove the temporary files of `path` that no process has locked: their writers were killed."""
    own_pattern = re.compile(rf"\.{re.escape(_stem(path))}\.[0-9a-f]{{16}}\.tmp")
    for neighbour in path.parent.iterdir():
        if own_pattern.fullmatch(neighbour.name) and neighbour.is_file() and not neighbour.is_symlink():
            with suppress(OSError), open(neighbour, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                neighbour.unlink()
