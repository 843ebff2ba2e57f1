"""NumPy's .npy files with one array of numbers [row, column]. Objects are never unpickled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bnnzoo.data.columns.table import AbstractTable
from bnnzoo.errors import UsageError
from bnnzoo.files import mapped

if TYPE_CHECKING:
    import pandas as pd


class NpyTable(AbstractTable):
    """An array of numbers as a table with the columns x0, x1, ... Only the columns in use are read."""

    def __init__(self, path: Path):
        self.where = str(path)
        self._path = path
        try:
            array = self._open()
        except Exception as error:  # the header parser of NumPy raises different errors
            problem = "an array of Python objects" if "bject" in str(error) else "not a .npy file, or damaged"
            raise UsageError(f"{self.where}: {problem}; save numbers with np.save({path.name!r}, rows)") from error
        if array.ndim != 2 or array.dtype.kind not in "biuf" or 0 in array.shape:
            raise UsageError(
                f"{self.where}: must be numbers with the shape [row, column] (got "
                f"{array.dtype}{list(array.shape)}); for "
                "images or separate targets, use np.savez with x=x, y=y"
            )
        self.num_stored_rows = len(array)
        self.names = tuple(f"x{i}" for i in range(array.shape[1]))

    def frame(self, names: Sequence[str], _text_columns: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names`."""
        import pandas as pd

        array = self._open()
        places = [self.names.index(name) for name in names]
        blocks = [np.array(array[rows][:, places]) for rows in mapped.row_blocks(array)]
        return pd.DataFrame(np.concatenate(blocks), columns=pd.Index(names))

    def _open(self) -> NDArray[np.generic]:
        return np.load(self._path, mmap_mode="r", allow_pickle=False)
