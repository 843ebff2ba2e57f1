"""Named arrays in one .npz file, without pickle. Their sizes are checked before they are read.

Nothing is compressed. No array can therefore be larger than the file, and a small file cannot fill the memory.
"""

from __future__ import annotations

import functools
import hashlib
import io
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bnnzoo.errors import UsageError
from bnnzoo.files.atomic import write_atomically

_KINDS = "biuf"
_MAX_MEMBERS = 10_000
_MAGIC, _HEAD = b"\x93NUMPY\x01\x00", 10
"""First bytes of an array in NumPy's format, and the number of bytes before its header.

The last two bytes before the header contain its length.
"""


class Declared(NamedTuple):
    """Type and shape that an array must have."""

    dtype: str
    shape: Sequence[int]


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays, completely or not at all.

    Raises:
        BnnzooError: if the file cannot be written.
    """
    # NumPy writes a view of a larger array six times slower than a contiguous array.
    flat: dict[str, Any] = {name: np.ascontiguousarray(a) if a.ndim else a for name, a in arrays.items()}
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **flat))


def read(path: Path, declared: Mapping[str, Declared] | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of a file, by name.

    Args:
        path: the file.
        declared: the names, types and shapes that the file must have, if they are known.

    Raises:
        UsageError: if the file is missing, was not written by `write`, or does not match `declared`. The message names
            the file.
    """
    with _open_checked(path, declared) as (archive, members):
        return {name: _array(archive, info) for name, info in members.items()}


def check(path: Path, declared: Mapping[str, Declared]) -> None:
    """Compare the names, types and shapes in a file with the expected ones, without reading any array.

    Args:
        path: the file.
        declared: the expected types and shapes, by name.

    Raises:
        UsageError: if the file is missing, was not written by `write`, or does not match `declared`.
    """
    with _open_checked(path, declared):
        pass


@contextmanager
def _open_checked(
    path: Path, declared: Mapping[str, Declared] | None
) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Open an archive, and check the names, types, shapes and sizes of its members."""
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive, path.stat().st_size)
            if declared is not None and set(members) != set(declared):
                raise ValueError(f"contains the arrays {_list_names(members)}, expected {_list_names(declared)}")
            for name, info in members.items():
                _check_header(archive, info, name, (declared or {}).get(name))
            yield archive, members
    # On unknown bytes, zipfile and NumPy's header parser raise many kinds of exceptions.
    except Exception as error:
        raise UsageError(f"{path}: damaged ({' '.join(str(error).split()) or type(error).__name__})") from error


def check_regular(path: Path) -> int:
    """Return the size of a regular file, in bytes.

    Raises:
        UsageError: if the file is missing, or if it is a link, a folder, a pipe or a device.
    """
    try:
        status = path.lstat()
    except OSError as error:
        raise UsageError(f"{path}: damaged ({error.strerror})") from error
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path}: damaged (not a regular file)")
    return status.st_size


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file. The digest is cached until the file changes."""
    status = path.stat()
    return _sha256(path, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.lru_cache(2**16)
def _sha256(path: Path, *stamp: int) -> str:
    del stamp
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name. Check that they are uncompressed and not larger than the file."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        is_stored = info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size
        if not is_stored or info.flag_bits & 1 or name == info.filename or name in members:
            raise ValueError(f"{name[:80]!r} is not an array that bnnzoo wrote")
        members[name] = info
    if len(members) > _MAX_MEMBERS or sum(info.file_size for info in members.values()) > size:
        raise ValueError(f"has more than {_MAX_MEMBERS} arrays, or arrays that are larger than the file")
    return members


def _check_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, declared: Declared | None) -> None:
    with archive.open(info) as file:
        header_start = file.read(_HEAD)
        if header_start[:8] != _MAGIC:
            raise ValueError(f"{name[:80]!r} has an unknown format")
        length = _HEAD + int.from_bytes(header_start[8:], "little")
        shape, _, dtype = _header(header_start[8:] + file.read(length - _HEAD))
    if dtype.kind not in _KINDS or any(length_of_axis < 0 for length_of_axis in shape):
        raise ValueError(f"{name[:80]!r} has the unsupported type {dtype}")
    if declared is not None and (dtype.name, shape) != (declared.dtype, tuple(declared.shape)):
        raise ValueError(f"{name[:80]!r} is {dtype}{list(shape)}, expected {declared.dtype}{list(declared.shape)}")
    if length + dtype.itemsize * prod(shape) != info.file_size:
        raise ValueError(f"{name[:80]!r} has the wrong length for its shape {list(shape)}")


@functools.lru_cache(2**10)
def _header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Parse the shape, memory order and dtype from an array header.

    Results are cached, because NumPy parses slowly and many headers are equal.
    """
    return np.lib.format.read_array_header_1_0(io.BytesIO(header))


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Read a member whose header was checked."""
    content = bytearray(archive.read(info))
    length = _HEAD + int.from_bytes(content[8:_HEAD], "little")
    shape, fortran, dtype = _header(bytes(content[8:length]))
    return np.frombuffer(content, dtype, prod(shape), length).reshape(shape, order="F" if fortran else "C")


def _list_names(names: Mapping[str, Any]) -> str:
    sorted_names = sorted(names)
    return ", ".join(name[:80] for name in sorted_names[:5]) + (
        f" and {len(sorted_names) - 5} more" if len(sorted_names) > 5 else ""
    )
