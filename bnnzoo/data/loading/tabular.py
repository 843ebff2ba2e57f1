"""Conversion of a table to checked inputs and targets, for training and for a trained model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from bnnzoo.data.checks.check import check_column_names
from bnnzoo.data.columns.cells import Cells
from bnnzoo.data.columns.codes import Code, find_codes, warnings_about_codes
from bnnzoo.data.columns.column_warnings import (
    warnings_about_dates,
    warnings_about_inputs,
    warnings_about_targets,
    warnings_about_text,
)
from bnnzoo.data.columns.faults import Faults, list_names
from bnnzoo.data.columns.levels import merge_equal_levels
from bnnzoo.data.columns.reading_options import Reading
from bnnzoo.data.columns.table import AbstractTable
from bnnzoo.data.encoding.input_encoding import MISSING_REMEDY, Encoding, Unseen, check_cells, check_exposure
from bnnzoo.data.encoding.targets import check_censored, codes_of, regression_targets, targets_of
from bnnzoo.data.loading.column_reading import encode, keep_rows, read_cells
from bnnzoo.data.loading.selection import ColumnChoice, check_known, select_categories, select_columns
from bnnzoo.data.rows.arrays import check_task
from bnnzoo.data.rows.dataset import Dataset, from_rows
from bnnzoo.data.rows.signature import Signature
from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.files import mapped
from bnnzoo.finding import setting, spell_settings, spelling


def training_set(table: AbstractTable, choice: ColumnChoice, task: str | None, name: str, kind: str = "") -> Dataset:
    """Return the training set of the selected columns of a table.

    Args:
        table: the table.
        choice: the options for reading the table.
        task: the task; None if the data determine it.
        name: the name of the data set in messages.
        kind: the required kind of the target cells, from `frame_pairs.join_frame`; "" if the cells determine it.

    Raises:
        UsageError: if an option is invalid, or if the data are. The message has one line for each kind of fault.
    """
    chosen_task, reading = check_task(task), choice.reading
    features, targets = select_columns(table, choice, chosen_task)
    categories = select_categories(table, choice.categories, features, targets)
    reading.check_codes(table.names, table.where)
    check_column_names(table.names, table.where, [*features, *targets])
    chosen_task = (chosen_task or ("regression" if choice.exposure else None)) if features else "density"
    if reading.censored:
        chosen_task = check_censored(chosen_task)
    faults = Faults(table, inputs=frozenset(features), targets=frozenset(targets if features else ()))
    kinds = ["text" if name in categories else "number" if name == choice.exposure else "" for name in features]
    kinds += ["number" if reading.censored else kind] * len(targets)
    cells = read_cells([*features, *targets], kinds, faults, reading, targets)
    num_features = len(features)
    input_remedy = MISSING_REMEDY if choice.missing == "error" else ""
    target_remedy = "" if choice.missing == "drop" else "drop such rows with [[missing=drop]]"
    num_plain_inputs = num_features - bool(choice.exposure)
    check_cells(cells[:num_plain_inputs], faults, missing=input_remedy)
    for exposure in cells[num_plain_inputs:num_features]:
        check_exposure(exposure, faults, missing=target_remedy)
    check_cells(cells[num_features:], faults, missing=target_remedy, empty="name another [[target]]")
    left_out, rows = "", None
    if choice.missing == "drop" and not faults.faults_by_column:
        remedy = f"{'use [[missing=median]], or ' if features else ''}leave out a column with [[drop]]"
        keep, left_out = _complete_rows(cells, table.where, remedy)
        cells, rows = [_keep_rows(column, keep) for column in cells], np.flatnonzero(keep)
    cells[:num_features] = [merge_equal_levels(column, table.decimal) for column in cells[:num_features]]
    encoding = Encoding.from_cells(cells[:num_features], choice.missing, choice.unseen, faults, choice.exposure)
    table_order = [name for name in table.names if name in features]
    if choice.exposure and table_order[-1] != choice.exposure:
        encoding = replace(encoding, exposure_place=table_order.index(choice.exposure))
    faults.check()
    remedy = "at least one of them encodes a category or missing cells of a table column; rename that column"
    check_column_names(encoding.inputs, f"{table.where}: inputs", remedy=remedy)
    table_targets = targets_of(cells[num_features:], chosen_task, table.where, rows)
    is_regression = bool(features) and table_targets.task == "regression"
    skip_option = None if left_out else table.skip_option
    for doubt in (
        *_doubts(cells[:num_plain_inputs], cells[num_features:], is_regression=is_regression),
        *warnings_about_text(cells, categories, targets, skip_option),
        *warnings_about_dates(cells[:num_plain_inputs] + cells[num_features:]),
        *warnings_about_codes(
            [code for column in cells[num_plain_inputs:num_features] for code in _codes_in(column)], ()
        ),
    ):
        warnings.warn(f"{table.where}: {doubt}", BnnzooWarning, stacklevel=4)
    numeric = [column.name for column in cells[:num_plain_inputs] if column.kind == "number"]
    sentences = [
        table.note,
        table_targets.note,
        *_encoding_notes(encoding),
        *_notes_of_zeros(table, numeric),
        *faults.notes,
    ]
    notes = tuple(spell_settings(sentence, spelling()) for sentence in sentences if sentence)
    if not features:
        density_rows = from_rows(table_targets.y, name=name, names=targets)
        return replace(density_rows, notes=notes, left_out=left_out, reading=_reading_used(table, reading))
    x = encode(encoding, cells[:num_features])
    return Dataset(
        x=x,
        y=mapped.store(table_targets.y) if mapped.is_mapped(x) else table_targets.y,
        task=check_task(table_targets.task) or "regression",
        feature_names=encoding.inputs,
        target_names=targets,
        class_names=table_targets.class_names,
        name=name,
        encoding=None if encoding == Encoding.of_numbers(encoding.inputs) else encoding,
        notes=notes,
        left_out=left_out,
        reading=_reading_used(table, reading),
    )


def _reading_used(table: AbstractTable, reading: Reading) -> Reading:
    """Return the options with which the table was read, including the detected separator and decimal mark."""
    return replace(table.reading, missing_code=reading.missing_code, censored=reading.censored)


def _doubts(inputs: Sequence[Cells], targets: Sequence[Cells], *, is_regression: bool) -> list[str]:
    """Return the texts of warnings about constant columns, identifiers, and codes for missing cells."""
    codes = [code for column in (*inputs, *targets) if column.kind == "number" for code in _codes_in(column)]
    target_names = [column.name for column in targets] if inputs else []
    return [
        *warnings_about_inputs(inputs or targets),
        *(warnings_about_targets(targets) if is_regression else []),
        *warnings_about_codes(codes, target_names),
    ]


def _codes_in(column: Cells) -> list[Code]:
    return find_codes(column.name, column.known)


def new_inputs(
    table: AbstractTable, signature: Signature, unseen: Unseen | None = None
) -> Float[np.ndarray, "row feature"]:
    """Return the inputs of a table for prediction. Columns are matched by name, and unknown columns are ignored.

    Raises:
        UsageError: if the data are invalid, or if a text level does not occur in the training rows and `unseen` is not
            "zero".
    """
    return _new_rows(table, signature, {}, unseen)[0]


def new_rows(
    table: AbstractTable, signature: Signature, targets: Sequence[str], unseen: Unseen | None = None, kind: str = ""
) -> Dataset:
    """Return the inputs and targets of a table for testing.

    If rows with missing cells were left out in training, such rows of this table are left out too.

    Args:
        table: the table.
        signature: the properties of the training data.
        targets: the names of the targets in the table.
        unseen: the treatment of unknown text levels; by default the option of the training run.
        kind: the required kind of the target cells, from `frame_pairs.join_frame`; by default "text" for
            classification and "number" for regression.

    Raises:
        UsageError: if the data are invalid, or if a label or a text level does not occur in the training rows.
    """
    if signature.task == "density":
        x = new_inputs(table, signature, unseen)
        return Dataset.from_signature(signature, x, x, table.where)
    kind = kind or ("text" if signature.task == "classification" else "number")
    x, cells, rows, left_out = _new_rows(table, signature, dict.fromkeys(targets, kind), unseen)
    if signature.task == "regression":
        y = regression_targets(cells)[rows]
    else:
        labels = cells[0]
        codes = labels.numbers[rows].astype(int)
        y = codes_of(labels.levels, codes, signature.class_names, table.where, targets[0], rows, table.decimal)
    return replace(Dataset.from_signature(signature, x, y, table.where), left_out=left_out)


def _new_rows(
    table: AbstractTable, signature: Signature, targets: Mapping[str, str], unseen: Unseen | None
) -> tuple[Float[np.ndarray, "kept feature"], list[Cells], Int[np.ndarray, " kept"], str]:
    """Return the inputs of the kept rows, the targets of all rows, the indices of the kept rows, and a sentence.

    Some rows with missing cells are left out, and the other rows are kept. The sentence reports how many rows are left
    out; it is empty if all rows are kept. `targets` maps the name of each target to the kind of its cells.
    """
    encoding = signature.encoding or Encoding.of_numbers(signature.feature_names)
    encoding = encoding if unseen is None else replace(encoding, unseen=unseen)
    features = [column.name for column in encoding.columns]
    if encoding.exposure and encoding.exposure not in table.names:
        raise UsageError(
            f"{table.where}: no column named {encoding.exposure}, the exposure of the training rows; add it, for "
            "example with 1 in every row to predict rates per unit of exposure"
        )
    check_known([*features, *targets], table)
    check_column_names(table.names, table.where, [*features, *targets])
    faults = Faults(table, trained=True, targets=frozenset(targets))
    kinds = [column.kind for column in encoding.columns] + [*targets.values()]
    cells = read_cells([*features, *targets], kinds, faults, signature.reading, [*targets])
    inputs, outputs = cells[: len(features)], cells[len(features) :]
    leave_out = encoding.missing == "drop" and bool(targets)
    missing_advice = "" if leave_out else "leave such rows out"
    input_advice = {
        "error": (
            "leave such rows out"
            if signature.task == "density"
            else "fill in missing cells, or train with [[missing=median]]"
        ),
        "drop": missing_advice,
        "median": "",
    }
    num_plain_inputs = len(inputs) - bool(encoding.exposure)
    for exposure in inputs[num_plain_inputs:]:
        check_exposure(exposure, faults, missing=missing_advice)
    check_cells(inputs[:num_plain_inputs], faults, missing=input_advice[encoding.missing])
    check_cells(outputs, faults, missing=missing_advice)
    is_complete = ~_has_missing(cells)
    inputs = encoding.match_levels(inputs, faults, is_complete if leave_out else np.ones_like(is_complete))
    faults.check()
    if not leave_out:
        return encode(encoding, inputs), outputs, np.arange(len(is_complete)), ""
    keep, left_out = _complete_rows(cells, table.where, "fill in missing cells, or train with [[missing=median]]")
    if left_out:
        warnings.warn(f"{table.where}: {left_out}", BnnzooWarning, stacklevel=2)
    kept_rows = np.flatnonzero(keep)
    return encode(encoding, [keep_rows(column, kept_rows) for column in inputs]), outputs, kept_rows, left_out


def _complete_rows(cells: Sequence[Cells], where: str, remedy: str) -> tuple[NDArray[np.bool_], str]:
    """Return a mask of the rows without missing cells, and a sentence about the other rows, which are left out.

    Raises:
        UsageError: if every row has a missing cell. The message ends with `remedy`.
    """
    keep = ~_has_missing(cells)
    if keep.all():
        return keep, ""
    missing_by_column = {column.name: column.is_missing for column in cells if column.is_missing.any()}
    counts = list_names(f"{name} ({int(rows.sum())})" for name, rows in missing_by_column.items())
    if not keep.any():
        raise UsageError(f"{where}: every row has a missing cell, in the columns {counts}; {remedy}")
    return keep, f"{int(np.sum(~keep))} of {keep.size} rows left out, because of missing cells in {counts}"


def _has_missing(cells: Sequence[Cells]) -> NDArray[np.bool_]:
    """Return a mask of the rows with a missing cell."""
    has_missing = np.zeros(len(cells[0].numbers), bool)
    for column in cells:
        has_missing |= column.is_missing
    return has_missing


def _keep_rows(column: Cells, keep: NDArray[np.bool_]) -> Cells:
    """Return the cells of the rows in the mask `keep`, without the levels that occur only in other rows."""
    if column.kind != "text":
        return keep_rows(column, np.flatnonzero(keep))
    used_levels, codes = np.unique(column.numbers[keep], return_inverse=True)
    return column.with_levels(codes.reshape(-1).astype(float), tuple(column.levels[int(code)] for code in used_levels))


def _notes_of_zeros(table: AbstractTable, names: Sequence[str]) -> list[str]:
    """Return notes about columns of numbers with leading zeros, because such numbers may be codes of categories."""
    return [
        f"column {name}: cells such as {cell} are read as numbers; if they are codes, use {setting('categories', name)}"
        for name, cell in table.zero_padded_cells(names).items()
    ]


def _encoding_notes(encoding: Encoding) -> list[str]:
    notes = []
    texts = [f"{c.name} ({len(c.levels)})" for c in encoding.columns if c.kind == "text"]
    if texts:
        notes.append(f"text columns, one input per category: {list_names(texts)}")
    for column in encoding.columns:
        marks = [level for level in column.levels if not any(map(str.isalnum, level))]
        if len(marks) == 1 and len(column.levels) > 1:
            code = setting("missing_code", f"{column.name}={marks[0]}")
            notes.append(
                f"column {column.name}: {marks[0]!r} is a category; if it stands for a missing cell, use {code}"
            )
        if column.kind == "date":
            day = np.datetime64(0, "D") + np.timedelta64(int(column.origin // 1), "D")
            notes.append(f"column {column.name}: dates, as days since {day}")
        if column.kind == "time":
            notes.append(f"column {column.name}: times of day, in hours")
        if column.kind == "number" and column.origin:
            origin = f"{column.origin:.17g}"
            notes.append(
                f"column {column.name}: {origin} is subtracted, because float32 would lose digits of its numbers"
            )
    return notes
