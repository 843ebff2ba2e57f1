"""Loading of data: a file, a folder, a data frame, arrays or a registered data set becomes checked arrays.

`load` is for training. `load_inputs` and `load_like` are for new data for a trained model. They check the new data
against the `Signature` of the training data. If the new data have their own test set, such as the `t10k` files of an
IDX folder, these two functions return only the test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnnzoo.data.checks.check import did_you_mean, finite_float32
from bnnzoo.data.columns.bounds import bounds_of
from bnnzoo.data.columns.codes import notes_of_unused_codes
from bnnzoo.data.columns.faults import list_names
from bnnzoo.data.columns.reading_options import PLAIN
from bnnzoo.data.columns.table import AbstractTable
from bnnzoo.data.encoding.input_encoding import Encoding, Unseen
from bnnzoo.data.encoding.targets import check_labels
from bnnzoo.data.formats.frames import FrameTable, is_frame
from bnnzoo.data.loading import tabular
from bnnzoo.data.loading.column_reading import columns_of
from bnnzoo.data.loading.frame_pairs import join_frame
from bnnzoo.data.loading.selection import NO_CHOICE, ColumnChoice, check_same_columns, refuse_table_options
from bnnzoo.data.loading.sources import Spec, source_of
from bnnzoo.data.rows.arrays import are_default_names, as_inputs, check_task, label_array, numeric_array
from bnnzoo.data.rows.dataset import Dataset, from_arrays
from bnnzoo.data.rows.signature import Signature
from bnnzoo.errors import UsageError
from bnnzoo.finding import spell_settings, spelling

COLUMN_FIELDS = ("task", *(name for name in ColumnChoice._fields if name != "reading"))
"""Fields of a recipe that select the columns of a table and determine their treatment."""
ROW_FIELDS = ("data", *COLUMN_FIELDS, *vars(PLAIN))
"""Fields of a recipe that determine its rows, before the split into training and test rows."""


def load(spec: Spec, *, task: str | None = None, **options: Any) -> Dataset:
    """Load a data set for training.

    Args:
        spec: the data: the name of a registered data set, a file, an IDX folder, a data frame, a pair of arrays (x, y),
            or one array of rows without inputs.
        task: `regression`, `classification` or `density`; by default the data determine the task. `density` models all
            columns, or only the columns in `target` or `columns` if one of these options is set. `density` is the
            default for data without inputs: one array, an .npz file with only x or y, or a table in which every column
            is a target. The default for a table with one target is classification if the target is text, booleans, or
            exactly the numbers 0..C-1 with 2 <= C <= 20. The default for other tables, and with `exposure` or censored
            targets, is regression. For arrays, the type of y determines the default, see `from_arrays`. For an IDX
            folder, the default is classification.
        options: the options for tables, see `ColumnChoice`.

    Raises:
        UsageError: if the data are invalid. For a table, the message lists the problems of all columns.
    """
    task = check_task(task)
    choice = ColumnChoice.from_options(**options)
    targets, reading = choice.target, choice.reading
    spec, names, kind = join_frame(spec, reading, task)
    if names:
        if missing_names := [name for name in targets if name not in names]:
            raise UsageError(f"y: no column named {missing_names[0]}; {did_you_mean(missing_names[0], names)}")
        unused_names = tuple(
            name for name in names if targets and name not in (*targets, *choice.columns, choice.exposure)
        )
        if not targets and task != "density":  # a density models the columns of x and of y
            targets = names
        choice = choice._replace(target=targets, drop=(*choice.drop, *unused_names))
    source = source_of(spec, reading)
    if isinstance(source, AbstractTable):
        name = Path(spec).name if isinstance(spec, str | Path) else source.where
        return tabular.training_set(source, choice, task, name, kind)
    refuse_table_options(spec, choice)
    if isinstance(source, Dataset):
        if reading.censored and not source.reading.censored:
            raise UsageError(f"{source.name}: [[censored=True]] is supported for tables and arrays only; remove it")
        return source.as_task(task)
    if isinstance(source, tuple):
        return from_arrays(*source, task=task, censored=reading.censored)
    if reading.censored:
        rows = source.labelled()
        return from_arrays(rows.x, rows.y, task=task, name=Path(spec).name, where=source.where, censored=True)
    return source.dataset(task)


def load_inputs(
    spec: Spec, signature: Signature, *, unseen: Unseen | None = None, choice: ColumnChoice = NO_CHOICE
) -> NDArray[Any]:
    """Load inputs [N, *signature.shape] of the type `signature.dtype` for prediction.

    Args:
        spec: the data: a file, a folder, the name of a registered data set, a data set, a data frame or an array x; for
            a density also a pair (x, y). The columns of a table are matched to the training columns by name, in any
            order, and other columns are ignored. The columns of a data set are matched by name if they have names.
            Arrays are matched by shape. An .npz file must contain the array `x`, or only the array `arr_0`. For a
            density, an .npz file must contain `x` or `y` or both.
        signature: the properties of the training data.
        unseen: the treatment of unknown text levels, see `ColumnChoice`; by default the option of the training run.
        choice: the options of the user for reading a table.

    Raises:
        UsageError: if the inputs do not match `signature`, or if `choice` selects other columns than the training run.
    """
    if isinstance(spec, tuple) and signature.task == "density":
        spec = _density_rows(spec, signature)
    if not isinstance(spec, str | Path | Dataset) and not is_frame(spec):
        return _match(spec, signature, "x", unseen)
    source = source_of(spec, choice.reading, signature)
    if isinstance(source, Dataset):
        dataset = source.test or source
        return _rows_of(dataset.as_task(signature.task) if signature.task == "density" else dataset, signature, unseen)
    if isinstance(source, AbstractTable):
        _check_tabular(signature, source.where)
        check_same_columns(source, choice, signature)
        return tabular.new_inputs(source, signature, unseen)
    assert not isinstance(source, tuple)
    if signature.task == "density":
        return _match(source.dataset(signature.task).x, signature, source.where, unseen)
    x, where = source.inputs()
    return _match(x, signature, where, unseen)


def load_like(
    spec: Spec, signature: Signature, *, unseen: Unseen | None = None, choice: ColumnChoice = NO_CHOICE
) -> Dataset:
    """Load inputs and targets for a trained model.

    Args:
        spec: the data: a file, a folder, the name of a registered data set, a data set, a data frame, or a pair (x, y).
            The columns of a table, and of a data set with names, are matched to the training columns by name. Labels
            must be among the classes of the model.
        signature: the properties of the training data.
        unseen: the treatment of unknown text levels, see `ColumnChoice`; by default the option of the training run.
        choice: the options of the user for reading a table.

    Raises:
        UsageError: if the data do not match `signature`, or if `choice` selects other columns than the training run.
    """
    if signature.task == "density":
        rows = load_inputs(spec, signature, unseen=unseen, choice=choice)
        return Dataset.from_signature(signature, rows, rows, str(spec) if isinstance(spec, str | Path) else "rows")
    if isinstance(spec, tuple) and len(spec) == 2 and is_frame(spec[1]):
        spec = (spec[0], _order_targets(spec[1], signature.target_names))
    spec, joined_names, kind = join_frame(spec, signature.reading, signature.task)
    names = joined_names or signature.target_names
    if len(names) != len(signature.target_names):
        raise _other_targets(names, signature.target_names)
    source = source_of(spec, choice.reading, signature)
    if isinstance(source, AbstractTable):
        _check_tabular(signature, source.where)
        check_same_columns(source, choice, signature)
        rows = tabular.new_rows(source, signature, names, unseen, kind)
        if not choice.reading.missing_code:
            return rows
        columns = columns_of(source, [*signature.column_names, *names])
        notes = notes_of_unused_codes(columns, signature.reading, source.decimal, source.where)
        return replace(rows, notes=tuple(spell_settings(note, spelling()) for note in notes))
    refuse_table_options(spec, choice)
    if isinstance(source, Dataset):
        dataset = source.test or source
        if signature.task == "regression" or dataset.task == "density":
            dataset = dataset.as_task(signature.task)
        y = _in_order(dataset.y, dataset.target_names, signature.target_names, f"{dataset.name}: the targets")
        y = y if dataset.task == "regression" else np.asarray(dataset.class_names)[y]
        return _labelled(_rows_of(dataset, signature, unseen), y, signature, source.name, source.name)
    if isinstance(source, tuple):
        return _labelled(_match(source[0], signature, "x", unseen), source[1], signature, "y", "arrays")
    source_rows = source.labelled()
    return _labelled(
        _match(source_rows.x, signature, source_rows.x_where, unseen),
        source_rows.y,
        signature,
        source_rows.y_where,
        source.where,
    )


def _density_rows(pair: tuple[Any, ...], signature: Signature) -> Any:
    """Return the rows of a pair (x, y) for a density: a data frame if x is one, otherwise a data set.

    The columns of y get the names of the last columns of the model if none of their names is known to the model, and
    if x has none of these last columns.
    """
    frame, names, _ = join_frame(pair, signature.reading, signature.task)
    if not names:
        return load(pair, task=signature.task)
    columns = signature.target_names
    last_columns = columns[-len(names) :]
    if set(names).isdisjoint(columns) and set(last_columns).isdisjoint(frame):
        return frame.rename(columns=dict(zip(names, last_columns, strict=True)))
    return frame


def _order_targets(y: Any, names: Sequence[str]) -> Any:
    """Return the data frame `y` with its columns in the order of `names`, the targets of the model.

    If no column has one of these names, the first column of `y` is the first target of the model, and so on.

    Raises:
        UsageError: if only some columns are targets of the model, or if the numbers of columns and targets differ.
    """
    table = FrameTable(y, "y")
    if set(table.names) == set(names):
        return table.frame(names)
    if set(table.names) & set(names) or len(table.names) != len(names):
        raise _other_targets(table.names, names)
    return table.frame(table.names)


def _other_targets(target_names: Sequence[str], names: Sequence[str]) -> UsageError:
    return UsageError(f"y: must have the targets of the model, {list_names(names)} (got {list_names(target_names)})")


def _check_tabular(signature: Signature, where: str) -> None:
    if not signature.feature_names:
        raise UsageError(
            f"{where}: a table, but the model was trained on images of shape {list(signature.shape)}; give images"
        )


def _rows_of(data: Dataset, signature: Signature, unseen: Unseen | None) -> NDArray[Any]:
    """Return the inputs of a data set.

    Raises:
        UsageError: if the inputs do not match `signature`, or if the columns of `data` were encoded in another way than
            the columns of the training table.
    """
    if data.encoding is None or data.encoding.is_plain:
        x = _in_order(data.x, data.feature_names, signature.column_names, f"{data.name}: the inputs")
        return _match(x, signature, data.name, unseen)
    if signature.encoding is None or not signature.encoding.makes_same_inputs(data.encoding):
        raise UsageError(
            f"{data.name}: the columns of this data set are not encoded as in training; give its file or data frame "
            "instead"
        )
    return finite_float32(signature.encoding.fill(data.x), data.name, signature.feature_names)


def _in_order(values: NDArray[Any], names: Sequence[str], trained_names: Sequence[str], what: str) -> NDArray[Any]:
    """Return `values`, the columns `names` of a data set, in the order of `trained_names`, the columns of the model.

    The columns of arrays have default names, so they match the columns of the model by position. Images have no names.

    Raises:
        UsageError: if the data set has other columns. The message begins with `what`.
    """
    if tuple(names) == tuple(trained_names) or not names or not trained_names:
        return values
    if sorted(names) == sorted(trained_names):
        return values[:, [names.index(name) for name in trained_names]]
    if len(names) != len(trained_names) or not (are_default_names(names) or are_default_names(trained_names)):
        raise UsageError(f"{what} must be those of the model, {list_names(trained_names)} (got {list_names(names)})")
    return values


def _match(x: ArrayLike, signature: Signature, where: str, unseen: Unseen | None) -> NDArray[Any]:
    """Return x [N, *signature.shape] in the type of the training inputs.

    If the model was trained on a table with an encoding, the columns of x are encoded.
    """
    if signature.encoding is not None:
        return _encoded(x, signature, signature.encoding, where, unseen)
    inputs = as_inputs(x, where)
    _check_shape(inputs.shape[1:], signature.shape, where)
    if inputs.dtype.name == signature.dtype:
        return inputs
    if signature.dtype == "float32":
        return inputs.astype(np.float32)
    if np.any((inputs < 0) | (inputs > 255) | (inputs != np.floor(inputs))):
        raise UsageError(f"{where}: the model was trained on uint8 images; give whole numbers 0..255")
    return inputs.astype(np.uint8)


def _encoded(x: ArrayLike, signature: Signature, encoding: Encoding, where: str, unseen: Unseen | None) -> NDArray[Any]:
    """Return the encoded inputs of an array whose columns are the columns of the training table."""
    import pandas as pd

    names = signature.column_names
    unsupported_columns = [column.name for column in encoding.columns if column.kind not in ("number", "boolean")]
    if unsupported_columns:
        raise UsageError(
            f"{where}: an array, but the model was trained on a table with text, dates or times "
            f"({list_names(unsupported_columns)}); give a data frame or a file with the columns {list_names(names)}"
        )
    array = numeric_array(x, where)
    rows = array.reshape(-1, 1) if array.ndim == 1 else array
    if signature.exposure and rows.shape[1:] == (len(names) - 1,):
        raise UsageError(f"{where}: the exposure is missing; give the columns {list_names(names)}")
    _check_shape(rows.shape[1:], (len(names),), where)
    frame = pd.DataFrame(rows, columns=pd.Index(names))
    return tabular.new_inputs(FrameTable(frame, where), signature, unseen)


def _check_shape(shape: Sequence[int], trained_shape: Sequence[int], where: str) -> None:
    if tuple(shape) != tuple(trained_shape):
        raise UsageError(
            f"{where}: inputs have shape {list(shape)}, but the model was trained on {list(trained_shape)}; give "
            "inputs of that shape"
        )


def _labelled(inputs: NDArray[Any], y: Any, signature: Signature, where: str, name: str) -> Dataset:
    """Return a data set of checked `inputs` and of targets `y`, which are checked against `signature`."""
    is_classification = signature.task == "classification"
    if signature.reading.censored:
        bounds = bounds_of(y, len(inputs), where)
        if bounds.shape[1] != len(signature.target_names):
            raise UsageError(
                f"{where}: got {bounds.shape[1]} targets, but the model has {len(signature.target_names)}; give the "
                "targets of the model"
            )
        return Dataset.from_signature(signature, inputs, bounds, name)
    targets = (label_array if is_classification else numeric_array)(y, where)
    if targets.shape[0] != inputs.shape[0]:
        raise UsageError(
            f"{where}: {targets.shape[0]} rows of targets but {inputs.shape[0]} rows of inputs; give one row of "
            "targets per row of inputs"
        )
    if targets.size != targets.shape[0] * len(signature.target_names):
        raise UsageError(
            f"{where}: targets have shape {list(targets.shape)}, but the model has {len(signature.target_names)} "
            "targets; give one column per target"
        )
    if is_classification:
        labels = check_labels(targets.reshape(-1), signature.class_names, where)
        return Dataset.from_signature(signature, inputs, labels, name)
    numbers = finite_float32(targets, where).reshape(-1, len(signature.target_names))
    return Dataset.from_signature(signature, inputs, numbers, name)
