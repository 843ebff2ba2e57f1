"""Arrays in temporary files, for rows that should not be held in memory.

Such an array is a `numpy.memmap`. JAX on a CPU uses its memory without a copy, because the array starts at the start of
a memory page. The file has no name, or is deleted by the operating system, so a killed process leaves no file behind.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import DTypeLike, NDArray

from bnnzoo.errors import UsageError

LARGE_BYTES = 500_000_000
"""Size of a data set, in bytes of its values as float32, above which the rows are kept in temporary files."""
_BLOCK_BYTES = 2**24
"""Size of the blocks in which mapped arrays are read and written, in bytes."""
_ROOMY_FOLDER = Path("/var/tmp")
"""Folder for large temporary files on Unix. The usual folder, /tmp, is often in memory."""
_SECONDS_BETWEEN_TRIMS = 0.02
_MAPPINGS: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
"""The mappings of all arrays that exist."""
_TRIMMER = threading.Event()
"""Event that is set while a thread trims the mappings (`_trim_later`)."""


def is_mapped(array: Any) -> bool:
    """Whether an array is in a temporary file."""
    return isinstance(array, np.memmap)


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.memmap:
    """Return an array of zeros in a temporary file.

    The file is in the folder that the environment variable TMPDIR names. If TMPDIR is not set, it is in /var/tmp if
    possible.

    Raises:
        UsageError: if the folder has too little free space, or if the space cannot be reserved.
    """
    folder = _folder()
    size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
    remedy = "free some space, or set the environment variable TMPDIR to a folder with more space"
    if (free := shutil.disk_usage(folder).free) < size:
        raise UsageError(
            f"{folder}: a temporary file needs {size / 1e9:.2g} GB of free space (got {free / 1e9:.2g} GB); {remedy}"
        )
    with tempfile.TemporaryFile(dir=folder, prefix="bnnzoo-") as file:
        if hasattr(os, "posix_fallocate"):
            # Without reserved space, a write to a mapped page of a full disk would kill the process.
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise UsageError(
                    f"{folder}: a temporary file of {size / 1e9:.2g} GB cannot be created ({error}); {remedy}"
                ) from error
        file.truncate(size)
        # The mapping keeps the file alive after it is closed.
        array = np.memmap(file, dtype, "r+", shape=shape)
    _trim_later(array)
    return array


def store(array: NDArray[Any]) -> np.memmap:
    """Return a copy of an array in a temporary file."""
    return map_blocks(lambda block: block, array, array.dtype)


def row_blocks(array: NDArray[Any]) -> Iterator[slice]:
    """Yield consecutive slices of the rows of an array. A slice has at most 16 MiB, or a single row."""
    size = rows_of_a_block(array)
    for start in range(0, len(array), size):
        yield slice(start, min(start + size, len(array)))


def rows_of_a_block(array: NDArray[Any]) -> int:
    """Return the number of rows of each slice that `row_blocks` yields; the last slice can be shorter."""
    return max(1, _BLOCK_BYTES // max(1, math.prod(array.shape[1:]) * array.dtype.itemsize))


def map_blocks(
    function: Callable[[NDArray[Any]], NDArray[Any]], array: NDArray[Any], dtype: DTypeLike = np.float32
) -> np.memmap:
    """Apply `function` to each block of rows, and return one mapped array. A block and its result have equal shapes."""
    result = empty(array.shape, dtype)
    for rows in row_blocks(array):
        result[rows] = function(array[rows])
    return result


def take(array: NDArray[Any], indices: Int[np.ndarray, " taken"]) -> NDArray[Any]:
    """Return the rows `indices` of an array. If the array is mapped, the result is mapped too.

    A mapped array is read once, from its first to its last row, because random access would be slow for rows that
    exceed the free memory. First, each row is copied into the block of the result that contains its final place. Then
    the rows of each block are put in order.
    """
    if not is_mapped(array):
        return array[indices]
    result = empty((len(indices), *array.shape[1:]), array.dtype)
    blocks = list(row_blocks(result))
    sources = [np.sort(indices[block]) for block in blocks]
    num_placed = [0] * len(blocks)
    for rows in row_blocks(array):
        values = np.array(array[rows])
        for i, (block, source) in enumerate(zip(blocks, sources, strict=True)):
            end = int(np.searchsorted(source, rows.stop))
            start = block.start + num_placed[i]
            result[start : block.start + end] = values[source[num_placed[i] : end] - rows.start]
            num_placed[i] = end
    for block in blocks:
        in_source_order = np.array(result[block])
        result[block][np.argsort(indices[block], kind="stable")] = in_source_order
    return result


def _trim_later(array: np.memmap) -> None:
    """Return the pages of a mapped array to the system fifty times per second. The content stays in the file.

    The operating system takes the pages back only when it needs memory. Until then the pages would count as memory of
    this process, and a job scheduler may end a process that uses too much memory.
    """
    mapping = getattr(array, "_mmap", None)
    if not isinstance(mapping, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    _MAPPINGS.add(mapping)
    if not _TRIMMER.is_set():
        _TRIMMER.set()
        threading.Thread(target=_trim, name="bnnzoo-trim", daemon=True).start()


def _trim() -> None:
    while mappings := list(_MAPPINGS):
        for mapping in mappings:
            mapping.madvise(mmap.MADV_DONTNEED)
        del mappings, mapping
        time.sleep(_SECONDS_BETWEEN_TRIMS)
    _TRIMMER.clear()


def _folder() -> Path:
    if "TMPDIR" not in os.environ and os.access(_ROOMY_FOLDER, os.W_OK):
        return _ROOMY_FOLDER
    return Path(tempfile.gettempdir())
