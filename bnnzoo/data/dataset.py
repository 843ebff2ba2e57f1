"""Data sets on the host: inputs, targets and their meaning, and their construction from arrays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import FailFast, TypeAdapter

from bnnzoo.data.arrays import as_inputs, check_task, label_array, numeric_array
from bnnzoo.data.bounds import are_bounds, bounds_of, stand_in
from bnnzoo.data.check import check_column_names, finite_float32, refuse_coarse
from bnnzoo.data.codes import find_codes, warn_of_codes
from bnnzoo.data.encoding import Encoding
from bnnzoo.data.reading import PLAIN, Reading
from bnnzoo.data.targets import (
    MOST_CLASSES,
    MOST_INFERRED_CLASSES,
    Task,
    check_censored,
    note_of_numbers,
    recoded,
    training_labels,
)
from bnnzoo.errors import UsageError

_Names = Annotated[tuple[str, ...], FailFast()]
"""A tuple of names whose validation stops at the first error, because a forged file may hold a million of them."""


class Signature(NamedTuple):
    """The properties that new data must share with the training data.

    Attributes:
        feature_names: the names of the inputs [D]; () for images.
        shape: the shape of one input, without N.
        dtype: the type of the inputs.
        target_names: the names of the targets [T].
        task: the task of the model.
        class_names: the names of the classes; () for regression and density.
        encoding: the encoding of table columns, if it is not trivial.
        reading: the notation of the table's cells.
    """

    feature_names: _Names
    shape: Annotated[tuple[int, ...], FailFast()]  # the shape of one input, without N
    dtype: Literal["float32", "uint8"]
    target_names: _Names
    task: Task
    class_names: _Names = ()
    encoding: Encoding | None = None
    reading: Reading = PLAIN

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for regression."""
        return len(self.class_names)

    @property
    def exposure(self) -> str:
        """Name of the exposure, the last input, which multiplies rates; empty if there is none."""
        return "" if self.encoding is None else self.encoding.exposure

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one row's target. Censored targets have two values each, the smallest and the largest."""
        if self.task == "classification":
            return ()
        return (len(self.target_names), 2) if self.reading.censored else (len(self.target_names),)

    @property
    def num_targets(self) -> int:
        """Number of targets for likelihoods: classes in classification, else columns of targets."""
        return self.num_classes or len(self.target_names)

    def to_json(self) -> str:
        """Return the complete signature as JSON for a run's file."""
        words = {**self._asdict(), "encoding": None if self.encoding is None else self.encoding.words()}
        del words["reading"]
        return json.dumps(words | ({"reading": reading} if (reading := self.reading.words()) else {}))

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """Return the signature that `to_json` wrote.

        Raises:
            ValueError: if the text is not a valid signature.
        """
        found = TypeAdapter(cls).validate_json(text, strict=True)
        found.reading.check()
        if found.encoding is not None and found.encoding.inputs != found.feature_names:
            raise ValueError("its encoding makes other inputs than it names")
        if found.encoding is not None and any(column.exposure for column in found.encoding.columns[:-1]):
            raise ValueError("its exposure is not the last column")
        whole = (len(found.feature_names),) if found.feature_names or len(found.shape) == 1 else found.shape
        labelled = bool(found.class_names) == (found.task == "classification") and len(found.class_names) != 1
        labelled = labelled and (found.task != "density" or found.feature_names == found.target_names)
        if found.shape != whole or min(whole, default=1) < 0 or len(whole) > 3 or not labelled:
            raise ValueError("its names, classes and shape are not of one data set")
        for names in (found.feature_names, found.target_names, found.class_names):
            if len(set(names)) < len(names):
                raise ValueError("two of its names are one")
        if not found.target_names or (labelled and found.class_names and len(found.target_names) > 1):
            raise ValueError("its targets are not those of one data set")
        return found

    def inputs(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return these inputs if they match the signature.

        Raises:
            ValueError: if they do not.
        """
        if x.shape[1:] != self.shape or x.dtype != self.dtype or not np.isfinite(x).all():
            raise ValueError(f"inputs {x.dtype}{list(x.shape)} are not like those of the data")
        return x

    def targets(self, y: NDArray[Any], rows: int) -> NDArray[Any]:
        """Return these targets of `rows` rows if they match the signature.

        Raises:
            ValueError: if they do not.
        """
        right = y.shape == (rows, *self.target_shape)
        right = right and y.dtype == ("int32" if self.task == "classification" else "float32")
        inside = not self.class_names or ((y >= 0) & (y < self.num_classes)).all()
        finite = are_bounds(y) if right and self.reading.censored else np.isfinite(y).all()
        if not right or not inside or not finite:
            raise ValueError(f"targets {y.dtype}{list(y.shape)} are not like those of the data")
        return y

    def rows(self, x: NDArray[Any], y: NDArray[Any], name: str) -> Dataset:
        """Return the data set of these checked inputs and targets."""
        names = (self.feature_names, self.target_names, self.class_names)
        return Dataset(x, y, self.task, *names, name, encoding=self.encoding, reading=self.reading)


class Labelled(NamedTuple):
    """Unchecked inputs and targets, with their names in messages."""

    x: Any
    y: Any
    x_where: str
    y_where: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """N inputs and their targets, checked at construction (`from_arrays`, `from_rows`, `load`).

    Attributes:
        x: features [N, D] float32, or images [N, H, W] or [N, C, H, W], float32 or uint8.
        y: regression [N, T] float32; classification [N] int32 with labels 0..num_classes-1. A density has no inputs: x
            and y are both the rows [N, D], and the model may condition a column on others. Censored targets are [N, T,
            2], the smallest and the largest possible value: equal for a known value, infinite without a limit.
        task: regression, classification or density.
        feature_names: D names; () for images.
        target_names: T names; one for classification.
        class_names: the names of the labels; () for regression and density.
        name: the name of the data set in messages.
        test: the test set that belongs to the data, if any; `split` prefers it to a random one.
        encoding: the map from table columns to x. Before `split`, nan marks cells that training medians will fill.
        notes: automatic choices while reading, as sentences.
        left_out: a sentence about the omitted rows; empty if there are none.
        truth: a function from inputs [N, D] to noise-free targets, one column per branch [N, B]; for synthetic data
            with one target.
        reading: the notation of the table's cells.
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

    @property
    def num_data(self) -> int:
        """Number of rows N."""
        return self.x.shape[0]

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for regression."""
        return len(self.class_names)

    @property
    def num_targets(self) -> int:
        """Number of targets for likelihoods: classes in classification, else columns of targets."""
        return self.num_classes or len(self.target_names)

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
        """Return the SHA-256 of the rows, without the test set."""
        digest = hashlib.sha256()
        for array in (self.x, self.y):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def take(self, indices: ArrayLike) -> Dataset:
        """Return the rows `indices` [M] in that order, without the test set."""
        rows = np.asarray(indices)
        return replace(self, x=self.x[rows], y=self.y[rows], test=None)

    def as_task(self, task: str | None) -> Dataset:
        """Convert the data to another task.

        Labels become numbers, whole numbers become labels, or inputs and targets become the rows of a density.

        Raises:
            UsageError: if the targets are not suitable.
        """
        if task is None or task == self.task:
            return self
        if self.reading.censored:
            check_censored(check_task(task))
        y, where = self.y, f"{self.name}: column {self.target_names[0]}"
        if self.task == "density":
            raise UsageError(f"{self.name}: no inputs, all columns are modelled; {task} needs a target beside inputs")
        if task == "density":
            again = self._as_rows(where)
        elif task == "regression":
            try:
                numbers = np.array([float(name) for name in self.class_names])
            except ValueError:
                raise UsageError(f"{where}: text, and regression predicts numbers; use another --target") from None
            again = replace(self, y=numbers[y, None].astype(np.float32), task="regression", class_names=())
        else:
            if y.shape[1] > 1:
                raise UsageError(f"{self.name}: {y.shape[1]} targets; classification has one column of labels")
            labels, names = training_labels(y[:, 0], self.name, self.target_names[0])
            again = replace(self, y=labels, task="classification", class_names=names)
        # Notes about the targets describe the choice of the old task.
        of_target = f"target {self.target_names[0]}: "
        again = replace(again, notes=tuple(note for note in self.notes if not note.startswith(of_target)))
        if self.test is None or task != "classification":
            return again if self.test is None else replace(again, test=self.test.as_task(task))
        codes = recoded(self.test.y, (), again.class_names, f"{self.name}: test rows")  # the test rows may lack a class
        return replace(again, test=replace(self.test, y=codes, task=again.task, class_names=again.class_names))

    def _as_rows(self, where: str) -> Dataset:
        """Return a density data set with inputs and targets side by side."""
        if self.task == "classification":
            raise UsageError(f"{where}: class labels, and a density is of numbers; --task regression reads numbers")
        if self.x.ndim > 2 or self.encoding is not None:
            raise UsageError(f"{self.name}: a density is of columns of plain numbers, [N, D]")
        names = (*self.feature_names, *self.target_names)
        return from_rows(np.concatenate([self.x, self.y], 1), name=self.name, names=names)


def _are_labels(y: NDArray[Any]) -> bool:
    """Whether targets are classes: text, booleans, or integers with few distinct values or exactly 0..C-1."""
    if y.size != y.shape[0] or y.dtype.kind not in "biuUO":
        return False
    if y.dtype.kind not in "iu":
        return True
    present = np.unique(y)
    counted = present.size <= MOST_CLASSES and np.array_equal(present, np.arange(present.size))
    return present.size <= MOST_INFERRED_CLASSES or bool(counted and 2 * present.size <= y.size)


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
    """Return a checked data set of x [N], [N, D], [N, H, W] or [N, C, H, W] and y [N] or [N, T].

    Without `task`, one target of text, booleans or integers is a label. Integers must have at most 20 distinct values,
    or
    be 0..C-1 with two rows each on average. Other targets are regression. For `density`, x and y are columns of one
    row.
    `where` (a file name) starts error messages. `censored` targets are [N, 2] or [N, T, 2], see `Dataset`.

    Raises:
        UsageError: if the data are invalid.
    """
    if censored:
        check_censored(check_task(task))
        bounds = bounds_of(y, len(np.atleast_1d(np.asarray(x))), f"{where}: y" if where else "y")
        ends = stand_in(bounds.astype(np.float64))
        known = from_arrays(
            x, ends, task="regression", name=name, feature_names=feature_names, target_names=target_names, where=where
        )
        return replace(known, y=bounds, reading=Reading(censored=True))
    if task == "density":
        read = from_arrays(x, y, task="regression", name=name, feature_names=feature_names, where=where)
        return replace(read, target_names=tuple(target_names) or read.target_names).as_task(task)
    prefix = f"{where}: " if where else ""
    names = tuple(feature_names) or tuple(str(column) for column in getattr(x, "columns", ()))
    inputs = as_inputs(x, f"{prefix}x", names)
    targets = label_array(y, f"{prefix}y")
    if targets.shape[0] != inputs.shape[0]:
        raise UsageError(f"{prefix}x has {inputs.shape[0]} rows and y has {targets.shape[0]}; they must be equal")
    if targets.ndim > 2 or 0 in targets.shape:
        raise UsageError(f"{prefix}y has shape {list(targets.shape)}; it must be [N] or [N, T]")

    chosen = check_task(task)
    if chosen is None:
        chosen = "classification" if _are_labels(targets) else "regression"
    num_targets = targets.size // targets.shape[0]
    open_ = task is None and num_targets == 1 and targets.dtype.kind in "iuf"
    note = note_of_numbers((*target_names, "y")[0], targets, chosen) if open_ else ""
    if chosen == "classification":
        if num_targets != 1:
            raise UsageError(f"{prefix}y has shape {list(targets.shape)}; labels must be [N] (one-hot: y.argmax(1))")
        targets, class_names = training_labels(targets.reshape(-1), f"{prefix}y")
    else:
        numbers = numeric_array(targets, f"{prefix}y")
        targets = finite_float32(numbers, f"{prefix}y").reshape(-1, num_targets)
        for column in numbers.reshape(-1, num_targets).T:
            refuse_coarse(column, f"{prefix}y")
        class_names = ()

    is_features = inputs.ndim == 2
    outputs = tuple(target_names) or (("y",) if num_targets == 1 else tuple(f"y{i}" for i in range(num_targets)))
    if is_features:
        names = names or tuple(f"x{i}" for i in range(inputs.shape[1]))
        for label, column in zip(names, np.asarray(x).reshape(inputs.shape).T, strict=True):
            refuse_coarse(column, f"{prefix}x: column {label}")
    if len(outputs) != num_targets:
        raise UsageError(f"{prefix}{len(outputs)} target names for {num_targets} targets")
    _warn_of_codes(inputs, names, targets, outputs, chosen, where or name)
    return Dataset(
        x=inputs,
        y=targets,
        task=chosen,
        feature_names=names if is_features else (),
        target_names=outputs,
        class_names=class_names,
        name=name,
        notes=(note,) if note else (),
    )


def _warn_of_codes(
    x: NDArray[Any], names: Sequence[str], y: NDArray[Any], outputs: Sequence[str], task: Task, where: str
) -> None:
    """Warn about array columns with values that look like codes for missing cells."""
    columns = [*zip(names, x.T, strict=True)] if x.ndim == 2 else []
    columns += [*zip(outputs, y.T, strict=True)] if task == "regression" else []
    codes = [code for name, column in columns for code in find_codes(name, column)]
    cure = "if it is, leave such rows out, or give a table with --missing-code"
    warn_of_codes(codes, outputs, where, instead=cure)


def from_rows(rows: ArrayLike, *, name: str = "arrays", names: Sequence[str] = (), where: str = "") -> Dataset:
    """Return a checked data set without inputs, for a density of all columns of the rows [N] or [N, D]."""
    place = f"{where}: x" if where else "x"
    values = as_inputs(rows, place, names)
    if values.ndim > 2:
        raise UsageError(
            f"{place} has shape {list(values.shape)}; a density is of columns [N, D]: x.reshape(len(x), -1)"
        )
    columns = tuple(names) or tuple(f"x{i}" for i in range(values.shape[1]))
    check_column_names(columns, place)
    return Dataset(values, values, "density", columns, columns, (), name)
