"""Tables in files of Apache Arrow: Parquet, Arrow IPC and Feather, read with pyarrow."""

from __future__ import annotations

import abc
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnnzoo.data.checks.check import plain_name
from bnnzoo.data.columns.table import AbstractTable
from bnnzoo.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")


def _labels_of_rows(schema: Any) -> set[str]:
    """Return the names of the columns in which pandas stored the row index. Such columns are not data."""
    try:
        return {name for name in schema.pandas_metadata["index_columns"] if isinstance(name, str)}
    except (TypeError, KeyError, ValueError):  # not written by pandas
        return set()


class AbstractArrowTable(AbstractTable):
    """The table in a file of Apache Arrow, without the columns in which pandas stores the row index."""

    kind: str
    """Name of the format in messages, with an article."""

    def __init__(self, path: Path):
        self.where = str(path)
        try:
            import pyarrow as pa
        except ImportError as error:
            name = path.suffix if path.suffix.lower() in (".arrow", ".feather") else "Parquet"
            raise UsageError(
                f"{self.where}: {name} files require pyarrow; install it with pip install 'bnnzoo[parquet]'"
            ) from error
        # Damaged metadata can raise errors of any of the libraries involved.
        self._errors = (OSError, ValueError, LookupError, TypeError, MemoryError, pa.ArrowException)
        try:
            schema, self.num_stored_rows = self._describe(path)
            index = _labels_of_rows(schema)
            columns = [name for name in schema.names if name not in index and not _PANDAS_INDEX.fullmatch(name)]
            self._written = {plain_name(name): name for name in columns}
            self.names = tuple(map(plain_name, columns))
        except UsageError:
            raise
        except pa.ArrowNotImplementedError as error:
            raise UsageError(
                f"{self.where}: a column has a type that pyarrow cannot read ({error}); save the column with another "
                "type"
            ) from error
        except self._errors as error:
            raise self._damaged() from error
        if not self.num_stored_rows:
            raise UsageError(f"{self.where}: no data rows; add at least one row")

    @abc.abstractmethod
    def _describe(self, path: Path) -> tuple[Any, int]:
        """Return the schema and the number of rows of a file."""

    @abc.abstractmethod
    def _read(self, columns: list[str]) -> Any:
        """Return the columns with these names as a table of pyarrow."""

    def frame(self, names: Sequence[str], _text_columns: Collection[str] = (), /) -> pd.DataFrame:
        """Return the columns `names`.

        Raises:
            UsageError: if the file is damaged, or if pandas cannot represent a column. The message names the type of
                the column.
        """
        import pandas as pd
        import pyarrow as pa

        try:
            table = self._read([self._written[name] for name in names])
        except self._errors as error:
            raise self._damaged() from error
        frame = pd.DataFrame({name: self._convert(name, table.column(self._written[name])) for name in names})
        del table
        pa.default_memory_pool().release_unused()  # otherwise pyarrow keeps the memory for its next table
        return frame

    def _convert(self, name: str, column: Any) -> pd.Series:
        import pandas as pd
        import pyarrow as pa

        # By default, pandas converts a column of integers with missing cells to float64, which loses digits.
        types = {pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype()}
        try:
            column.validate(full=True)  # finds text that is not UTF-8
            return column.to_pandas(types_mapper=types.get)
        except self._errors as error:
            raise UsageError(
                f"{self.where}: column {name}: a cell of type {column.type} cannot be read ({error}); write the "
                "column as numbers, text, or dates of the years 1 to 9999, or leave it out"
            ) from error

    def _damaged(self) -> UsageError:
        return UsageError(f"{self.where}: not {self.kind} file, or damaged; check its suffix, or save the table again")
