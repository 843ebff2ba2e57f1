"""A data set on the host: inputs, targets and what they mean; and the way from plain arrays to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnnzoo.data.check import check_column_names, finite_float32, training_labels
from bnnzoo.errors import UsageError

Task = Literal["regression", "classification"]


class Signature(NamedTuple):
    """What new data must look like to be used with a model trained on a data set."""

    feature_names: tuple[str, ...]
    shape: tuple[int, ...]  # of one input, without N
    dtype: str  # "float32" or "uint8"
    target_names: tuple[str, ...]
    task: Task
    num_classes: int


@dataclass(frozen=True, eq=False)
class Dataset:
    """N inputs and their targets, checked where they were made (`from_arrays`, `load`).

    x: features [N, D] float32, or images [N, H, W] or [N, C, H, W], float32 or uint8.
    y: regression [N, T] float32, classification [N] int32 with labels 0..num_classes-1.
    feature_names: D names; () for images. target_names: T names, one for classification.
    num_classes: 0 for regression.
    test: the test set that belongs to the data, where there is one; `split` prefers it to a random one.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    task: Task
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    num_classes: int
    name: str
    test: Dataset | None = None

    @property
    def num_data(self) -> int:
        return self.x.shape[0]

    @property
    def signature(self) -> Signature:
        return Signature(
            feature_names=self.feature_names,
            shape=self.x.shape[1:],
            dtype=self.x.dtype.name,
            target_names=self.target_names,
            task=self.task,
            num_classes=self.num_classes,
        )

    def take(self, indices: ArrayLike) -> Dataset:
        """The rows `indices` [M], in that order, without the test set."""
        rows = np.asarray(indices)
        return Dataset(
            x=self.x[rows],
            y=self.y[rows],
            task=self.task,
            feature_names=self.feature_names,
            target_names=self.target_names,
            num_classes=self.num_classes,
            name=self.name,
        )


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    task: str | None = None,
    name: str = "arrays",
    feature_names: Sequence[str] = (),
    target_names: Sequence[str] = (),
    where: str = "",
) -> Dataset:
    """A checked data set from x [N], [N, D], [N, H, W] or [N, C, H, W] and y [N] or [N, T].

    Without `task`, whole-number dtypes with one target are labels and everything else is regression. `where`
    opens the error messages (a file name).
    """
    prefix = f"{where}: " if where else ""
    names = tuple(feature_names) or tuple(str(column) for column in getattr(x, "columns", ()))
    inputs = as_inputs(x, f"{prefix}x", names)
    targets = numeric_array(y, f"{prefix}y")
    if targets.shape[0] != inputs.shape[0]:
        raise UsageError(f"{prefix}x has {inputs.shape[0]} rows and y has {targets.shape[0]}; they must be equal")
    if targets.ndim > 2 or 0 in targets.shape:
        raise UsageError(f"{prefix}y has shape {list(targets.shape)}; it must be [N] or [N, T]")

    chosen = check_task(task)
    if chosen is None:
        whole = targets.dtype.kind in "biu" and targets.size == targets.shape[0]
        chosen = "classification" if whole else "regression"
    num_targets = targets.size // targets.shape[0]
    if chosen == "classification":
        if num_targets != 1:
            raise UsageError(f"{prefix}y has shape {list(targets.shape)}; labels must be [N] (one-hot: y.argmax(1))")
        labels, num_classes = training_labels(targets.reshape(-1), f"{prefix}y")
        targets = labels
    else:
        targets = finite_float32(targets, f"{prefix}y").reshape(-1, num_targets)
        num_classes = 0

    is_features = inputs.ndim == 2
    if is_features and not names:
        names = tuple(f"x{i}" for i in range(inputs.shape[1]))
    outputs = tuple(target_names) or (("y",) if num_targets == 1 else tuple(f"y{i}" for i in range(num_targets)))
    if len(outputs) != num_targets:
        raise UsageError(f"{prefix}{len(outputs)} target names for {num_targets} targets")
    return Dataset(
        x=inputs,
        y=targets,
        task=chosen,
        feature_names=names if is_features else (),
        target_names=outputs,
        num_classes=num_classes,
        name=name,
    )


def as_inputs(x: ArrayLike, where: str = "x", feature_names: Sequence[str] = ()) -> NDArray[Any]:
    """x as checked inputs [N, ...]: uint8 images stay as they are, everything else becomes finite float32."""
    array = numeric_array(x, where)
    if array.ndim == 1:
        array = array.reshape(-1, 1)
    if array.ndim > 4 or 0 in array.shape:
        raise UsageError(
            f"{where} has shape {list(array.shape)}; it must be features [N, D] or images [N, H, W] or [N, C, H, W]"
        )
    if feature_names and array.ndim == 2:
        if len(feature_names) != array.shape[1]:
            raise UsageError(f"{where} has {array.shape[1]} columns but {len(feature_names)} names")
        check_column_names(feature_names, where)
    if array.dtype == np.uint8 and array.ndim > 2:
        return np.ascontiguousarray(array)
    return finite_float32(array, where, feature_names if array.ndim == 2 else ())


def numeric_array(values: ArrayLike, where: str) -> NDArray[Any]:
    """`values` as an array [N, ...], N >= 1, of booleans, whole numbers or floats and nothing else."""
    if np.ma.is_masked(values):
        raise UsageError(f"{where} is a masked array; fill in or drop the masked entries")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{where} is not an array of numbers; its rows must have equal lengths") from error
    if array.dtype.kind not in "biuf":
        raise UsageError(f"{where} has dtype {array.dtype}, not numbers; convert it with x.astype('float32')")
    if array.ndim == 0:
        raise UsageError(f"{where} is a single number; it must have one row a datum")
    if array.shape[0] == 0:
        raise UsageError(f"{where} is empty; it must have at least one row")
    return array


def check_task(task: str | None) -> Task | None:
    """`task` if it is one of the two, or None."""
    if task not in (None, "regression", "classification"):
        raise UsageError(f"task {task!r} is unknown; it is regression or classification")
    return cast("Task | None", task)
