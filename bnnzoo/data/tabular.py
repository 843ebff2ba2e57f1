"""From a table to checked inputs and targets: for training, and for a trained model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from bnnzoo.data.check import check_column_names, did_you_mean
from bnnzoo.data.columns import Cells, interpret, one_level_a_value
from bnnzoo.data.dataset import Dataset, Signature, check_task, from_rows
from bnnzoo.data.encoding import MISSING_CURE, Encoding, Missing, Unseen, check_cells, check_exposure
from bnnzoo.data.faults import Faults, listed
from bnnzoo.data.frames import FrameTable, is_frame
from bnnzoo.data.readers import Table
from bnnzoo.data.targets import codes_of, targets_of
from bnnzoo.errors import BnnzooWarning, UsageError

_FEWEST_IDENTIFIED = 20
"""Fewer rows than this may all differ by chance."""


class Choice(NamedTuple):
    """What is taken of a table: the options of the command line of the same names."""

    target: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    missing: Missing = "error"
    unseen: Unseen = "error"
    exposure: str = ""


def training_set(table: Table, choice: Choice, task: str | None, name: str, kind: str = "") -> Dataset:
    """The data set that a table and what is taken of it make. `kind` is that of the targets, where `joined` knew it.

    Raises:
        UsageError: a line for each kind of thing that is wrong, with every column that has it.
    """
    chosen = check_task(task)
    features, targets = _chosen(table, choice, chosen)
    categories = _categories(table, choice.categories, features, targets)
    check_column_names(table.names, table.where, [*features, *targets])
    chosen = chosen if features else "density"
    faults = Faults(table.where, inputs=frozenset(features))
    kinds = ["text" if name in categories else "" for name in features] + [kind] * len(targets)
    cells = _read(table, [*features, *targets], kinds, faults)
    split = len(features)
    missing = MISSING_CURE if choice.missing == "error" else ""
    no_median = "" if choice.missing == "drop" else "--missing drop leaves such rows out"
    inputs = split - bool(choice.exposure)
    check_cells(cells[:inputs], faults, table.shown, missing=missing)
    for exposure in cells[inputs:split]:
        check_exposure(exposure, faults, table.shown, missing=no_median)
    check_cells(cells[split:], faults, table.shown, missing=no_median, empty="name another --target")
    left_out = ""
    if choice.missing == "drop" and not faults.by_column:
        keep, left_out = _complete(cells, table.where, "--missing median, or --drop a column")
        cells = [_kept(column, keep) for column in cells]
    cells[:split] = [one_level_a_value(column) for column in cells[:split]]
    encoding = Encoding.of(cells[:split], choice.missing, choice.unseen, faults, choice.exposure)
    faults.check()
    check_column_names(encoding.inputs, f"{table.where}: inputs")
    found = targets_of(cells[split:], chosen, table.where)
    _warn(cells[:inputs] if features else cells, table.where)
    if features and found.task == "regression":
        _warn_of_targets(cells[split:], table.where)
    notes = (*filter(None, [found.note]), *_encoding_notes(encoding))
    if not features:
        return replace(from_rows(found.y, name=name, names=targets), notes=notes, left_out=left_out)
    return Dataset(
        x=encoding.encode(cells[:split]),
        y=found.y,
        task=check_task(found.task) or "regression",
        feature_names=encoding.inputs,
        target_names=targets,
        class_names=found.class_names,
        name=name,
        encoding=None if encoding == Encoding.of_numbers(encoding.inputs) else encoding,
        notes=notes,
        left_out=left_out,
    )


def new_inputs(table: Table, like: Signature, unseen: Unseen | None = None) -> Float[np.ndarray, "row feature"]:
    """The inputs of a table to predict for: the training columns by name, whatever others there are.

    Raises:
        UsageError: as `training_set`; also for levels that training did not see.
    """
    return _new_rows(table, like, {}, unseen)[0]


def new_rows(
    table: Table, like: Signature, targets: Sequence[str], unseen: Unseen | None = None, kind: str = ""
) -> Dataset:
    """The inputs and targets of a table to test on; rows with missing cells are left out where training did so.

    `kind` is that of the targets, where `joined` knew it.
    """
    if like.task == "density":
        x = new_inputs(table, like, unseen)
        return like.rows(x, x, table.where)
    kind = kind or ("text" if like.task == "classification" else "number")
    x, cells, rows = _new_rows(table, like, dict.fromkeys(targets, kind), unseen)
    if like.task == "regression":
        y = np.stack([column.numbers for column in cells], 1)[rows].astype(np.float32)
    else:
        labels = cells[0]
        y = codes_of(labels.levels, labels.numbers[rows].astype(int), like.class_names, table.where, targets[0], rows)
    return like.rows(x, y, table.where)


def _new_rows(
    table: Table, like: Signature, targets: Mapping[str, str], unseen: Unseen | None
) -> tuple[Float[np.ndarray, "kept feature"], list[Cells], Int[np.ndarray, " kept"]]:
    """The inputs of the rows that are kept, the targets (kinds by name) of all rows, and which rows are kept."""
    encoding = like.encoding or Encoding.of_numbers(like.feature_names)
    encoding = encoding if unseen is None else replace(encoding, unseen=unseen)
    features = [column.name for column in encoding.columns]
    if encoding.exposure and encoding.exposure not in table.names:
        raise UsageError(
            f"{table.where}: no column named {encoding.exposure}, the exposure that rates are multiplied by; add it "
            "(1 in every row for rates per unit)"
        )
    _find([*features, *targets], table)
    check_column_names(table.names, table.where, [*features, *targets])
    faults = Faults(table.where, trained=True)
    kinds = [column.kind for column in encoding.columns] + [*targets.values()]
    cells = _read(table, [*features, *targets], kinds, faults)
    inputs, outputs = cells[: len(features)], cells[len(features) :]
    leave_out = encoding.missing == "drop" and bool(targets)
    cure = "leave such rows out" if encoding.missing == "drop" else "fill them in, or train with --missing median"
    absent = "" if leave_out else "leave such rows out"
    plain = len(inputs) - bool(encoding.exposure)
    for exposure in inputs[plain:]:
        check_exposure(exposure, faults, table.shown, missing=absent)
    if encoding.missing != "median" and not leave_out:
        check_cells(inputs[:plain], faults, table.shown, missing=cure, trained=True)
    else:
        check_cells(inputs[:plain], faults, table.shown, missing="", trained=True)
    check_cells(outputs, faults, table.shown, missing=absent, trained=True)
    complete = ~np.any([column.is_missing for column in cells], 0)
    inputs = encoding.held_to(inputs, faults, complete if leave_out else np.ones_like(complete))
    faults.check()
    if not leave_out:
        return encoding.encode(inputs), outputs, np.arange(len(complete))
    keep, left_out = _complete(cells, table.where, "fill some in, or train with --missing median")
    if left_out:
        warnings.warn(f"{table.where}: {left_out}", BnnzooWarning, stacklevel=2)
    kept = [column._replace(numbers=column.numbers[keep]) for column in inputs]
    return encoding.encode(kept), outputs, np.flatnonzero(keep)


def _read(table: Table, names: Sequence[str], kinds: Sequence[str], faults: Faults) -> list[Cells]:
    frame = table.frame(names, [name for name, kind in zip(names, kinds, strict=True) if kind == "text"])
    return [
        interpret(name, series, faults, shown=lambda row, name=name: table.shown(row, name), kind=kind)
        for name, kind, (_, series) in zip(names, kinds, frame.items(), strict=True)
    ]


def _chosen(table: Table, choice: Choice, task: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the inputs' columns and of the targets: of a density no inputs, and all that are named, or all."""
    where = table.where
    target, columns, drop = (_expanded(names, table) for names in (choice.target, choice.columns, choice.drop))
    _find([*target, *columns, *drop], table)
    if len(set(target)) < len(target):
        raise UsageError(f"{where}: a target is given twice ({', '.join(target)}); name each once")
    for name in drop:
        if name in target:
            raise UsageError(f"{where}: column {name} is the target and dropped; it can be one of the two")
        if name in columns:
            raise UsageError(f"{where}: column {name} is asked for and dropped; it can be one of the two")
    exposure = (choice.exposure,) if choice.exposure else ()
    if exposure:
        _check_exposed(choice.exposure, table, target, drop, task)
    left = [name for name in table.names if name not in {*drop, *exposure}]
    if not left:
        raise UsageError(f"{where}: every column is dropped; keep some")
    wanted = set(columns or left)
    if task == "density":
        return (), target or tuple(name for name in left if name in wanted)
    targets = target or (left[-1],)
    features = tuple(name for name in left if name in wanted and name not in targets)
    if not features and (task or not target):
        raise UsageError(
            f"{where}: no columns left for features beside the target {', '.join(targets)}; add one, "
            "or ask for --task density"
        )
    return (*features, *exposure) if features else (), targets


def _check_exposed(exposure: str, table: Table, target: Sequence[str], drop: Sequence[str], task: str | None) -> None:
    """Refuse an exposure that is no input column of a regression."""
    _find([exposure], table)
    if task in ("density", "classification"):
        raise UsageError(f"{table.where}: --exposure {exposure} is for counts, and --task {task} has none; drop one")
    for names, what in ((target, "the target"), (drop, "dropped")):
        if exposure in names:
            raise UsageError(f"{table.where}: column {exposure} is the exposure and {what}; it can be one of the two")


def _categories(table: Table, names: Sequence[str], features: Sequence[str], targets: Sequence[str]) -> tuple[str, ...]:
    """The names of the inputs that are categories because the user says so."""
    categories = _expanded(names, table)
    _find(categories, table)
    for name in categories:
        if name not in features:
            what = "is the target" if name in targets and features else "is no input"
            cure = "--task classification takes its cells as classes" if name in targets and features else "take it in"
            raise UsageError(f"{table.where}: column {name} is asked for as a category and {what}; {cure}")
    return categories


def _expanded(names: Sequence[str], table: Table) -> tuple[str, ...]:
    """Names as given, and those of `a,b` where no column is called so."""
    return tuple(
        part
        for name in names
        for part in ([name] if name in table.names else [piece.strip() for piece in name.split(",") if piece.strip()])
    )


def _find(names: Sequence[str], table: Table) -> None:
    known = set(table.names)
    absent = [name for name in names if name not in known]
    if len(absent) == 1:
        raise UsageError(f"{table.where}: no column named {absent[0]}; {did_you_mean(absent[0], table.names)}")
    if absent:
        raise UsageError(f"{table.where}: no columns named {listed(absent)}; {did_you_mean(absent[0], table.names)}")


def _complete(cells: Sequence[Cells], where: str, cure: str) -> tuple[NDArray[np.bool_], str]:
    """The rows in which no cell is missing, and a sentence of the others; `cure` is for none."""
    keep = ~np.any([column.is_missing for column in cells], 0)
    if keep.all():
        return keep, ""
    absent = {column.name: column.is_missing for column in cells if column.is_missing.any()}
    counts = listed(f"{name} ({int(rows.sum())})" for name, rows in absent.items())
    if not keep.any():
        raise UsageError(f"{where}: every row has a missing cell, in {counts}; {cure}")
    return keep, f"{int(np.sum(~keep))} of {keep.size} rows left out: missing cells in {counts}"


def _kept(column: Cells, keep: NDArray[np.bool_]) -> Cells:
    """The cells of rows to train on: levels that only the others have are none."""
    if column.kind != "text":
        return column._replace(numbers=column.numbers[keep])
    used, codes = np.unique(column.numbers[keep], return_inverse=True)
    return column._replace(
        numbers=codes.reshape(-1).astype(float), levels=tuple(column.levels[int(code)] for code in used)
    )


def _warn(cells: Sequence[Cells], where: str) -> None:
    """Of columns that say nothing about other rows."""
    found: dict[str, list[str]] = {"constant": [], "identifier": []}
    for column in cells:
        present = column.numbers[~column.is_missing]
        if len(present) < 2:
            continue
        if present.max() == present.min():
            found["constant"] += [] if column.is_missing.any() else [column.name]
        elif len(present) >= _FEWEST_IDENTIFIED and column.kind in ("number", "text"):
            whole = column.kind == "text" or np.array_equal(present, np.floor(present))
            if whole and len(np.unique(present)) == len(present):
                found["identifier"].append(column.name)
    for kind, what in (
        ("constant", "the same in every row: they say nothing"),
        ("identifier", "different in every row, as identifiers are"),
    ):
        if found[kind]:
            names = listed(found[kind])
            noun = "column" if len(found[kind]) == 1 else "columns"
            warnings.warn(f"{where}: {noun} {names}: {what}; --drop NAME leaves one out", BnnzooWarning, stacklevel=2)


def _warn_of_targets(cells: Sequence[Cells], where: str) -> None:
    """Of those that leave nothing to predict."""
    constant = [c.name for c in cells if len(c.numbers) > 1 and np.nanmax(c.numbers) == np.nanmin(c.numbers)]
    if constant:
        text = f"{where}: target {listed(constant)}: the same in every row: there is nothing to predict"
        warnings.warn(text, BnnzooWarning, stacklevel=3)


def _encoding_notes(encoding: Encoding) -> list[str]:
    notes = []
    texts = [f"{c.name} ({len(c.levels)})" for c in encoding.columns if c.kind == "text"]
    if texts:
        notes.append(f"text, an input for each level: {listed(texts)}")
    for column in encoding.columns:
        if column.kind == "date":
            day = np.datetime64(0, "D") + np.timedelta64(int(column.origin // 1), "D")
            notes.append(f"column {column.name}: dates, counted in days since {day}")
        if column.kind == "time":
            notes.append(f"column {column.name}: times of day, counted in hours")
        if column.kind == "number" and column.origin:
            origin = f"{column.origin:.17g}"
            notes.append(f"column {column.name}: counted from {origin}, for float32 to tell its numbers apart")
    return notes


def joined(x: Any, y: Any, task: str | None) -> tuple[Any, tuple[str, ...], str]:
    """A data frame of inputs and their targets, arrays or a series or a frame, as one frame; the targets' names; and
    their kind: text that is no frame is class labels, as in arrays, whatever numbers or gaps it could be.
    """
    import pandas as pd

    _check_labels_of_rows(x, y)
    inputs = FrameTable(x, "x")
    check_column_names(inputs.names, "x")
    frame = inputs.frame(inputs.names).copy()
    columns: dict[str, Any]
    kind = ""
    if is_frame(y):
        targets = FrameTable(y, "y")
        check_column_names(targets.names, "y")
        columns = {str(name): series.array for name, series in targets.frame(targets.names).items()}
    else:
        array, given = getattr(y, "array", np.asarray(y)), getattr(y, "name", None)
        several = array.T if array.ndim == 2 else [array]
        name = "y" if given is None else str(given)
        while given is None and _clashes(name, len(several), inputs.names):
            name += "_"  # one that has no name takes one that is free
        columns = {name if len(several) == 1 else f"{name}{i}": column for i, column in enumerate(several)}
        if task in (None, "classification") and pd.api.types.infer_dtype(array, skipna=True) == "string":
            kind = "label"
    for name, column in columns.items():
        if name in frame:
            raise UsageError(f"y: its name, {name}, is also that of a column of x; rename it")
        if column.shape != (len(frame),):
            raise UsageError(f"y: shape {list(column.shape)} for the {len(frame)} rows of x; they must be as many")
    for name, column in columns.items():
        frame[name] = column
    return frame, tuple(columns), kind


def _clashes(name: str, count: int, taken: Sequence[str]) -> bool:
    return bool({name if count == 1 else f"{name}{i}" for i in range(count)} & set(taken))


def _check_labels_of_rows(x: Any, y: Any) -> None:
    """Refuse rows that pandas labels alike in another order: they are paired by their place."""
    import pandas as pd

    if not (isinstance(x, pd.DataFrame) and isinstance(y, pd.Series | pd.DataFrame)) or len(x) != len(y):
        return
    one, two = x.index, y.index
    if one.is_unique and two.is_unique and not one.equals(two) and one.isin(two).all():
        raise UsageError("x and y: their rows have the same labels (index) in another order; give y.loc[x.index]")
