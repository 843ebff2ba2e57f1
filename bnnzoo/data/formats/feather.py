"""Files in the IPC format of Apache Arrow, which is also version 2 of Feather."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bnnzoo.data.formats.arrow_table import AbstractArrowTable


class FeatherTable(AbstractArrowTable):
    """The table in an Arrow or Feather file."""

    kind = "an Arrow"

    def _describe(self, path: Path) -> tuple[Any, int]:
        import pyarrow.dataset as pads

        self._path = path
        dataset = pads.dataset(path, format="ipc")
        return dataset.schema, dataset.count_rows()

    def _read(self, columns: list[str]) -> Any:
        import pyarrow.feather as feather

        return feather.read_table(self._path, columns=columns, memory_map=True)
