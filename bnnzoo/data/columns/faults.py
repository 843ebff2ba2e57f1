"""Faults of a table, collected and reported together."""

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

_MOST_NAMED = 20
DROP_INSTEAD = ", or use [[drop=NAME]]"
DROP_COLUMN = ", or drop the column with [[drop=NAME]]"
"""Ends of remedies that do not apply to targets and to a trained model's columns."""

CENSORED = "with bounds in place of numbers"


MAX_MISSING_CODES = 3
"""Maximal number of different cells that a message proposes as missing codes."""
_MOST_UNITS = 3
"""Maximal number of rows below a header that may hold units and widths."""


class Fault(NamedTuple):
    """One fault of a column.

    Attributes:
        description: text for all columns with this fault; they share one line of the message.
        problem: the problem of this column.
        remedy: the advice; NAME stands for the column.
        row: the first affected row, from 1; 0 for the whole column.
        count: the number of affected rows.
        coded: whether the column may be categorical, with codes as its cells.
        codes: the different cells with this fault, if each may stand for a missing cell; otherwise ().
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
        table: the table; its name starts every line.
        trained: whether a model is trained, so that its columns are fixed.
        inputs: the columns that may be categories.
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
        """Record a fault; a column keeps the first fault of each kind. `rows` (from 0) are the affected rows."""
        column_faults = self.faults_by_column.setdefault(column, [])
        if fault.description not in [other.description for other in column_faults]:
            column_faults.append(fault)
        if rows is not None:
            self._rows.setdefault(column, []).append(rows)

    def recorded_rows(self, column: str, count: int) -> NDArray[np.bool_]:
        """Return a mask of `count` rows that marks the recorded faults of a column."""
        is_recorded = np.zeros(count, bool)
        for rows in self._rows.get(column, ()):
            is_recorded[rows] = True
        return is_recorded

    def check(self) -> None:
        """Raise an error if there are faults.

        Raises:
            UsageError: with one line for each kind of fault, which lists every affected column.
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
                remedy = f"{verb} [[censored=True]] to read it as a bound, or {remedy}"
            elif not self.trained:
                remedy += "; if it is the target, use [[target=NAME]] [[censored=True]] to read it as a bound"
        codes = sorted({code for fault in faults for code in fault.codes})
        if option := self._option_of_units(faults):
            remedy += option
        elif "name among the cells" in faults[0].description and (option := self.table.skip_option(faults[0].row - 1)):
            remedy = f"leave that line out with {option}"
        elif not self.trained and 0 < len(codes) <= MAX_MISSING_CODES and all(fault.codes for fault in faults):
            prefix = "" if len(columns) > 1 else f"{columns[0]}="
            options = " ".join(setting("missing_code", prefix + code) for code in codes)
            cells = "it stands for a missing cell" if len(codes) == 1 else "such cells are missing"
            remedy += f"; if {cells}, use {options}"
        if any(fault.coded for fault in faults) and self.inputs.issuperset(columns):
            remedy += "; if its cells are codes, use [[categories=NAME]]"
        if not option:
            remedy += self._option_of_remark(faults)
        if len(columns) > 1:
            remedy = remedy.replace("drop the column with", "drop the columns with")
        return with_names(remedy, columns)

    def _option_of_units(self, faults: Sequence[Fault]) -> str:
        """Return the end of a remedy if the faulty rows come first and have no numbers: units, or the header."""
        places = {(fault.row, fault.count) for fault in faults}
        row, count = places.pop()
        if places or row != 1 or count > _MOST_UNITS or any(map(self.table.has_number, range(count))):
            return ""
        units = self.table.skip_option(*range(count))
        if not units or not self.table.has_number(count):
            return ""
        unit_rows = "row 1 holds units" if count == 1 else f"rows 1 to {count} hold units"
        above = self.table.skip_option(*range(-1, count - 1))
        it = "it" if count == 1 else "them"
        return f"; if {unit_rows}, leave {it} out with {units}; if row {count} is the header, use {above}"

    def _option_of_remark(self, faults: Sequence[Fault]) -> str:
        """Return the end of a remedy if all faults are in one row without numbers, which may be a remark."""
        rows = {fault.row for fault in faults}
        row = rows.pop()
        if rows or not row or any(fault.count > 1 for fault in faults) or self.table.has_number(row - 1):
            return ""
        option = self.table.skip_option(row - 1)
        return f"; if row {row} is a remark, leave it out with {option}" if option else ""


def with_names(remedy: str, columns: Sequence[str]) -> str:
    """Insert the columns into the settings of a remedy, if they are few: `--drop NAME` becomes `--drop a,b`."""
    if len(columns) > _MOST_NAMED:
        return remedy
    has_comma = any("," in name for name in columns)
    for option in ("drop", "categories", "target"):
        single_options = [setting(option, name) for name in columns]
        joined_options = " ".join(single_options) if has_comma else setting(option, ",".join(columns))
        remedy = remedy.replace(setting(option, "NAME"), joined_options)
    return remedy


def list_names(names: Iterable[str]) -> str:
    """Join names for a message; at most twenty are listed."""
    names = list(names)
    num_others = len(names) - _MOST_NAMED
    return ", ".join([*names[:_MOST_NAMED], *([f"and {num_others} more"] if num_others > 0 else [])])


def _short_problem(fault: Fault) -> str:
    if not fault.row:
        return fault.problem
    return f"row {fault.row}: {fault.problem}" + (f", {fault.count} in all" if fault.count > 1 else "")
