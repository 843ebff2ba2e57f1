"""Small data sets of every task and format, for generated cases.

A new file format needs a line in `WRITERS`; a likelihood whose targets are special a line in `TARGETS`; an option of
text files a field of `Text`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import bnnzoo
from bnnzoo.data.columns.reading_options import SEPARATORS
from bnnzoo.data.formats.delimited import DELIMITERS
from bnnzoo.data.loading.sources import READERS

ROWS, NEW_ROWS, SIDE = 48, 6, 8
FEW = {"rejection": 8, "importance": 8}
"""Number of training rows for samplers that need few data."""
FOLDER = "folder"
IN_MEMORY = ("arrays", "frame", "dataset")
REGISTERED = "registered"


def is_table(kind: str) -> bool:
    """Whether data of this format have named columns, which may contain text."""
    return kind in (*READERS, "frame") and kind not in (".npz", ".npy")


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
    "negative-binomial": _counts,
    "zero-inflated-poisson": _counts,
    "bernoulli": _two_classes,
}
"""Targets by the name of a likelihood that is incompatible with the usual targets of its task."""
OF_TASK = {"regression": _normal, "classification": _classes, "density": _normal}
LABELS: tuple[Callable[[Any], Any], ...] = (
    lambda y: y,
    lambda y: np.array(["low", "middle", "up"])[y],
    lambda y: y.astype(bool) if y.max() == 1 else y + 3,
)
"""Forms of labels: whole numbers, text, booleans."""
DATA_SETS = {"regression": "diabetes", "classification": "breast-cancer", "density": "two-moons", "images": "digits"}
"""A registered data set for each task, and one with images."""


def make(
    task: str,
    likelihood: str | None,
    *,
    images: bool,
    kind: str,
    number: int,
    rows: int = ROWS,
    exposure: str | None = None,
) -> tuple[Any, Any]:
    """Return inputs and targets. The inputs of a table are a data frame with a column of text, except for a density.

    Args:
        kind: the format, which determines whether inputs may be text.
        number: varies how labels are written.
        exposure: the name of an additional column of positive numbers in a table.
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
    if is_table(kind):
        frame = pd.DataFrame(x, columns=["a", "b"]).astype(float).round(4)
        if task != "density":
            frame["colour"] = np.array(["red", "grün", "blue"])[np.arange(rows) % 3]
        if exposure is not None:
            frame[exposure] = 1.0 + np.arange(rows) % 4
        return frame, y
    return x, y


def with_gaps(x: Any, codes: tuple[str, ...], *, also_last: bool) -> Any:
    """Return inputs with missing cells in rows 2 to 4; if `codes` are given, the cells contain these codes.

    Args:
        also_last: whether the last row, which is a new row, has missing cells too.
    """
    gap = float(codes[0]) if codes else np.nan
    x = x.copy()
    if not isinstance(x, pd.DataFrame):
        x[1:4, 0] = gap
        return x
    places = x.index[[1, 2, 3, *([-1] if also_last else [])]]
    x.loc[places, "a"] = gap
    for code in codes[1:]:
        name, _, value = code.partition("=")
        x.loc[places, name] = value
    return x


def bounds(y: Any) -> np.ndarray:
    """Return targets [row, 2] as bounds: one in ten is below a limit, one above a limit, and one in an interval."""
    ends = np.stack([y, y], 1).astype(float)
    ends[1::10] += [-np.inf, 1]
    ends[4::10] += [-1, np.inf]
    ends[7::10] += [-1, 1]
    return ends


def censored_cells(y: Any) -> list[str]:
    """Return the targets of `bounds` as the cells of a table."""
    cells = []
    for row, (low, high) in enumerate(bounds(y).round(4)):
        between = f"[{low},{high}]" if row % 20 == 7 else f"{low}..{high}"
        one_sided = f"<{high}" if np.isinf(low) else f">{low}" if np.isinf(high) else between
        cells.append(str(low) if low == high else one_sided)
    return cells


def with_new_level(frame: Any) -> Any:
    """Return the data frame with a text level in its last rows that does not occur in other rows."""
    frame = frame.copy()
    frame.loc[frame.index[-2:], "colour"] = "violet"
    return frame


class Text(NamedTuple):
    """The form of a text file, as options."""

    separator: str = ""
    decimal: str = "."
    skip_rows: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def write(self, path: Path, table: pd.DataFrame) -> None:
        """Write the table. If lines are to be skipped, write a remark above the header and units below it."""
        usual = ";" if self.decimal == "," and path.suffix == ".csv" else DELIMITERS[path.suffix]
        mark = SEPARATORS.get(self.separator, self.separator) or usual
        if self.decimal == ",":
            table = table.map(lambda cell: _with_commas(cell) if isinstance(cell, str) else cell)
        text = table.to_csv(index=False, sep=mark, decimal=self.decimal, na_rep="NA" if mark == " " else "")
        lines = text.splitlines()
        if self.skip_rows:
            lines[:1] = ["# from the garden", lines[0], mark.join(["mm"] * table.shape[1])]
        path.write_text("\n".join([*lines, ""]), encoding=self.encoding)


PLAIN = Text()


def _with_commas(cell: str) -> str:
    """Return a text cell, such as [0.5,2.5], with decimal commas: [0,5;2,5]."""
    return re.sub(r"(?<=\d)\.(?=\d)", ",", cell.replace(",", ";"))


def _table(x: Any, y: Any) -> pd.DataFrame:
    return x if y is None else x.assign(y=y)


def _npz(path: Path, x: Any, y: Any) -> None:
    np.savez(path, **{"x": x} if y is None else {"x": x, "y": y})


WRITERS: dict[str, Callable[[Path, Any, Any, Text], Any]] = {
    ".csv": lambda path, x, y, text: text.write(path, _table(x, y)),
    ".tsv": lambda path, x, y, text: text.write(path, _table(x, y)),
    ".parquet": lambda path, x, y, _: _table(x, y).to_parquet(path),
    ".pq": lambda path, x, y, _: _table(x, y).to_parquet(path),
    ".arrow": lambda path, x, y, _: _table(x, y).to_feather(path),
    ".feather": lambda path, x, y, _: _table(x, y).to_feather(path),
    ".npz": lambda path, x, y, _: _npz(path, x, y),
}
"""A function for each format that writes inputs, and targets unless they are None.

A `.npy` file has no names and no text, so it does not suit most cases; tests/data/test_mapped_rows.py reads one.
"""


def formats(task: str, likelihood: str | None = None, *, images: bool) -> list[str]:
    """Return every format in which data of a task can be given. The registered images have ten classes."""
    if images:
        return [".npz", "arrays", "dataset", FOLDER, *([REGISTERED] if likelihood != "bernoulli" else [])]
    return [*WRITERS, *IN_MEMORY, REGISTERED]


def write(path: Path, kind: str, x: Any, y: Any = None, text: Text = PLAIN) -> str:
    """Write the data as a file or a folder of this format; return its name for the command line."""
    if kind == FOLDER:
        path.mkdir()
        for part in ("train", "t10k") if y is not None else ("train",):
            _idx(path / f"{part}-images-idx3-ubyte", x)
            if y is not None:
                _idx(path / f"{part}-labels-idx1-ubyte", y)
        return str(path)
    file = path.with_suffix(kind)
    WRITERS[kind](file, x, y, text)
    return str(file)


def _idx(path: Path, values: Any) -> None:
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + np.ascontiguousarray(values).tobytes())


def in_memory(kind: str, task: str, x: Any, y: Any, *, censored: bool = False) -> Any:
    """Return the data as Python objects; `censored` targets are text in a frame and bounds in an array."""
    if task == "density":
        values = np.asarray(x, np.float32)
        return {"arrays": values, "frame": x, "dataset": bnnzoo.data.rows.dataset.from_rows(values)}[kind]
    if kind == "dataset":
        return bnnzoo.data.from_arrays(x, y, task=task, censored=censored)
    return (x, pd.Series(y, name="y") if kind == "frame" else y)
