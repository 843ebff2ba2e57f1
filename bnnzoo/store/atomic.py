"""Files that are whole or absent, whatever happens while they are written. Every file of bnnzoo goes through here."""

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
"""Temporary files of this moment: a process that ends without unwinding removes them first."""


class OvertakenError(Exception):
    """Another process has put a new file in the place of the one that was to be replaced."""


@contextmanager
def replacing(
    path: Path, *, kept: str = "what was there is untouched", instead_of: IO[bytes] | None = None
) -> Iterator[IO[bytes]]:
    """A file beside `path`, open for reading and writing, that takes its place at the end of the block.

    Flush, fsync, rename, fsync of the folder. After any exception it is gone, and `path` is as it was. Each writer has
    a file of its own: of several the last one's stays, whole.

    Args:
        instead_of: the open file that `path` must still be.

    Raises:
        BnnzooError: naming the file, when the disk refuses; it ends with `kept`.
        OvertakenError: when `path` is no longer the file `instead_of`.
    """
    try:
        _sweep(path)
        with _temporary(path) as (temporary, file):
            yield file
            file.flush()
            os.fsync(file.fileno())
            _publish(temporary, path, instead_of)
    except OSError as error:
        raise BnnzooError(f"{path}: cannot be written: {error.strerror or error}; {kept}") from error


def check_free(path: Path, *, force: bool, cure: str = "another -o, or --force") -> None:
    """Raise if a file cannot be written at `path` without taking the place of something.

    Args:
        force: a file may be replaced; anything else is refused all the same.
        cure: what may be typed instead, where there is a file.

    Raises:
        UsageError: with what to type instead.
    """
    try:
        there = path.exists()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; use another -o") from error
    if not there and path.is_symlink():
        raise UsageError(f"{path}: is a link to nothing; use another -o, or remove it")
    if there and not path.is_file():
        raise UsageError(f"{path}: is {'a folder' if path.is_dir() else 'no regular file'}; use another -o")
    if there and not force:
        raise UsageError(f"{path}: exists; use {cure} to replace it")


def make_folder(folder: Path) -> None:
    """Make a folder, with those that it lies in.

    Raises:
        UsageError: where there can be none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made: {error.strerror or error}; use another -o") from error


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
    """Put what a folder lists on the disk: a new or renamed file is lost without it when the power goes."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _publish(temporary: Path, path: Path, instead_of: IO[bytes] | None) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # where folders have no locks, a moment lies between the look and the rename
            fcntl.flock(folder, fcntl.LOCK_EX)
        if instead_of is not None and not os.path.samestat(os.fstat(instead_of.fileno()), path.stat()):
            raise OvertakenError
        os.replace(temporary, path)
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A new file beside `path`, gone at the end if it still has its name; a lock says that it has a writer."""
    while True:
        temporary = path.with_name(f".{_stem(path)}.{secrets.token_hex(8)}.tmp")
        half_written.add(temporary)
        try:
            # x opens nothing that is there, so a planted link is not followed.
            with open(temporary, "x+b") as file:
                with suppress(OSError):  # not every disk has locks; a shared one lets HDF5 read the finished file
                    fcntl.flock(file, fcntl.LOCK_SH)
                with suppress(OSError):  # who could not read what was there shall not read what takes its place
                    if stat.S_ISREG((there := path.lstat()).st_mode):
                        os.fchmod(file.fileno(), stat.S_IMODE(there.st_mode))
                if os.fstat(file.fileno()).st_nlink:  # else another writer has swept it before the lock
                    yield temporary, file
                    return
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            half_written.discard(temporary)


def _stem(path: Path) -> str:
    """As much of its name as leaves room for more: a name has 255 bytes."""
    return os.fsencode(path.name)[:200].decode(errors="ignore")


def _sweep(path: Path) -> None:
    """Remove the temporary files of `path` that nobody holds: their writers were killed."""
    ours = re.compile(rf"\.{re.escape(_stem(path))}\.[0-9a-f]{{16}}\.tmp")
    for other in path.parent.iterdir():
        if ours.fullmatch(other.name) and other.is_file() and not other.is_symlink():
            with suppress(OSError), open(other, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                other.unlink()
