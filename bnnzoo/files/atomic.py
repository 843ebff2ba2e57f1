"""Atomic writes: if the writer is interrupted, the old file is unchanged. All runs and results are written so."""

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
"""The temporary files that exist now. `process.signals.end_process` removes these files."""


class OvertakenError(Exception):
    """Error: another process has replaced the file that this process was going to replace."""


@contextmanager
def replacing(
    path: Path, *, on_failure: str = "the previous file is unchanged", instead_of: IO[bytes] | None = None
) -> Iterator[IO[bytes]]:
    """Open a temporary file next to `path`, for reading and writing. At the end of the block, the file replaces `path`.

    The final steps are flush, fsync, rename and fsync of the folder. After an exception in the block, the temporary
    file is removed and `path` is unchanged. Each process that writes `path` has its own temporary file. If several
    processes write `path`, the file of the process that ends last remains.

    Args:
        path: the file to replace.
        on_failure: the end of the error message; it states which data remain.
        instead_of: an open file. The file at `path` is replaced only if it is still this file; None for any file.

    Yields:
        the open temporary file.

    Raises:
        BnnzooError: if the file cannot be written. The message names the file and ends with `on_failure`.
        OvertakenError: if another process has replaced the file `instead_of` at `path`.
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
    """Check that a file can be written to `path`.

    Args:
        path: the file to write.
        force: whether an existing file may be replaced.
        remedy: the remedy in the message if the file exists.

    Raises:
        UsageError: if a file exists and `force` is false, if `path` exists but is not a regular file, if `path` is a
            link to a missing file, or if `path` cannot be examined.
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
    """Create a folder and its parents if they do not exist.

    Raises:
        UsageError: if the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be created: {error.strerror or error}; use another [[out]]") from error


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file, completely or not at all.

    Args:
        path: the file.
        write: a function that writes the content to an open file.

    Raises:
        BnnzooError: if the file cannot be written. A previous file is then unchanged.
    """
    with replacing(path) as file:
        write(file)


def copy_atomically(source: Path, path: Path) -> None:
    """Copy a file, completely or not at all.

    Raises:
        BnnzooError: if the copy cannot be written. A previous file at `path` is then unchanged.
        OSError: if the source cannot be opened.
    """
    with open(source, "rb") as content:
        write_atomically(path, lambda file: shutil.copyfileobj(content, file))


def sync_folder(folder: Path) -> None:
    """Write the list of files of a folder to disk. Without this, a power failure could undo the creation of a file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(temporary: Path, path: Path, instead_of: IO[bytes] | None) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # The lock prevents another process from replacing the file between the comparison and the rename. Some file
        # systems do not support locks on folders.
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
    """Open a new file next to `path` at the start of the context. Remove it at the end if it was not renamed.

    A lock on the file shows other processes that it is in use.
    """
    while True:
        temporary = path.with_name(f".{_stem(path)}.{secrets.token_hex(8)}.tmp")
        half_written.add(temporary)
        try:
            # Mode x fails if the name exists, so the file is never written through a link of another user.
            with open(temporary, "x+b") as file:
                # The lock is shared, so that HDF5 can read the finished file. Some file systems do not support locks.
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_SH)
                with suppress(OSError):  # the new file gets the permissions of the old one
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
    """Return the first 200 bytes of the file name, so that a temporary name stays below the limit of 255 bytes."""
    return os.fsencode(path.name)[:200].decode(errors="ignore")


def _remove_stale_files(path: Path) -> None:
    """Remove temporary files of `path` whose writer has ended. Such a file has no lock."""
    own_pattern = re.compile(rf"\.{re.escape(_stem(path))}\.[0-9a-f]{{16}}\.tmp")
    for neighbour in path.parent.iterdir():
        if own_pattern.fullmatch(neighbour.name) and neighbour.is_file() and not neighbour.is_symlink():
            with suppress(OSError), open(neighbour, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                neighbour.unlink()
