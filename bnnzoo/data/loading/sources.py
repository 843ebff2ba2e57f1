"""Sources of data: a file, folder, data frame, arrays or registered data set."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bnnzoo.data.checks.check import did_you_mean
from bnnzoo.data.columns.reading_options import PLAIN, Reading
from bnnzoo.data.columns.table import AbstractTable
from bnnzoo.data.formats.delimited import DELIMITERS, DelimitedTable
from bnnzoo.data.formats.feather import FeatherTable
from bnnzoo.data.formats.frames import FrameTable, is_frame
from bnnzoo.data.formats.idx import IdxFolder, idx_files
from bnnzoo.data.formats.npy import NpyTable
from bnnzoo.data.formats.npz_archive import NpzFile
from bnnzoo.data.formats.parquet import ParquetTable, parquet_files
from bnnzoo.data.loading.new_files import open_like_training
from bnnzoo.data.rows.dataset import Dataset, from_rows
from bnnzoo.data.rows.signature import Signature
from bnnzoo.errors import UsageError

READERS: dict[str, Callable[[Path], AbstractTable | NpzFile]] = {
    ".csv": DelimitedTable,
    ".tsv": DelimitedTable,
    ".parquet": ParquetTable,
    ".pq": ParquetTable,
    ".arrow": FeatherTable,
    ".feather": FeatherTable,
    ".npy": NpyTable,
    ".npz": NpzFile,
}
"""Readers of files, by suffix. Folders are read by `ParquetTable` or `IdxFolder` instead, see `_folder`."""
_REMEDIES = {
    (".xlsx", ".xls", ".xlsm", ".ods"): "save the table as CSV",
    (".gz", ".zip", ".bz2", ".xz", ".zst"): "unpack it first",
    (".txt", ".dat", ".data", ".tab", ".asc", ""): "if it is a text file with a table, rename the file to end in .csv",
}
"""Remedies for files that bnnzoo cannot read, by suffix."""
Spec = Any
"""The data that a user gives: the name of a registered data set, a path, a data frame, a `Dataset`, or arrays."""
Source = AbstractTable | NpzFile | IdxFolder | Dataset | tuple[Any, Any]
"""A data set, a pair of arrays, or the reader of a file, a folder or a data frame."""


def source_of(spec: Spec, reading: Reading = PLAIN, signature: Signature | None = None) -> Source:
    """Return the source of the data: a `Dataset`, a pair of arrays, or the reader of a file, folder or data frame.

    Args:
        spec: the data.
        reading: the options for reading a table.
        signature: if the data are new rows for a trained model, the properties of its training data. A text file is
            then read with `open_like_training`, unless `reading` has options for text files.

    Raises:
        UsageError: if there is no such file or data set, if the file is invalid, if `spec` has another type, or if an
            option does not apply to the data.
    """
    path = _as_path(spec) if isinstance(spec, str | Path) else None
    if path is not None and path.suffix.lower() in DELIMITERS and not path.is_dir():
        if signature is not None and reading.text_options == PLAIN:
            return open_like_training(path, signature)
        return DelimitedTable(path, reading.text_options)
    if reading.text_options != PLAIN:
        where = spec if isinstance(spec, str | Path) else "data"
        raise UsageError(
            f"{where}: [[separator]], [[decimal]], [[skip_rows]] and [[encoding]] are for text files "
            f"({' '.join(DELIMITERS)}); remove them"
        )
    if path is not None:
        return _folder(path) if path.is_dir() else READERS[path.suffix.lower()](path)
    if isinstance(spec, tuple) and len(spec) != 2:
        raise UsageError(f"data: must be a pair (x, y) (got a tuple of {len(spec)})")
    if isinstance(spec, Dataset | tuple):
        return spec
    if is_frame(spec):
        return FrameTable(spec)
    rows: Any = spec
    if hasattr(rows, "__array__"):
        return from_rows(rows)
    if not isinstance(spec, str):
        raise UsageError(
            f"data: must be a name, a path, a data frame, an array, or a pair (x, y) (got a {type(spec).__name__})"
        )
    return _registered(spec)


def _as_path(spec: str | Path) -> Path | None:
    """Return the path of an existing file or folder, or None if `spec` can only be the name of a data set.

    Raises:
        UsageError: if `spec` is empty, if the file does not exist, or if bnnzoo cannot read files of this kind.
    """
    text = os.path.expanduser(spec)
    path = Path(text)
    if not str(spec):
        raise UsageError("data: the name is empty; give the name of a data set (bnnzoo list datasets) or a path")
    has_separator = any(separator in text for separator in (os.sep, os.altsep) if separator)
    is_known_suffix = path.suffix.lower() in READERS
    if not os.path.lexists(text):
        if isinstance(spec, Path) or has_separator or is_known_suffix:
            folder = path.parent
            if not os.path.isdir(folder):
                raise UsageError(f"{spec}: no such file, and no such folder {folder}; correct the path")
            try:
                names = sorted(os.listdir(folder))
            except OSError as error:
                raise UsageError(f"{spec}: no such file, or it cannot be read ({error.strerror})") from error
            raise UsageError(f"{spec}: no such file in the folder {folder}; {did_you_mean(path.name, names)}")
        return None
    if not os.path.exists(text):
        raise UsageError(f"{spec}: a link to a file that does not exist; correct the path")
    if path.is_dir():
        return path
    if not path.is_file():
        raise UsageError(f"{spec}: not a regular file (perhaps a pipe or a device); write the data to a file first")
    if not is_known_suffix:
        suffix = path.suffix.lower()
        remedy = next((f"; {text}" for suffixes, text in _REMEDIES.items() if suffix in suffixes), "")
        raise UsageError(
            f"{spec}: unknown kind of data file {path.suffix or '(no suffix)'}; use one of {' '.join(READERS)}, "
            f"or a folder of IDX or Parquet files{remedy}"
        )
    return path


def data_files(folder: Path) -> list[Path]:
    """Return the data files in a folder: the Parquet files if there are any, otherwise the IDX files."""
    return parquet_files(folder) or idx_files(folder)


def _folder(path: Path) -> ParquetTable | IdxFolder:
    return ParquetTable(path) if parquet_files(path) else IdxFolder(path)


def _registered(name: str) -> Dataset:
    from bnnzoo.plugins import registry

    make: Any = registry.load("datasets", name)
    dataset = make()
    if not isinstance(dataset, Dataset):
        raise UsageError(f"data set {name}: its function must return a bnnzoo Dataset (got {type(dataset).__name__})")
    return dataset
