"""NumPy's .npz archives: arrays `x` [N, ...] and `y`, or one of them, never unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnnzoo.data.dataset import Dataset, Labelled, from_arrays, from_rows
from bnnzoo.errors import UsageError

_MOST_SHRINKS, _ALWAYS_FITS = 50, 2**28
"""An archive may unpack to so many times its size, or to so many bytes."""


class NpzFile:
    """An archive: `x` and `y` to train or test on, one of them for a density, `x` or just `arr_0` to predict for."""

    def __init__(self, path: Path):
        self.where = str(path)
        self._path = path

    def dataset(self, task: str | None) -> Dataset:
        """`x` and `y` as a checked data set; where there is only one, that of a density."""
        arrays = self._read()
        alone = sorted({"x", "y"} & set(arrays))
        if task in (None, "density") and len(alone) == 1:
            return from_rows(arrays[alone[0]], name=self._path.name, where=self.where)
        arrays = self._read(("x", "y"))
        return from_arrays(arrays["x"], arrays["y"], task=task, name=self._path.name, where=self.where)

    def inputs(self) -> tuple[NDArray[Any], str]:
        """The inputs to predict for."""
        arrays = self._read()
        if "x" in arrays:
            return arrays["x"], f"{self.where}: x"
        if list(arrays) == ["arr_0"]:
            return arrays["arr_0"], f"{self.where}: x"
        raise UsageError(
            f"{self.where}: no array x, it holds {', '.join(arrays) or 'nothing'}; np.savez({self._path.name!r}, x=x)"
        )

    def labelled(self) -> Labelled:
        """`x` and `y` as they are."""
        arrays = self._read(("x", "y"))
        return Labelled(arrays["x"], arrays["y"], f"{self.where}: x", f"{self.where}: y")

    def _read(self, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
        """The arrays `names`, or all of them."""
        cure = f"np.savez({self._path.name!r}, x=x, y=y)"
        try:
            with self._path.open("rb") as file:
                archive = np.load(file, allow_pickle=False)
                if not isinstance(archive, np.lib.npyio.NpzFile):
                    raise UsageError(f"{self.where}: not an .npz archive but one array; {cure}")
                _check_sizes(archive, self._path.stat().st_size)
                missing = [name for name in names if name not in archive.files]
                if missing:
                    held = ", ".join(archive.files) or "nothing"
                    raise UsageError(f"{self.where}: no array {missing[0]}, it holds {held}; {cure}")
                return {name: archive[name] for name in names or archive.files}
        except UsageError as error:
            raise UsageError(str(error) if str(error).startswith(self.where) else f"{self.where}: {error}") from error
        except Exception as error:  # zipfile, zlib, struct, NumPy's header parser: each has its own
            if "Object arrays" in str(error):
                problem = "an array of Python objects, which is never unpickled; save arrays of numbers"
            else:
                problem = f"not an .npz archive of arrays, or a damaged one ({type(error).__name__}); write it again"
            raise UsageError(f"{self.where}: {problem}") from error


def _check_sizes(archive: Any, size: int) -> None:
    """Refuse what unpacks to far more than the file, before it does; and two arrays of one name."""
    members = archive.zip.infolist()
    if len({member.filename for member in members}) < len(members):
        raise UsageError("two arrays of one name; write it again")
    unpacked = sum(member.file_size for member in members)
    if unpacked > _MOST_SHRINKS * size + _ALWAYS_FITS:
        raise UsageError(f"unpacks from {size} to {unpacked} bytes: save it with np.savez, which does not pack")
