"""Parquet files, and folders of Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bnnzoo.data.formats.arrow_table import AbstractArrowTable
from bnnzoo.errors import UsageError

SUFFIXES = (".parquet", ".pq")


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files in a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


class ParquetTable(AbstractArrowTable):
    """The table in a Parquet file, or the rows of all Parquet files in a folder, in the order of their names."""

    kind = "a Parquet"

    def _describe(self, path: Path) -> tuple[Any, int]:
        import pyarrow.parquet as pq

        self._files = parquet_files(path) if path.is_dir() else [path]
        count, first = 0, None
        for path_of_part in self._files:
            with pq.ParquetFile(path_of_part) as file:
                schema, count = file.schema_arrow, count + file.metadata.num_rows
            first = schema if first is None else first
            if not schema.equals(first):
                raise UsageError(
                    f"{path_of_part}: its columns differ from those of {self._files[0].name}; all files of a folder "
                    "must have the same columns, with the same types"
                )
        return first, count

    def _read(self, columns: list[str]) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = []
        for path in self._files:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                tables.append(file.read(columns=columns))
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)
