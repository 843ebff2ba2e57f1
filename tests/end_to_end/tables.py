"""Small data sets of every task and format, for generated cases.

A new file format needs a line in `WRITERS`; a likelihood whose targets are special a line in `TARGETS`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import bnnzoo
from bnnzoo.data.readers import READERS

ROWS, NEW_ROWS, SIDE = 48, 6, 8
FEW = {"rejection": 8, "importance": 8}
"""Training rows for samplers of few data."""
FOLDER = "folder"
IN_MEMORY = ("arrays", "frame", "dataset")
REGISTERED = "registered"


def _normal(signal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return signal + 0.3 * rng.normal(size=len(signal))


def _counts(signal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(np.exp(1 + 0.5 * np.tanh(signal))).astype(float)


def _two_classes(signal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (_normal(signal, rng) > 0).astype(np.int64)


def _classes(signal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.digitize(_normal(signal, rng), [-0.5, 0.5])


TARGETS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "poisson": _counts,
    "bernoulli": _two_classes,
}
"""Targets by the name of a likelihood that cannot have produced those of its task."""
OF_TASK = {"regression": _normal, "classification": _classes, "density": _normal}
LABELS: tuple[Callable[[Any], Any], ...] = (
    lambda y: y,
    lambda y: np.array(["low", "middle", "up"])[y],
    lambda y: y.astype(bool) if y.max() == 1 else y + 3,
)
"""Ways to write labels: whole numbers, text, truths."""
DATA_SETS = {"regression": "diabetes", "classification": "breast-cancer", "density": "two-moons", "images": "digits"}
"""A registered data set for each task, and one of images."""


def make(
    task: str, likelihood: str | None, *, images: bool, kind: str, number: int, rows: int = ROWS
) -> tuple[Any, Any]:
    """Inputs and targets; of tables a data frame with a column of text, unless they are of a density.

    Args:
        kind: the format, which decides whether inputs may be text.
        number: varies how labels are written.
    """
    rng = np.random.default_rng(5)
    rows += NEW_ROWS
    x = rng.normal(size=(rows, SIDE, SIDE) if images else (rows, 2)).astype(np.float32)
    signal = x.reshape(rows, -1)[:, :2].sum(1)
    y: Any = TARGETS.get(likelihood or "", OF_TASK[task])(signal, rng)
    if task == "classification" and kind != FOLDER:
        y = LABELS[number % len(LABELS)](y)
    if images and kind == FOLDER:
        return (40 * (x + 3)).clip(0, 255).astype(np.uint8), np.asarray(y, np.uint8)
    if kind in (*READERS, "frame") and kind != ".npz":
        frame = pd.DataFrame(x, columns=["a", "b"]).astype(float).round(4)
        if task != "density":
            frame["colour"] = np.array(["red", "green", "blue"])[np.arange(rows) % 3]
        return frame, y
    return x, y


def with_gaps(frame: Any) -> Any:
    """The data frame with missing cells in its first column."""
    frame = frame.copy()
    frame.loc[frame.index[1:4], "a"] = np.nan
    return frame


def with_new_level(frame: Any) -> Any:
    """The data frame with a level of text in its last rows that no other has."""
    frame = frame.copy()
    frame.loc[frame.index[-2:], "colour"] = "violet"
    return frame


def _table(x: Any, y: Any) -> pd.DataFrame:
    return x if y is None else x.assign(y=y)


def _npz(path: Path, x: Any, y: Any) -> None:
    np.savez(path, **{"x": x} if y is None else {"x": x, "y": y})


WRITERS: dict[str, Callable[[Path, Any, Any], Any]] = {
    ".csv": lambda path, x, y: _table(x, y).to_csv(path, index=False),
    ".tsv": lambda path, x, y: _table(x, y).to_csv(path, index=False, sep="\t"),
    ".parquet": lambda path, x, y: _table(x, y).to_parquet(path),
    ".pq": lambda path, x, y: _table(x, y).to_parquet(path),
    ".npz": _npz,
}
"""For each format of the readers a function that writes inputs, and targets unless they are None."""


def formats(task: str, *, images: bool) -> list[str]:
    """Every format in which data of a task can be given."""
    if images:
        return [".npz", "arrays", "dataset", FOLDER, REGISTERED]
    return [*READERS, *IN_MEMORY, REGISTERED]


def write(path: Path, kind: str, x: Any, y: Any = None) -> str:
    """The data as a file, or a folder, of that format; its name for the command line."""
    if kind == FOLDER:
        path.mkdir()
        for part in ("train", "t10k") if y is not None else ("train",):
            _idx(path / f"{part}-images-idx3-ubyte", x)
            if y is not None:
                _idx(path / f"{part}-labels-idx1-ubyte", y)
        return str(path)
    file = path.with_suffix(kind)
    WRITERS[kind](file, x, y)
    return str(file)


def _idx(path: Path, values: Any) -> None:
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + np.ascontiguousarray(values).tobytes())


def in_memory(kind: str, task: str, x: Any, y: Any) -> Any:
    """The data as Python takes them."""
    if task == "density":
        values = np.asarray(x, np.float32)
        return {"arrays": values, "frame": x, "dataset": bnnzoo.data.dataset.from_rows(values)}[kind]
    if kind == "dataset":
        return bnnzoo.data.from_arrays(x, y, task=task)
    return (x, pd.Series(y, name="y") if kind == "frame" else y)
