"""Sources of data: a file, folder, data frame, arrays or registered data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bnnzoo.data.check import did_you_mean
from bnnzoo.data.dataset import Dataset, Signature, from_rows
from bnnzoo.data.delimited import DELIMITERS, DelimitedTable
from bnnzoo.data.frames import FrameTable, is_frame
from bnnzoo.data.new_files import like_trained
from bnnzoo.data.readers import FOLDER, READERS, Arrays, Table
from bnnzoo.data.reading import PLAIN, Reading
from bnnzoo.errors import UsageError

_CURES = {
    (".xlsx", ".xls", ".xlsm", ".ods"): "save the table as CSV",
    (".gz", ".zip", ".bz2", ".xz", ".zst"): "unpack it first",
    (".txt", ".dat", ".data", ".tab", ".asc", ""): "if it is a table in text, rename it to .csv",
}
"""Remedies for files of other kinds, by suffix."""
Spec = Any
"""A registered name, a path, a data frame, a `Dataset`, or arrays."""


def source_of(spec: Spec, reading: Reading = PLAIN) -> Table | Arrays | Dataset | tuple[Any, Any]:
    """Return the source of `spec`: a reader of its file, folder or frame, or a data set.

    Raises:
        UsageError: if there is no such source.
    """
    path = _as_path(spec) if isinstance(spec, str | Path) else None
    if path is not None and path.suffix.lower() in DELIMITERS and not path.is_dir():
        return DelimitedTable(path, reading.of_text)
    if reading.of_text != PLAIN:
        where = spec if isinstance(spec, str | Path) else "data"
        raise UsageError(
            f"{where}: --separator, --decimal, --skip-rows and --encoding are for text files ({' '.join(DELIMITERS)})"
        )
    if path is not None:
        return FOLDER(path) if path.is_dir() else READERS[path.suffix.lower()](path)
    if isinstance(spec, tuple) and len(spec) != 2:
        raise UsageError(f"data: a tuple of {len(spec)}; give a pair (x, y)")
    if isinstance(spec, Dataset | tuple):
        return spec
    if is_frame(spec):
        return FrameTable(spec)
    rows: Any = spec
    if hasattr(rows, "__array__"):
        return from_rows(rows)
    if not isinstance(spec, str):
        raise UsageError(
            f"data: a {type(spec).__name__}; give a name, a path, a data frame, an array, or a pair (x, y)"
        )
    return _registered(spec)


def new_source_of(spec: Spec, like: Signature) -> Table | Arrays | Dataset | tuple[Any, Any]:
    """Return the source for a trained model. A text file is read as in training, unless it is written differently."""
    path = _as_path(spec) if isinstance(spec, str | Path) else None
    if path is not None and path.suffix.lower() in DELIMITERS and not path.is_dir():
        return like_trained(path, like)
    return source_of(spec)


def _as_path(spec: str | Path) -> Path | None:
    """Return the existing file or folder of `spec`, or None if it can only be a registered name."""
    text = os.path.expanduser(spec)
    path = Path(text)
    if not str(spec):
        raise UsageError("the data set has an empty name; give a registered name or a path")
    has_separator = any(separator in text for separator in (os.sep, os.altsep) if separator)
    known = path.suffix.lower() in READERS
    if not os.path.lexists(text):
        if isinstance(spec, Path) or has_separator or known:
            folder = path.parent
            if not os.path.isdir(folder):
                raise UsageError(f"{spec}: no such file, and no folder {folder}; check the path")
            raise UsageError(
                f"{spec}: no such file; in {folder}: {did_you_mean(path.name, sorted(os.listdir(folder)))}"
            )
        return None
    if not os.path.exists(text):
        raise UsageError(f"{spec}: a link to a file that does not exist; check the path")
    if path.is_dir():
        return path
    if not path.is_file():
        raise UsageError(f"{spec}: not a regular file (a pipe or a device?); write the data to a file first")
    if not known:
        suffix = path.suffix.lower()
        cure = next((f"; {cure}" for suffixes, cure in _CURES.items() if suffix in suffixes), "")
        raise UsageError(
            f"{spec}: unknown kind of data file {path.suffix or '(no suffix)'}; "
            f"known are {' '.join(READERS)} and IDX folders{cure}"
        )
    return path


def _registered(name: str) -> Dataset:
    from bnnzoo import registry

    make: Any = registry.load("datasets", name)
    dataset = make()
    if not isinstance(dataset, Dataset):
        raise UsageError(f"data set {name}: its function returned {type(dataset).__name__}, not a bnnzoo Dataset")
    return dataset
