"""Selection of the columns of a table by name: inputs, targets and categories."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bnnzoo.data.checks.check import did_you_mean
from bnnzoo.data.columns.faults import list_names
from bnnzoo.data.columns.reading_options import PLAIN, Reading
from bnnzoo.data.columns.table import AbstractTable
from bnnzoo.data.encoding.input_encoding import Encoding, Missing, Unseen
from bnnzoo.data.rows.signature import Signature
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting


class ColumnChoice(NamedTuple):
    """The options for reading a table. The options on the command line have the same names.

    Attributes:
        target: the target columns (default: the last column).
        columns: the input columns (default: all columns that are not targets). For a density without `target`, these
            are the columns to model.
        drop: the columns to leave out.
        categories: the input columns that are read as categories even if their cells are numbers. Each category becomes
            one input.
        missing: the treatment of missing cells: "error" reports an error, "drop" leaves out their rows, and "median"
            replaces missing numbers by the median of the training rows.
        unseen: the treatment of text levels in new rows that do not occur in the training rows: "error" reports an
            error, and "zero" sets all inputs of the column to zero.
        exposure: a column of positive numbers to which the expected counts are proportional; "" for none.
        reading: the options for the notation of cells.
    """

    target: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    missing: Missing = "error"
    unseen: Unseen = "error"
    exposure: str = ""
    reading: Reading = PLAIN

    @classmethod
    def from_options(cls, *, exposure: Any = None, **options: Any) -> ColumnChoice:
        """Return the options with column names converted to text. In a data frame, column names may be numbers."""
        options |= {key: _names(options[key]) for key in ("target", "columns", "drop", "categories") if key in options}
        return cls(**options, exposure="".join(_names(exposure or "")))


NO_CHOICE = ColumnChoice()
"""The options with their default values."""


def _names(names: Any) -> tuple[str, ...]:
    """Return one name or several names as a tuple of texts."""
    name_list = names if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    return tuple(unicodedata.normalize("NFC", str(name)) for name in name_list)


def select_columns(
    table: AbstractTable, choice: ColumnChoice, task: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the input columns and the names of the targets.

    A density has no inputs. Its targets are the columns that the user named, or all columns.

    Raises:
        UsageError: if a name is unknown or a target is repeated, if two options conflict, or if no column is left.
    """
    where = table.where
    target, columns, drop = (_expand_names(names, table) for names in (choice.target, choice.columns, choice.drop))
    check_known([*target, *columns, *drop], table)
    if len(set(target)) < len(target):
        raise UsageError(f"{where}: a target is named twice ({', '.join(target)}); name each once")
    for name in drop:
        if name in target:
            raise UsageError(f"{where}: column {name} is both the target and dropped; choose one")
        if name in columns:
            raise UsageError(f"{where}: column {name} is both selected and dropped; choose one")
    exposure = (choice.exposure,) if choice.exposure else ()
    if exposure:
        _check_exposure_column(choice.exposure, table, target, drop, task)
    available_names = [name for name in table.names if name not in {*drop, *exposure}]
    if not available_names:
        raise UsageError(f"{where}: every column is dropped; keep at least one")
    wanted_names = set(columns or available_names)
    if task == "density":
        return (), target or tuple(name for name in available_names if name in wanted_names)
    targets = target or (available_names[-1],)
    features = tuple(name for name in available_names if name in wanted_names and name not in targets)
    if not features and exposure:
        raise UsageError(
            f"{where}: no columns are left for inputs beside the target {', '.join(targets)} and the exposure "
            f"{choice.exposure}; add a column"
        )
    if not features and (task or not target):
        raise UsageError(
            f"{where}: no columns are left for inputs beside the target {', '.join(targets)}; add a column, or "
            "use [[task=density]]"
        )
    return (*features, *exposure), targets


def _check_exposure_column(
    exposure: str, table: AbstractTable, target: Sequence[str], drop: Sequence[str], task: str | None
) -> None:
    """Raise `UsageError` if the exposure is not a column, is a target or is dropped, or if the task has no counts."""
    check_known([exposure], table)
    if task in ("density", "classification"):
        raise UsageError(
            f"{table.where}: {setting('exposure', exposure)} is for counts, but {setting('task', task)} has no "
            "counts; remove one of the two options"
        )
    for names, role in ((target, "the target"), (drop, "dropped")):
        if exposure in names:
            raise UsageError(f"{table.where}: column {exposure} is both the exposure and {role}; choose one")


def refuse_table_options(spec: Any, choice: ColumnChoice) -> None:
    """Check that no option for tables is set. The data `spec` are not a table.

    Raises:
        UsageError: if such an option is set.
    """
    reading = choice.reading
    if choice == ColumnChoice(reading=Reading(censored=reading.censored)):
        return
    where = spec if isinstance(spec, str | Path) else "data"
    table_options = {
        "missing_code": reading.missing_code,
        "missing": choice.missing != "error",
        "unseen": choice.unseen != "error",
    }
    given_options = [setting(option) for option, is_given in table_options.items() if is_given]
    problem = f"{' and '.join(given_options)} can be used with" if given_options else "columns can be selected in"
    tables = "tables only (.csv .tsv .parquet .pq .arrow .feather .npy, data frames)"
    raise UsageError(f"{where}: {problem} {tables}; remove the options for tables")


def select_categories(
    table: AbstractTable, names: Sequence[str], features: Sequence[str], targets: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the inputs that the user declared as categories.

    Raises:
        UsageError: if a declared column is unknown or is not an input.
    """
    categories = _expand_names(names, table)
    check_known(categories, table)
    for name in categories:
        if name not in features:
            problem = "is the target" if name in targets and features else "is not an input"
            remedy = (
                "use [[task=classification]] to read its cells as classes"
                if name in targets and features
                else "select it as an input"
            )
            raise UsageError(f"{table.where}: column {name} cannot be a category, because it {problem}; {remedy}")
    return categories


def check_same_columns(table: AbstractTable, choice: ColumnChoice, signature: Signature) -> None:
    """Check that the options of the user select the same columns as the earlier run whose draws determine the prior.

    Raises:
        UsageError: if a selected column has another role in the earlier run, or if `missing_code` names an unknown
            column.
    """
    choice.reading.check_codes(table.names, table.where)
    encoding = signature.encoding or Encoding.of_numbers(signature.feature_names)
    plain_inputs = [column.name for column in encoding.columns if not column.exposure]
    is_density = signature.task == "density"
    texts = [column.name for column in encoding.columns if column.kind == "text"]
    used_columns = [*plain_inputs, *signature.target_names, signature.exposure]
    selected_columns = {
        name: _expand_names(getattr(choice, name), table) for name in ("target", "columns", "categories", "drop")
    }
    expected = {"target": list(signature.target_names), "columns": plain_inputs, "exposure": [signature.exposure]}
    if is_density and choice.columns and choice.target:
        del selected_columns["columns"]  # the targets are the columns of the density
    for name, names in {**selected_columns, "exposure": tuple(filter(None, (choice.exposure,)))}.items():
        if name in expected and names and set(names) != set(expected[name]):
            earlier = list_names(filter(None, expected[name])) or "none"
            raise UsageError(
                f"{table.where}: {setting(name, list_names(names))}: must select the columns of the run of "
                f"[[prior_from]] ({earlier}); remove the option"
            )
    for name in selected_columns["categories"]:
        if name not in texts:
            raise UsageError(
                f"{table.where}: {setting('categories', name)}: the column has no categories in the run of "
                "[[prior_from]]; remove the option"
            )
    for name in selected_columns["drop"]:
        if name in used_columns:
            raise UsageError(
                f"{table.where}: {setting('drop', name)}: the run of [[prior_from]] uses this column; remove the option"
            )


def _expand_names(names: Sequence[str], table: AbstractTable) -> tuple[str, ...]:
    """Split names of the form `a,b` into several names, unless a column has the name `a,b`.

    Raises:
        UsageError: if a list has an empty entry.
    """
    expanded: list[str] = []
    for name in names:
        pieces = [name] if name in table.names else [piece.strip() for piece in name.split(",")]
        if "" in pieces:
            raise UsageError(f"{table.where}: {name!r} is a list of columns with an empty entry; write the list as a,b")
        expanded += pieces
    return tuple(expanded)


def check_known(names: Sequence[str], table: AbstractTable) -> None:
    """Check that every name is a column of the table.

    Raises:
        UsageError: if a name is unknown.
    """
    table_names = set(table.names)
    missing_names = [name for name in names if name not in table_names]
    if len(missing_names) == 1:
        raise UsageError(
            f"{table.where}: no column named {missing_names[0]}; {did_you_mean(missing_names[0], table.names)}"
        )
    if missing_names:
        raise UsageError(
            f"{table.where}: no columns named {list_names(missing_names)}; "
            f"{did_you_mean(missing_names[0], table.names)}"
        )
