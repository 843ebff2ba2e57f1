"""Data sets on the host: inputs, targets and their meaning, and their construction from arrays."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnnzoo.data.checks.check import check_column_names, finite_float32, refuse_coarse
from bnnzoo.data.columns.bounds import bounds_of, single_numbers
from bnnzoo.data.columns.codes import find_codes, warnings_about_codes
from bnnzoo.data.columns.reading_options import PLAIN, Reading
from bnnzoo.data.encoding.input_encoding import Encoding
from bnnzoo.data.encoding.targets import (
    MAX_CLASSES,
    MAX_INFERRED_CLASSES,
    Task,
    check_censored,
    note_of_numbers,
    recode,
    training_labels,
)
from bnnzoo.data.rows.arrays import (
    as_inputs,
    check_task,
    default_input_names,
    default_target_names,
    label_array,
    numeric_array,
)
from bnnzoo.data.rows.signature import Signature
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.files import mapped
from bnnzoo.finding import spell_settings, spelling


class UncheckedRows(NamedTuple):
    """Inputs x and targets y before any check, and the names of both in messages (`x_where` and `y_where`)."""

    x: Any
    y: Any
    x_where: str
    y_where: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """N rows of inputs and targets. The functions `from_arrays`, `from_rows` and `load` check the rows.

    Attributes:
        x: features [N, D] float32, or images [N, H, W] or [N, C, H, W], float32 or uint8.
        y: the targets. For regression they are T numbers per row, [N, T] float32. For classification they are labels
            0..num_classes-1, [N] int32. For a density, which has no inputs, x and y both are the rows [N, D]. Censored
            targets are [N, T, 2]: the smallest and the largest possible value of each target. Both are equal if the
            value is known, and one of them is infinite if there is no limit on its side.
        task: regression, classification or density.
        feature_names: the names of the D features; () for images.
        target_names: the names of the T targets; classification has one target.
        class_names: the names of the classes; () for regression and density.
        name: the name of the data set in messages.
        test: the test set that belongs to the data, or None. `split` uses it instead of random rows.
        encoding: the encoding of the columns of a table as x, or None. If medians replace missing numbers, these
            numbers are nan in x until `split` is called.
        notes: sentences about automatic choices when the data were read.
        left_out: a sentence about the rows that were left out; empty if no row was left out.
        truth: for synthetic data with one target, a function that returns the noise-free targets [N, B] of inputs
            [N, D], or None. B is the number of values that the target of a given input can have without noise.
        reading: the options for the notation of the cells of a table.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    task: Task
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    class_names: tuple[str, ...]
    name: str
    test: Dataset | None = None
    encoding: Encoding | None = None
    notes: tuple[str, ...] = ()
    left_out: str = ""
    truth: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    reading: Reading = PLAIN

    @classmethod
    def from_signature(cls, signature: Signature, x: NDArray[Any], y: NDArray[Any], name: str) -> Dataset:
        """Return a data set of inputs x and targets y that match the signature."""
        names = (signature.feature_names, signature.target_names, signature.class_names)
        return cls(x, y, signature.task, *names, name, encoding=signature.encoding, reading=signature.reading)

    @property
    def num_data(self) -> int:
        """Number of rows N."""
        return self.x.shape[0]

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for regression and density."""
        return len(self.class_names)

    @property
    def signature(self) -> Signature:
        """Properties that new data must share with these data."""
        return Signature(
            feature_names=self.feature_names,
            shape=self.x.shape[1:],
            dtype="uint8" if self.x.dtype == np.uint8 else "float32",
            target_names=self.target_names,
            task=self.task,
            class_names=self.class_names,
            encoding=self.encoding,
            reading=self.reading,
        )

    def sha256(self) -> str:
        """Return the SHA-256 hash of `x` and `y`. The test set is not included."""
        digest = hashlib.sha256()
        for array in (self.x, self.y):
            digest.update(f"{array.dtype}{array.shape}".encode())
            for rows in mapped.row_blocks(array):
                digest.update(np.ascontiguousarray(array[rows]).tobytes())
        return digest.hexdigest()

    def take(self, indices: ArrayLike) -> Dataset:
        """Return a data set of the rows `indices` [M], in this order, without the test set."""
        rows = np.asarray(indices)
        return replace(self, x=mapped.take(self.x, rows), y=mapped.take(self.y, rows), test=None)

    def as_task(self, task: str | None) -> Dataset:
        """Return the data for another task.

        For regression, labels become numbers, and booleans become 0 and 1. For classification, whole numbers become
        labels. For a density, the inputs and then the targets become the columns of each row.

        Raises:
            UsageError: if the targets cannot be converted.
        """
        if task is None or task == self.task:
            return self
        if self.reading.censored:
            check_censored(check_task(task))
        y, where = self.y, f"{self.name}: column {self.target_names[0]}"
        if self.task == "density":
            raise UsageError(
                f"{self.name}: the data have no inputs, because every column is a target, but {task} needs inputs and "
                "a target; use [[task=density]], or other data"
            )
        if task == "density":
            converted = self._as_density(where)
        elif task == "regression":
            try:
                is_boolean = set(self.class_names) <= {"False", "True"}
                numbers = np.array([name == "True" if is_boolean else float(name) for name in self.class_names], float)
            except ValueError:
                raise UsageError(f"{where}: text cannot be a target of regression; use another [[target]]") from None
            converted = replace(self, y=numbers[y, None].astype(np.float32), task="regression", class_names=())
        else:
            if y.shape[1] > 1:
                raise UsageError(
                    f"{self.name}: classification needs one column of labels (got {y.shape[1]} targets); name one "
                    "column"
                )
            labels, names = training_labels(y[:, 0], self.name, self.target_names[0])
            converted = replace(self, y=labels, task="classification", class_names=names)
        # Notes about the targets are removed, because they explain why the old task was chosen.
        note_prefix = f"target {self.target_names[0]}: "
        converted = replace(converted, notes=tuple(note for note in self.notes if not note.startswith(note_prefix)))
        if self.test is None or task != "classification":
            return converted if self.test is None else replace(converted, test=self.test.as_task(task))
        codes = recode(
            self.test.y, (), converted.class_names, f"{self.name}: test rows"
        )  # the test rows may lack a class
        return replace(
            converted, test=replace(self.test, y=codes, task=converted.task, class_names=converted.class_names)
        )

    def _as_density(self, where: str) -> Dataset:
        """Return a data set for a density, whose rows consist of the inputs and the targets."""
        if self.task == "classification":
            raise UsageError(f"{where}: class labels cannot be modelled by a density; use [[task=classification]]")
        if self.x.ndim > 2 or self.encoding is not None:
            raise UsageError(
                f"{self.name}: a density needs columns of plain numbers, [N, D]; leave out text, dates and times, or "
                "flatten images"
            )
        names = (*self.feature_names, *self.target_names)
        return from_rows(np.concatenate([self.x, self.y], 1), name=self.name, names=names)


def _are_labels(y: NDArray[Any]) -> bool:
    """Whether targets are classes, that is, a single column of text, of booleans, or of certain integers.

    Integers must have at most 20 distinct values, or be exactly the values 0..C-1, where C is at most 1000 and there
    are at least two rows per value on average.
    """
    if y.size != y.shape[0] or y.dtype.kind not in "biuUO":
        return False
    if y.dtype.kind not in "iu":
        return True
    distinct = np.unique(y)
    is_contiguous = distinct.size <= MAX_CLASSES and np.array_equal(distinct, np.arange(distinct.size))
    return distinct.size <= MAX_INFERRED_CLASSES or bool(is_contiguous and 2 * distinct.size <= y.size)


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    task: str | None = None,
    name: str = "arrays",
    feature_names: Sequence[str] = (),
    target_names: Sequence[str] = (),
    where: str = "",
    censored: bool = False,
) -> Dataset:
    """Return a checked data set of inputs and targets.

    Args:
        x: the inputs, [N], [N, D], [N, H, W] or [N, C, H, W].
        y: the targets, [N] or [N, T]; with `censored`, the bounds [N, 2] or [N, T, 2].
        task: the task. The default is classification if y is a single target of text, booleans or certain integers,
            and otherwise regression. The integers must have at most 20 distinct values, or be exactly the values 0..C-1
            with at least two rows per value on average (C up to 1000). For `density`, a row consists of the columns of
            x and of y.
        name: the name of the data set in messages.
        feature_names: the names of the D features; by default those of a data frame, or x0, x1, ...
        target_names: the names of the T targets; by default y, or y0, y1, ... for several targets.
        where: the name of the file, with which error messages begin.
        censored: whether y contains the bounds of censored targets, see `Dataset`.

    Raises:
        UsageError: if the data are invalid.
    """
    regression = functools.partial(
        from_arrays, x, task="regression", name=name, feature_names=feature_names, where=where
    )
    if censored:
        check_censored(check_task(task))
        bounds = bounds_of(y, len(np.atleast_1d(np.asarray(x))), f"{where}: y" if where else "y")
        from_midpoints = regression(single_numbers(bounds.astype(np.float64)), target_names=target_names)
        return replace(from_midpoints, y=bounds, reading=Reading(censored=True))
    if task == "density":
        from_regression = regression(y)
        return replace(from_regression, target_names=tuple(target_names) or from_regression.target_names).as_task(task)
    prefix = f"{where}: " if where else ""
    names = tuple(feature_names) or tuple(str(column) for column in getattr(x, "columns", ()))
    inputs = as_inputs(x, f"{prefix}x", names)
    targets = label_array(y, f"{prefix}y")
    if targets.shape[0] != inputs.shape[0]:
        raise UsageError(
            f"{prefix}x has {inputs.shape[0]} rows and y has {targets.shape[0]}; they must have the same number of rows"
        )
    if targets.ndim > 2 or 0 in targets.shape:
        raise UsageError(f"{prefix}y: must be [N] or [N, T] (got shape {list(targets.shape)})")

    chosen_task = check_task(task)
    if chosen_task is None:
        chosen_task = "classification" if _are_labels(targets) else "regression"
    num_targets = targets.size // targets.shape[0]
    is_task_open = task is None and num_targets == 1 and targets.dtype.kind in "iuf"
    note = note_of_numbers((*target_names, "y")[0], targets, chosen_task) if is_task_open else ""
    targets, class_names = _encoded_targets(targets, chosen_task, num_targets, prefix)
    is_features = inputs.ndim == 2
    outputs = tuple(target_names) or default_target_names(num_targets)
    if is_features:
        names = names or default_input_names(inputs.shape[1])
        for label, column in zip(names, np.asarray(x).reshape(inputs.shape).T, strict=True):
            refuse_coarse(column, f"{prefix}x: column {label}")
    if len(outputs) != num_targets:
        raise UsageError(f"{prefix}expected {num_targets} target names (got {len(outputs)})")
    _warn_of_codes(inputs, names, targets, outputs, chosen_task, where or name)
    return Dataset(
        x=inputs,
        y=targets,
        task=chosen_task,
        feature_names=names if is_features else (),
        target_names=outputs,
        class_names=class_names,
        name=name,
        notes=(spell_settings(note, spelling()),) if note else (),
    )


def _encoded_targets(
    targets: NDArray[Any], task: Task, num_targets: int, prefix: str
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the checked targets and the names of their classes.

    For classification, the targets are labels [N]. Otherwise they are float32 columns [N, T], and the names are ().

    Raises:
        UsageError: if the targets are invalid.
    """
    if task == "classification":
        if num_targets != 1:
            raise UsageError(
                f"{prefix}y: labels must be [N] (got shape {list(targets.shape)}); for one-hot labels use y.argmax(1)"
            )
        return training_labels(targets.reshape(-1), f"{prefix}y")
    numbers = numeric_array(targets, f"{prefix}y")
    columns = finite_float32(numbers, f"{prefix}y").reshape(-1, num_targets)
    for column in numbers.reshape(-1, num_targets).T:
        refuse_coarse(column, f"{prefix}y")
    return columns, ()


def _warn_of_codes(
    x: NDArray[Any], names: Sequence[str], y: NDArray[Any], outputs: Sequence[str], task: Task, where: str
) -> None:
    """Warn if columns of arrays contain values that look like codes for missing cells."""
    columns = [*zip(names, x.T, strict=True)] if x.ndim == 2 else []
    columns += [*zip(outputs, y.T, strict=True)] if task == "regression" else []
    codes = [code for name, column in columns for code in find_codes(name, column)]
    remedy = "if it is one, leave such rows out, or give a table in place of arrays and set [[missing_code]]"
    for doubt in warnings_about_codes(codes, outputs, instead=remedy):
        warnings.warn(f"{where}: {doubt}", BnnzooWarning, stacklevel=3)


def from_rows(rows: ArrayLike, *, name: str = "arrays", names: Sequence[str] = (), where: str = "") -> Dataset:
    """Return a checked data set without inputs, for the joint density of all columns of the rows [N] or [N, D]."""
    place = f"{where}: x" if where else "x"
    values = as_inputs(rows, place, names)
    if values.ndim > 2:
        raise UsageError(
            f"{place} has shape {list(values.shape)}; a density needs columns [N, D], such as x.reshape(len(x), -1)"
        )
    columns = tuple(names) or default_input_names(values.shape[1])
    check_column_names(columns, place)
    return Dataset(values, values, "density", columns, columns, (), name)
