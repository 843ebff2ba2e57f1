"""Loading of data: a file, a folder, a data frame, arrays or a registered data set becomes checked arrays.

`load` is for training. `load_inputs` and `load_like` are for a trained model: they check new data against its
`Signature`. If a source has its own test set (t10k files, a registered example), they use the test set.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnnzoo.data import tabular
from bnnzoo.data.arrays import as_inputs, check_task, label_array, numeric_array
from bnnzoo.data.bounds import as_cells, bounds_of, is_bounds_array
from bnnzoo.data.check import did_you_mean, finite_float32
from bnnzoo.data.dataset import Dataset, Signature, from_arrays
from bnnzoo.data.encoding import Encoding, Missing, Unseen
from bnnzoo.data.faults import listed
from bnnzoo.data.frames import FrameTable, is_frame
from bnnzoo.data.readers import Table
from bnnzoo.data.reading import PLAIN, Reading
from bnnzoo.data.selection import Choice
from bnnzoo.data.sources import Spec, new_source_of, source_of
from bnnzoo.data.targets import check_labels
from bnnzoo.errors import UsageError
from bnnzoo.recipe import Recipe


def load(
    spec: Spec,
    *,
    target: Sequence[str] = (),
    task: str | None = None,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    missing: Missing = "error",
    unseen: Unseen = "error",
    exposure: str | None = None,
    reading: Reading = PLAIN,
) -> Dataset:
    """Load the data set of `spec`: a registered name, a file, an IDX folder, a data frame, or arrays.

    Arrays are a pair (x, y), or one array of rows without inputs.

    Args:
        spec: the data.
        target: the target columns of a table (default: its last column).
        task: `density` models all columns, or those of `target` or `columns`. It is also the task of data without
            inputs: one array, an .npz file with only x or y, or a table whose columns are all targets. By default a
            table is classification if its one target is text, booleans, or exactly the numbers 0..C-1 with 2 <= C <=
            20; otherwise it is regression. For arrays the dtype of y decides.
        columns: the input columns of a table (default: all but the targets).
        drop: the columns of a table to leave out.
        categories: the input columns of a table whose cells are codes, of any content; each level becomes one input.
        missing: the treatment of missing cells of a table: an error, leaving out the row, or the column's median.
        unseen: the treatment of unknown text levels in `load_inputs` and `load_like`.
        exposure: a column of positive numbers that multiply the rates of counts.
        reading: the notation of cells, see `Reading.of`.

    Raises:
        UsageError: if the data are invalid; the message covers all columns of a table.
    """
    task = check_task(task)
    targets = _names(target)
    choice = Choice(
        targets,
        _names(columns),
        _names(drop),
        _names(categories),
        missing,
        unseen,
        "".join(_names(exposure or "")),
        reading,
    )
    kind = ""
    if _is_table_and_targets(spec):
        spec, names, kind = tabular.joined(spec[0], _cells_of(spec[1], reading), task=task)
        if absent := [name for name in targets if name not in names]:
            raise UsageError(f"y: no column named {absent[0]}; {did_you_mean(absent[0], names)}")
        left = tuple(name for name in names if targets and name not in (*targets, *choice.columns, choice.exposure))
        choice = choice._replace(target=targets or names, drop=(*choice.drop, *left))
    source = source_of(spec, reading)
    if isinstance(source, Table):
        name = Path(spec).name if isinstance(spec, str | Path) else source.where
        return tabular.training_set(source, choice, task, name, kind)
    if choice != Choice(reading=Reading(censored=reading.censored)):
        where = spec if isinstance(spec, str | Path) else "data"
        given = {"--missing-code": reading.missing_code, "--missing": missing != "error", "--unseen": unseen != "error"}
        options = [option for option, value in given.items() if value]
        about = f"{' and '.join(options)} can be used with" if options else "columns can be chosen in"
        raise UsageError(f"{where}: {about} tables only (.csv .tsv .parquet .pq, data frames)")
    if isinstance(source, Dataset):
        if reading.censored and not source.reading.censored:
            raise UsageError(f"{source.name}: --censored is for tables and arrays")
        return source.as_task(task)
    if isinstance(source, tuple):
        return from_arrays(*source, task=task, censored=reading.censored)
    if reading.censored:
        rows = source.labelled()
        return from_arrays(rows.x, rows.y, task=task, name=Path(spec).name, where=source.where, censored=True)
    return source.dataset(task)


def _names(given: Any) -> tuple[str, ...]:
    """Return one or several names as text, because the names of a data frame may be numbers."""
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    return tuple(unicodedata.normalize("NFC", str(name)) for name in several)


def load_asked(recipe: Recipe, spec: Spec = None) -> Dataset:
    """Load the data of a recipe, or `spec` with the options of the recipe.

    Raises:
        UsageError: see `load`; also if there are no data.
    """
    if spec is None and recipe.data is None:
        raise UsageError("no data: name a data set or a file with --data (bnnzoo list datasets)")
    return load(
        recipe.data if spec is None else spec,
        target=recipe.target,
        task=recipe.task,
        columns=recipe.columns,
        drop=recipe.drop,
        categories=recipe.categories,
        missing=recipe.missing,
        unseen=recipe.unseen,
        exposure=recipe.exposure,
        reading=Reading.of(
            separator=recipe.separator,
            decimal=recipe.decimal,
            skip_rows=recipe.skip_rows,
            encoding=recipe.encoding,
            missing_code=recipe.missing_code,
            censored=recipe.censored,
        ),
    )


def load_inputs(spec: Spec, like: Signature, *, unseen: Unseen | None = None) -> NDArray[Any]:
    """Load inputs [N, *like.shape] of dtype `like.dtype` for prediction.

    The source is a file, a folder, a name, a data set, a data frame or an array x. Columns of tables are matched by
    name, in any order; other columns are ignored. Arrays are matched by shape. An .npz file holds `x`, or only `arr_0`.
    `unseen` overrides the option of the training run.

    Raises:
        UsageError: if the inputs do not match `like`.
    """
    if isinstance(spec, tuple) and like.task == "density":
        spec = load(spec, task=like.task)
    if not isinstance(spec, str | Path | Dataset) and not is_frame(spec):
        return _match(spec, like, "x", unseen)
    source = new_source_of(spec, like)
    if isinstance(source, Dataset):
        chosen = source.test or source
        return _rows_of(chosen.as_task(like.task) if like.task == "density" else chosen, like, unseen)
    if isinstance(source, Table):
        _check_tabular(like, source.where)
        return tabular.new_inputs(source, like, unseen)
    assert not isinstance(source, tuple)
    if like.task == "density":
        return _match(source.dataset(like.task).x, like, source.where, unseen)
    x, where = source.inputs()
    return _match(x, like, where, unseen)


def load_like(
    spec: Spec, like: Signature, target_names: Sequence[str] | None = None, *, unseen: Unseen | None = None
) -> Dataset:
    """Load labelled data for evaluation: a file, folder, name, data set, data frame or pair (x, y) that matches `like`.

    Features and targets of tables are matched by name (targets: `target_names`, default `like.target_names`). Labels
    must be among the model's classes.

    Raises:
        UsageError: if the data do not match `like`.
    """
    if like.task == "density":
        rows = load_inputs(spec, like, unseen=unseen)
        return like.rows(rows, rows, str(spec) if isinstance(spec, str | Path) else "rows")
    names = like.target_names if target_names is None else tuple(target_names)
    if isinstance(spec, tuple) and len(spec) == 2 and is_frame(spec[1]):
        spec = (spec[0], _named(spec[1], names))
    kind = ""
    if _is_table_and_targets(spec):
        spec, names, kind = tabular.joined(spec[0], _cells_of(spec[1], like.reading), task=like.task)
    if len(names) != len(like.target_names):
        raise _other_targets(names, like.target_names)
    source = new_source_of(spec, like)
    if isinstance(source, Table):
        _check_tabular(like, source.where)
        return tabular.new_rows(source, like, names, unseen, kind)
    if isinstance(source, Dataset):
        chosen = source.test or source
        if like.task == "regression" or chosen.task == "density":
            chosen = chosen.as_task(like.task)
        y: Any = chosen.y if chosen.task == "regression" else np.asarray(chosen.class_names)[chosen.y]
        return _labelled(_rows_of(chosen, like, unseen), y, like, source.name, source.name)
    if isinstance(source, tuple):
        return _labelled(_match(source[0], like, "x", unseen), source[1], like, "y", "arrays")
    found = source.labelled()
    return _labelled(_match(found.x, like, found.x_where, unseen), found.y, like, found.y_where, source.where)


def _is_table_and_targets(spec: Spec) -> bool:
    return isinstance(spec, tuple) and len(spec) == 2 and is_frame(spec[0])


def _cells_of(y: Any, reading: Reading) -> Any:
    """Return targets beside a data frame; an array of bounds becomes table cells."""
    return as_cells(bounds_of(y, len(y), "y")) if reading.censored and is_bounds_array(y) else y


def _named(y: Any, names: Sequence[str]) -> Any:
    """Return a frame of targets in the order of the model's `names`, or unchanged if all its names differ.

    Raises:
        UsageError: if it has only some of the names, or additional ones.
    """
    table = FrameTable(y, "y")
    if set(table.names) == set(names):
        return table.frame(names)
    if set(table.names) & set(names) or len(table.names) != len(names):
        raise _other_targets(table.names, names)
    return table.frame(table.names)


def _other_targets(found: Sequence[str], names: Sequence[str]) -> UsageError:
    return UsageError(
        f"y: {len(found)} targets ({listed(found)}), but the model has {len(names)} ({listed(names)}); give those"
    )


def _check_tabular(like: Signature, where: str) -> None:
    if not like.feature_names:
        raise UsageError(f"{where}: a table, but the model was trained on images {list(like.shape)}")


def _rows_of(data: Dataset, like: Signature, unseen: Unseen | None) -> NDArray[Any]:
    """Return the inputs of a data set, unchanged if its columns were encoded as in training."""
    if data.encoding is None or data.encoding.is_plain:
        return _match(data.x, like, data.name, unseen)
    if like.encoding is None or not like.encoding.agrees(data.encoding):
        raise UsageError(
            f"{data.name}: a data set whose columns were encoded otherwise than in training; give its file or frame"
        )
    return finite_float32(like.encoding.fill(data.x), data.name, like.feature_names)


def _match(x: ArrayLike, like: Signature, where: str, unseen: Unseen | None) -> NDArray[Any]:
    """Return x [N, *like.shape] in the dtype of the training inputs. Table columns [N, columns] are encoded."""
    if like.encoding is not None:
        return _encoded(x, like, like.encoding, where, unseen)
    inputs = as_inputs(x, where)
    _check_shape(inputs.shape[1:], like.shape, where)
    if inputs.dtype.name == like.dtype:
        return inputs
    if like.dtype == "float32":
        return inputs.astype(np.float32)
    if np.any((inputs < 0) | (inputs > 255) | (inputs != np.floor(inputs))):
        raise UsageError(f"{where}: the model was trained on uint8 images; give whole numbers 0..255")
    return inputs.astype(np.uint8)


def _encoded(x: ArrayLike, like: Signature, encoding: Encoding, where: str, unseen: Unseen | None) -> NDArray[Any]:
    """Encode rows of a table's columns as inputs."""
    import pandas as pd

    names = [column.name for column in encoding.columns]
    others = [column.name for column in encoding.columns if column.kind not in ("number", "boolean")]
    if others:
        raise UsageError(
            f"{where}: an array, but the model was trained on a table with text, dates or times ({listed(others)}); "
            f"give a data frame or a file with the columns {listed(names)}"
        )
    array = numeric_array(x, where)
    rows = array.reshape(-1, 1) if array.ndim == 1 else array
    if like.exposure and rows.shape[1:] == (len(names) - 1,):
        raise UsageError(f"{where}: no exposure; give it as the last column, or with exposure=")
    _check_shape(rows.shape[1:], (len(names),), where)
    frame = pd.DataFrame(rows, columns=pd.Index(names))
    return tabular.new_inputs(FrameTable(frame, where), like, unseen)


def _check_shape(found: Sequence[int], trained: Sequence[int], where: str) -> None:
    if tuple(found) != tuple(trained):
        raise UsageError(
            f"{where}: inputs of shape {list(found)}, but the model was trained on {list(trained)}; give the same"
        )


def _labelled(inputs: NDArray[Any], y: Any, like: Signature, where: str, name: str) -> Dataset:
    """Return checked inputs with targets from an array, checked against `like`."""
    classify = like.task == "classification"
    if like.reading.censored:
        bounds = bounds_of(y, len(inputs), where)
        if bounds.shape[1] != len(like.target_names):
            raise UsageError(f"{where}: {bounds.shape[1]} targets, but the model has {len(like.target_names)}")
        return like.rows(inputs, bounds, name)
    targets = (label_array if classify else numeric_array)(y, where)
    if targets.shape[0] != inputs.shape[0]:
        raise UsageError(f"{where}: {targets.shape[0]} rows of targets for {inputs.shape[0]} of inputs")
    if targets.size != targets.shape[0] * len(like.target_names):
        raise UsageError(f"{where}: shape {list(targets.shape)}, but the model has {len(like.target_names)} targets")
    if classify:
        return like.rows(inputs, check_labels(targets.reshape(-1), like.class_names, where), name)
    return like.rows(inputs, finite_float32(targets, where).reshape(-1, len(like.target_names)), name)
