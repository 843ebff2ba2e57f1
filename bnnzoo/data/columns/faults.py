"""Faults (invalid cells and columns) of a table. All faults are collected first, and then reported in one error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from bnnzoo.data.checks.check import and_more
from bnnzoo.data.columns.table import AbstractTable
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting

_MAX_NAMED = 20
"""Maximal number of names that a message lists."""
DROP_INSTEAD = ", or use [[drop=NAME]]"
DROP_COLUMN = ", or drop the column with [[drop=NAME]]"
"""Endings of remedies (`DROP_INSTEAD` and `DROP_COLUMN`) that propose to drop the column.

Messages about targets and about the columns of a trained model omit them, because these columns cannot be dropped.
"""

CENSORED = "with bounds in place of numbers"
"""Description of the fault that a column contains bounds, but `censored` is not set."""


MAX_MISSING_CODES = 3
"""Maximal number of different cells that a message proposes as codes for missing cells."""
_MAX_UNITS = 3
"""Maximal number of rows below a header that can be rows of units or of column widths."""


class Fault(NamedTuple):
    """One fault of a column.

    Attributes:
        description: the text that follows "N columns" if N > 1 columns have this kind of fault.
        problem: the text about the fault in this column.
        remedy: the advice in the message; NAME stands for the name of the column.
        row: the first affected row, counted from 1; 0 if the fault is about the whole column.
        count: the number of affected rows.
        coded: whether the cells may be codes of categories. The remedy then also proposes the option `categories`.
        codes: the distinct texts of the cells with this fault, if each text may stand for a missing cell; otherwise ().
    """

    description: str
    problem: str
    remedy: str
    row: int = 0
    count: int = 1
    coded: bool = False
    codes: tuple[str, ...] = ()


@dataclass
class Faults:
    """The faults of one table, by column.

    Attributes:
        table: the table; every line of the message begins with its name.
        trained: whether the table is read for a trained model, so that the columns are fixed.
        inputs: the columns that the user can declare as categories.
        targets: the columns that cannot be dropped.
        faults_by_column: the faults of each column.
        notes: sentences for the user that do not describe faults.
    """

    table: AbstractTable
    trained: bool = False
    inputs: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    faults_by_column: dict[str, list[Fault]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _rows: dict[str, list[Int[np.ndarray, " some"]]] = field(default_factory=dict)

    def add(self, column: str, fault: Fault, rows: Int[np.ndarray, " some"] | None = None) -> None:
        """Record a fault of a column, unless the column already has a fault with the same description.

        Args:
            column: the name of the column.
            fault: the fault.
            rows: the affected rows, counted from 0. The rows are recorded even if the fault is not.
        """
        column_faults = self.faults_by_column.setdefault(column, [])
        if fault.description not in [other.description for other in column_faults]:
            column_faults.append(fault)
        if rows is not None:
            self._rows.setdefault(column, []).append(rows)

    def recorded_rows(self, column: str, count: int) -> NDArray[np.bool_]:
        """Return a mask of the rows that have a recorded fault in a column; `count` is the number of rows."""
        is_recorded = np.zeros(count, bool)
        for rows in self._rows.get(column, ()):
            is_recorded[rows] = True
        return is_recorded

    def check(self) -> None:
        """Check that no fault was recorded.

        Raises:
            UsageError: if there are faults. The message has one line for each kind of fault; the line lists the
                affected columns.
        """
        kinds: dict[tuple[str, bool], dict[str, Fault]] = {}
        for column, faults in self.faults_by_column.items():
            for fault in faults:
                kinds.setdefault((fault.description, column in self.targets), {})[column] = fault
        if kinds:
            raise UsageError(
                "\n".join(
                    self._line(about, faults_by_column_name) for (about, _), faults_by_column_name in kinds.items()
                )
            )

    def _line(self, description: str, faults_by_column_name: Mapping[str, Fault]) -> str:
        (column, first), *others = faults_by_column_name.items()
        if not others:
            place = f"row {first.row}, column {column}" if first.row else f"column {column}"
            return (
                f"{self.table.where}: {place}: {first.problem}{and_more(first.count - 1)}; "
                f"{self._remedy(faults_by_column_name)}"
            )
        column_texts = [f"{name} ({_short_problem(fault)})" for name, fault in faults_by_column_name.items()]
        return (
            f"{self.table.where}: {len(column_texts)} columns {description}: {list_names(column_texts)}; "
            f"{self._remedy(faults_by_column_name)}"
        )

    def _remedy(self, faults_by_column_name: Mapping[str, Fault]) -> str:
        columns, faults = list(faults_by_column_name), list(faults_by_column_name.values())
        remedy = faults[0].remedy
        if self.trained or self.targets.intersection(columns):
            remedy = remedy.replace(DROP_INSTEAD, "").replace(DROP_COLUMN, "")
        if faults[0].description == CENSORED:
            if self.targets.issuperset(columns):
                verb = "train with" if self.trained else "use"
                remedy = f"{verb} [[censored=True]] to read the cell as a bound, or {remedy}"
            elif not self.trained:
                option_of_target = "[[target=NAME]] [[censored=True]]"
                remedy += f"; if the column is the target, use {option_of_target} to read the cell as a bound"
        codes = sorted({code for fault in faults for code in fault.codes})
        if option := self._option_of_units(faults):
            remedy += option
        elif "name among the cells" in faults[0].description and (option := self.table.skip_option(faults[0].row - 1)):
            remedy = f"leave that line out with {option}"
        elif not self.trained and 0 < len(codes) <= MAX_MISSING_CODES and all(fault.codes for fault in faults):
            prefix = "" if len(columns) > 1 else f"{columns[0]}="
            options = " ".join(setting("missing_code", prefix + code) for code in codes)
            cells = "it stands for a missing cell" if len(codes) == 1 else "these texts stand for missing cells"
            remedy += f"; if {cells}, use {options}"
        if any(fault.coded for fault in faults) and self.inputs.issuperset(columns):
            remedy += "; if the cells are categories, use [[categories=NAME]]"
        if not option:
            remedy += self._option_of_comment(faults)
        if len(columns) > 1:
            remedy = remedy.replace("drop the column with", "drop the columns with")
        return with_names(remedy, columns)

    def _option_of_units(self, faults: Sequence[Fault]) -> str:
        """Return the end of a remedy that proposes to skip rows of units below the header.

        The text is empty unless three conditions hold: the faulty rows are the first one to three rows, these rows
        contain no number, and the next row contains a number.
        """
        places = {(fault.row, fault.count) for fault in faults}
        row, count = places.pop()
        if places or row != 1 or count > _MAX_UNITS or any(map(self.table.has_number, range(count))):
            return ""
        units = self.table.skip_option(*range(count))
        if not units or not self.table.has_number(count):
            return ""
        unit_rows = "row 1 holds units" if count == 1 else f"rows 1 to {count} hold units"
        option_above = self.table.skip_option(*range(-1, count - 1))
        pronoun = "it" if count == 1 else "them"
        return f"; if {unit_rows}, leave {pronoun} out with {units}; if row {count} is the header, use {option_above}"

    def _option_of_comment(self, faults: Sequence[Fault]) -> str:
        """Return the end of a remedy that proposes to skip a row that is a comment.

        The text is empty unless all faults are in one row, and this row contains no numbers.
        """
        rows = {fault.row for fault in faults}
        row = rows.pop()
        if rows or not row or any(fault.count > 1 for fault in faults) or self.table.has_number(row - 1):
            return ""
        option = self.table.skip_option(row - 1)
        return f"; if row {row} is a comment, leave it out with {option}" if option else ""


def with_names(remedy: str, columns: Sequence[str]) -> str:
    """Insert the names of at most 20 columns into the options of a remedy: `--drop NAME` becomes `--drop a,b`.

    If there are more columns, the remedy keeps NAME.
    """
    if len(columns) > _MAX_NAMED:
        return remedy
    has_comma = any("," in name for name in columns)
    for option in ("drop", "categories", "target"):
        single_options = [setting(option, name) for name in columns]
        joined_options = " ".join(single_options) if has_comma else setting(option, ",".join(columns))
        remedy = remedy.replace(setting(option, "NAME"), joined_options)
    return remedy


def list_names(names: Iterable[str]) -> str:
    """Join at most twenty names for a message, and add the number of the other names."""
    names = list(names)
    num_others = len(names) - _MAX_NAMED
    return ", ".join([*names[:_MAX_NAMED], *([f"and {num_others} more"] if num_others > 0 else [])])


def _short_problem(fault: Fault) -> str:
    if not fault.row:
        return fault.problem
    return f"row {fault.row}: {fault.problem}" + (f", {fault.count} in all" if fault.count > 1 else "")
