"""Targets of a table: their task, class labels, and numbers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from bnnzoo.data.checks.check import and_more, refuse_coarse
from bnnzoo.data.columns.cells import Cells, as_text
from bnnzoo.data.columns.faults import list_names
from bnnzoo.data.columns.levels import Decimal, level_positions
from bnnzoo.data.encoding.input_encoding import MAX_LEVELS
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.finding import setting

MAX_INFERRED_CLASSES = 20
"""Maximal number of distinct numbers of a target that is read as class labels by default."""
_MIN_ROWS = 30
"""Minimal number of rows for the warning that there are fewer than two rows per class."""
MAX_CLASSES = 1000
"""Maximal number of classes. The limit for text in a table is `MAX_LEVELS` instead."""
_LARGEST_LABEL = 2**53
"""Limit for labels that are numbers. Above it, float64 cannot distinguish adjacent whole numbers."""
_TAIL = 0.25
"""Minimal skewness of counts. A Poisson distribution with mean 16 has this skewness."""
TAKEN_AS_NUMBERS = "taken as numbers"
"""Part of the note about a target that is read as numbers. The note is removed if the user sets a likelihood."""


Task = Literal["regression", "classification", "density"]


class Targets(NamedTuple):
    """The targets of a table and their task.

    Attributes:
        y: for regression and density, numbers [N, T] float32; for classification, positions in `class_names` [N] int32.
            Censored targets are [N, T, 2].
        task: the task of the targets.
        class_names: the names of the classes; () for regression and density.
        note: a sentence for the user about the automatic choice of the task, or about censored targets; may be empty.
    """

    y: NDArray[Any]
    task: str
    class_names: tuple[str, ...] = ()
    note: str = ""


def targets_of(
    cells: Sequence[Cells], task: str | None, where: str, rows: Int[np.ndarray, " row"] | None = None
) -> Targets:
    """Return the targets of a training table.

    Args:
        cells: the columns of the targets.
        task: the task; None if the targets determine it.
        where: the name of the table in error messages.
        rows: the position of each row in the table, counted from 0; None if no row of the table was left out.

    Raises:
        UsageError: if the columns cannot be targets of the task.
    """
    if task == "classification" and len(cells) > 1:
        raise UsageError(
            f"{where}: classification needs one column of labels (got {len(cells)} targets); name one [[target]]"
        )
    target = cells[0]
    if len(cells) == 1 and (task == "classification" or (task is None and _are_labels(target))):
        y, names = _labels(target, where, rows)
        return Targets(y, "classification", names, _note(target, "classification", names) if task is None else "")
    for column in cells:
        if column.kind not in ("number", "boolean"):
            cell_kind = {"text": "text", "date": "dates", "time": "times of day"}[column.kind]
            remedy = "use [[task=classification]]" if len(cells) == 1 and column.kind == "text" else "give numbers"
            if task == "density":
                raise UsageError(
                    f"{where}: column {column.name}: {cell_kind} cannot be modelled by a density; use "
                    f"{setting('drop', column.name)}"
                )
            raise UsageError(f"{where}: column {column.name}: {cell_kind} cannot be a target of regression; {remedy}")
        refuse_coarse(column.numbers, f"{where}: column {column.name}")
    if task == "density":
        return Targets(np.stack([column.numbers for column in cells], 1).astype(np.float32), task)
    if any(column.bounds is not None for column in cells):
        return Targets(regression_targets(cells), "regression", (), _note_of_bounds(cells))
    note = _note(target, "regression", ()) if task is None and len(cells) == 1 else ""
    return Targets(regression_targets(cells), "regression", (), note)


def regression_targets(cells: Sequence[Cells]) -> Float[np.ndarray, "row target *bound"]:
    """Return columns of numbers as float32 [N, T].

    If a column is censored, the result is [N, T, 2]. The last axis then holds the smallest and the largest possible
    value of each cell.
    """
    if all(column.bounds is None for column in cells):
        return np.stack([column.numbers for column in cells], 1).astype(np.float32)
    bounds_by_column = [
        np.stack([column.numbers, column.numbers], -1) if column.bounds is None else column.bounds for column in cells
    ]
    return np.stack(bounds_by_column, 1).astype(np.float32)


def check_censored(task: Task | None) -> Task:
    """Return the task of censored targets.

    Raises:
        UsageError: if the task is not regression.
    """
    if task not in (None, "regression"):
        raise UsageError(f"[[censored=True]] requires [[task=regression]] (got {task})")
    return "regression"


def _note_of_bounds(cells: Sequence[Cells]) -> str:
    """Return a note with the numbers of cells of each target below a limit, above a limit, and in an interval."""
    parts = []
    for column in cells:
        bounds = np.stack([column.numbers] * 2, -1) if column.bounds is None else column.bounds
        low, high = bounds.T
        num_below, num_above = int(np.isinf(low).sum()), int(np.isinf(high).sum())
        num_between = int(np.sum(low < high)) - num_below - num_above
        counts = [(num_below, "below a limit"), (num_above, "above a limit"), (num_between, "in an interval")]
        count_text = ", ".join(f"{count} {where}" for count, where in counts if count) or "none"
        parts.append(f"target {column.name}: censored cells: {count_text} ({len(bounds)} cells in all)")
    return "; ".join(parts)


def _are_labels(target: Cells) -> bool:
    """Whether a target is text, booleans, or exactly the numbers 0..C-1 with 2 <= C <= 20."""
    if target.kind != "number":
        return target.kind in ("text", "boolean")
    present = np.unique(target.numbers)
    return 2 <= present.size <= MAX_INFERRED_CLASSES and bool(np.all(present == np.arange(present.size)))


def _labels(
    target: Cells, where: str, rows: Int[np.ndarray, " row"] | None
) -> tuple[Int[np.ndarray, " row"], tuple[str, ...]]:
    if target.kind in ("date", "time"):
        raise UsageError(
            f"{where}: column {target.name}: a {target.kind} cannot be a class label; give numbers or text"
        )
    if target.kind == "text":
        if len(target.levels) > MAX_LEVELS:
            raise UsageError(
                f"{where}: column {target.name}: text with {len(target.levels)} categories cannot be the target (at "
                f"most {MAX_LEVELS} classes); name another [[target]]"
            )
        names, codes = target.levels, target.numbers.astype(np.int32)
        _check_several(names, where, target.name)
        return codes, names
    if target.kind == "number" and np.nanmax(np.abs(target.numbers), initial=0) >= _LARGEST_LABEL:
        raise UsageError(
            f"{where}: column {target.name}: whole numbers from 2^53 on cannot be distinguished; write labels as text"
        )
    values = target.numbers.astype(bool) if target.kind == "boolean" else target.numbers
    return training_labels(values, where, target.name, rows)


def _note(target: Cells, task: str, names: Sequence[str]) -> str:
    """Return a note about the task of a single target, with the options that change it."""
    if target.kind != "number":
        return f"target {target.name}: classification with the classes {list_names(names)}" if names else ""
    return note_of_numbers(target.name, target.numbers, task)


def note_of_numbers(name: str, numbers: NDArray[Any], task: str) -> str:
    """Return a note about the task of a target of whole numbers, with the options that change the task.

    The note is empty if a number is not whole, or if the numbers look neither like classes nor like counts.
    """
    distinct = np.unique(numbers)
    if distinct.size < 2 or not np.all(distinct == np.floor(distinct)):
        return ""
    is_few, may_be_counts = distinct.size <= MAX_INFERRED_CLASSES, looks_like_counts(numbers)
    if not (is_few or may_be_counts):
        return ""
    description = f"{f'{distinct.size} ' if is_few else ''}whole numbers from {int(distinct[0])} to {int(distinct[-1])}"
    alternatives = ["[[likelihood=poisson]] or negative-binomial to read them as counts"] if may_be_counts else []
    if task == "classification":
        choice, alternatives = "taken as classes", ["[[task=regression]] to read them as numbers", *alternatives]
    else:
        choice = TAKEN_AS_NUMBERS
        alternatives = [*(["[[task=classification]] to read them as classes"] if is_few else []), *alternatives]
    return f"target {name}: {description}, {choice}; use {', '.join(alternatives)}"


def looks_like_counts(numbers: NDArray[Any]) -> bool:
    """Whether numbers may be counts.

    Counts are whole, are not negative, have a minimum near zero, and have a long right tail. Rounded amounts, such as
    prices in hundreds, are not counts because they have a common divisor. Years are not counts because they are far
    from zero.
    """
    values = np.asarray(numbers, np.float64).reshape(-1)
    if np.unique(values).size < 3 or values.min() < 0 or values.max() >= _LARGEST_LABEL:
        return False
    if not np.array_equal(values, np.floor(values)) or values.min() > values.mean() / 2:
        return False
    skewness = np.mean((values - values.mean()) ** 3) / values.std() ** 3
    return bool(skewness > _TAIL and np.gcd.reduce(values.astype(np.int64)) == 1)


def training_labels(
    y: NDArray[Any], where: str, column: str = "", rows: Int[np.ndarray, " row"] | None = None
) -> tuple[Int[np.ndarray, " row"], tuple[str, ...]]:
    """Return the class of each training label [N], and the class names in numerical or alphabetical order.

    The class of a label is its position in the class names. A warning is given if there are fewer than two rows per
    class. The arguments `where`, `column` and `rows` have the same meaning as in `codes_of`.

    Raises:
        UsageError: if a number is not whole, if all labels are equal, or if there are too many classes.
    """
    _check_whole(y, where, column, rows)
    names, codes = _distinct_labels(y)
    _check_several(names, where, column)
    if len(names) > MAX_CLASSES:
        raise UsageError(
            f"{_place(where, None, column)}: {len(names)} labels, but at most {MAX_CLASSES} classes are supported; "
            "use [[task=regression]]"
        )
    if 2 * len(names) > len(y) >= _MIN_ROWS:
        warnings.warn(
            f"{_place(where, None, column)}: {len(names)} classes in {len(y)} rows: with fewer than two rows per "
            "class, little can be learned; choose another [[target]], or merge classes",
            BnnzooWarning,
            stacklevel=3,
        )
    return codes, names


def check_labels(
    y: NDArray[Any], class_names: Sequence[str], where: str = "y", column: str = ""
) -> Int[np.ndarray, " row"]:
    """Return the position in `class_names` of each new label [N]. The labels need not contain every class.

    Raises:
        UsageError: if a label is a number that is not whole, or is not one of the classes. The message names the first
            such label.
    """
    _check_whole(y, where, column)
    return codes_of(*_distinct_labels(y), class_names, where, column)


def recode(
    y: NDArray[Any], own_names: Sequence[str], class_names: Sequence[str], where: str
) -> Int[np.ndarray, " row"]:
    """Convert class labels to positions in `class_names`.

    Args:
        y: the labels: positions [N] in `own_names`, or, if `own_names` is empty, numbers [N, 1].
        own_names: the names of the classes of `y`, or ().
        class_names: the names of the classes that the result refers to.
        where: the name of the targets in error messages.
    """
    return check_labels(np.asarray(own_names)[y] if own_names else y[:, 0], class_names, where)


def _distinct_labels(y: NDArray[Any]) -> tuple[tuple[str, ...], Int[np.ndarray, " row"]]:
    """Return the distinct labels as text, in numerical or alphabetical order, and the position of each row's label."""
    is_text = y.dtype.kind in "OU"
    distinct, codes = np.unique(y.astype(str) if is_text else y, return_inverse=True)
    label_texts = [as_text(label) for label in distinct]
    names = tuple(sorted(set(label_texts)) if is_text else label_texts)
    code_of_name = {name: code for code, name in enumerate(names)}
    return names, np.array([code_of_name[label] for label in label_texts], np.int32)[codes.reshape(-1)]


def codes_of(
    labels: Sequence[str],
    index: Int[np.ndarray, " row"],
    class_names: Sequence[str],
    where: str,
    column: str,
    rows: Int[np.ndarray, " row"] | None = None,
    decimal: Decimal = "",
) -> Int[np.ndarray, " row"]:
    """Return the position in `class_names` of the label of each row, which is `labels[index]`.

    Args:
        labels: the distinct labels.
        index: the position of each row's label in `labels`.
        class_names: the names of the classes.
        where: the name of the table in error messages.
        column: the name of the target.
        rows: the position of each row in the table, counted from 0; None if no row of the table was left out.
        decimal: the decimal mark of numbers in `labels`.

    Raises:
        UsageError: if a label is not one of the classes. The message names the first such label.
    """
    codes = np.array(level_positions(labels, class_names, decimal), np.int32)[index]
    unknown = np.flatnonzero(codes < 0)
    if unknown.size:
        first = int(unknown[0])
        row, label = first if rows is None else int(rows[first]), labels[index[first]]
        raise UsageError(
            f"{_place(where, row, column)}: label {label}{and_more(unknown.size - 1)} is not one of the model's "
            f"{len(class_names)} classes {list_names(class_names)}; drop the row, or train with that class"
        )
    return codes


def _check_several(names: Sequence[str], where: str, column: str) -> None:
    if len(names) < 2:
        raise UsageError(
            f"{_place(where, None, column)}: every row has label {names[0]}, but classification needs two classes; add "
            "rows of another class"
        )


def _check_whole(y: NDArray[Any], where: str, column: str, rows: Int[np.ndarray, " row"] | None = None) -> None:
    """Raise `UsageError` if a label is a number that is not whole."""
    if y.dtype.kind != "f":
        return
    with np.errstate(invalid="ignore"):
        fractional = np.flatnonzero(~(np.isfinite(y) & (y == np.floor(y))))
    if fractional.size:
        first = int(fractional[0])
        row = first if rows is None else int(rows[first])
        raise UsageError(
            f"{_place(where, row, column)}: label {float(y[first])!r} is not an "
            f"integer{and_more(fractional.size - 1)}; write labels as whole numbers or text, or use "
            "[[task=regression]]"
        )


def _place(where: str, row: int | None, column: str) -> str:
    """Return the place of a label for a message. `row` counts from 0; it is None for the whole column."""
    parts = [*([] if row is None else [f"row {row + 1}"]), *([f"column {column}"] if column else [])]
    return ": ".join(filter(None, (where, ", ".join(parts))))
