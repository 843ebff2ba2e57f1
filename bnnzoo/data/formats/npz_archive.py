"""NumPy's .npz archives with the arrays `x` [N, ...] and `y`, or with one array. Objects are never unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnnzoo.data.rows.dataset import Dataset, UncheckedRows, from_arrays, from_rows
from bnnzoo.errors import UsageError

_MAX_RATIO, _ALLOWED_BYTES = 50, 2**28
"""Limits against decompression bombs. Unpacked, an archive must have at most 50 times its size plus 2^28 bytes."""


class NpzFile:
    """An archive with `x` and `y` for training or testing, or with a single array for a density or for prediction."""

    def __init__(self, path: Path):
        self.where = str(path)
        self._path = path

    def dataset(self, task: str | None) -> Dataset:
        """Return `x` and `y` as a checked data set.

        If the archive has only one of the arrays `x` and `y`, and `task` is None or "density", the data set is for a
        density.
        """
        arrays = self._read()
        known_names = sorted({"x", "y"} & set(arrays))
        if task in (None, "density") and len(known_names) == 1:
            return from_rows(arrays[known_names[0]], name=self._path.name, where=self.where)
        arrays = self._read(("x", "y"))
        return from_arrays(arrays["x"], arrays["y"], task=task, name=self._path.name, where=self.where)

    def inputs(self) -> tuple[NDArray[Any], str]:
        """Return the inputs for prediction, and the name of the inputs in messages."""
        arrays = self._read()
        if "x" in arrays:
            return arrays["x"], f"{self.where}: x"
        if list(arrays) == ["arr_0"]:
            return arrays["arr_0"], f"{self.where}: x"
        raise UsageError(
            f"{self.where}: no array named x (got {', '.join(arrays) or 'nothing'}); save it with "
            f"np.savez({self._path.name!r}, x=x)"
        )

    def labelled(self) -> UncheckedRows:
        """Return `x` and `y` without checks."""
        arrays = self._read(("x", "y"))
        return UncheckedRows(arrays["x"], arrays["y"], f"{self.where}: x", f"{self.where}: y")

    def _read(self, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
        """Return the arrays `names`, or all arrays if `names` is empty."""
        remedy = f"save it with np.savez({self._path.name!r}, x=x, y=y)"
        try:
            with self._path.open("rb") as file:
                archive = np.load(file, allow_pickle=False)
                if not isinstance(archive, np.lib.npyio.NpzFile):
                    raise UsageError(f"{self.where}: a single array instead of an .npz archive; {remedy}")
                _check_sizes(archive, self._path.stat().st_size, self.where)
                missing = [name for name in names if name not in archive.files]
                if missing:
                    array_names = ", ".join(archive.files) or "nothing"
                    raise UsageError(f"{self.where}: no array named {missing[0]} (got {array_names}); {remedy}")
                return {name: archive[name] for name in names or archive.files}
        except UsageError:
            raise
        except Exception as error:  # zipfile, zlib, struct and NumPy's header parser raise different errors
            if "Object arrays" in str(error):
                problem = "an array of Python objects, which is not supported; save arrays of numbers"
            else:
                problem = f"not an .npz archive of arrays, or damaged ({type(error).__name__}); {remedy}"
            raise UsageError(f"{self.where}: {problem}") from error


def _check_sizes(archive: Any, size: int, where: str) -> None:
    """Raise `UsageError` if an archive is far larger when unpacked, or if two of its arrays have the same name."""
    members = archive.zip.infolist()
    if len({member.filename for member in members}) < len(members):
        raise UsageError(f"{where}: two arrays have the same name; save the arrays under different names")
    unpacked = sum(member.file_size for member in members)
    if unpacked > _MAX_RATIO * size + _ALLOWED_BYTES:
        raise UsageError(
            f"{where}: compressed too strongly to be read safely: its {size} bytes unpack to {unpacked} bytes; save "
            "the arrays with np.savez, which does not compress"
        )
