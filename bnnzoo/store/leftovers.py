"""Removal of part files next to a complete file.

Part files remain next to the file if a process is killed between writing the complete file and removing the part files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bnnzoo.errors import BnnzooError, DamagedError, UsageError
from bnnzoo.files.shell import quoted
from bnnzoo.store import reading, run_parts
from bnnzoo.store.attributes import are_equal
from bnnzoo.store.run_parts import parts_folder
from bnnzoo.store.schema import POSTERIOR
from bnnzoo.store.writer import Store

_READ_BYTES = 2**24


def remove_leftovers(out: Path) -> bool:
    """Check every array in the complete file of a run, and then remove the part files of the run.

    Part files may also belong to a new run that will replace the complete file. Such part files are not removed.

    Returns:
        whether part files were removed.

    Raises:
        DamagedError: if the complete file is damaged and cannot be built again, because part files are missing.
        BusyError: if another process is writing the run.
        UsageError: if the folder contains files that bnnzoo did not write, or if it cannot be locked.
    """
    folder = parts_folder(out)
    if folder.is_symlink() or not folder.is_dir() or not reading.is_complete(out):
        return False
    holds_run = run_parts.holds_run(folder)
    if holds_run and not _was_built_from(out, folder):
        return False
    try:
        _read_to_the_end(out)
    except (UsageError, OSError) as error:
        if holds_run:
            return False  # `resume` rebuilds the file from the parts
        reason = " ".join(str(error).split())[:200].removeprefix(f"{out}: ")
        raise DamagedError(
            f"{out}: damaged ({reason}), and its part files were removed; restore the file from a copy, or start the "
            "run again with [[force=True]]"
        ) from error
    writer = Store(out)
    writer.claim(force=True)
    try:
        run_parts.remove_files(folder)
    finally:
        writer.release()
    if folder.is_dir():
        raise UsageError(
            f"{folder}: contains files that bnnzoo did not write; move these files to another folder (the run in "
            f"{quoted(out)} is finished)"
        )
    return True


def _was_built_from(out: Path, folder: Path) -> bool:
    """Whether the file was built from the part files in this folder.

    The number of draws and the root attributes are compared. Some attributes, such as run times, differ between runs
    even if the recipes are equal.
    """
    try:
        run = run_parts.load(folder)
        file_attributes = reading.attributes_of(out)
    except BnnzooError:
        return False
    if run.draws.get(POSTERIOR, 0) != file_attributes["draws_done"]:
        return False
    run_attributes = {**run.attributes, "complete": 1}
    run_attributes.pop("seconds_writing", None)  # only the final file has the time of writing it
    return are_equal(file_attributes, run_attributes)


def _read_to_the_end(out: Path) -> None:
    """Read every array of a complete file, so that HDF5 compares each chunk with its checksum.

    Raises:
        UsageError, OSError: if the file was changed after it was written.
    """
    reading.check(out)

    def read(name: str, item: Any) -> None:
        del name
        if isinstance(item, h5py.Dataset) and item.ndim:
            row = max(1, item.dtype.itemsize * int(np.prod(item.shape[1:])))
            step = max(1, _READ_BYTES // row)
            for start in range(0, item.shape[0], step):
                item[start : start + step]

    with h5py.File(out, "r") as file:
        file.visititems(read)
