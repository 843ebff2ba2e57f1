"""Faults of a table, collected and reported together."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from bnnzoo.data.check import and_more
from bnnzoo.errors import UsageError

_MOST_NAMED = 20


CENSORED = "with bounds in place of numbers"


MOST_CODES = 3
"""Maximal number of different cells for which a message names `--missing-code`."""
_MOST_UNITS = 3
"""Maximal number of rows below a header that may hold units and widths."""


def _no_option(*rows: int) -> str:
    del rows
    return ""


def _has_numbers(row: int) -> bool:
    del row
    return True


class Fault(NamedTuple):
    """One fault of a column.

    Attributes:
        about: the description of all columns with this fault; they share one line of the message.
        problem: the problem of this column.
        cure: the remedy; NAME stands for the column.
        row: the first affected row, from 1; 0 for the whole column.
        count: the number of affected rows.
        coded: whether the cells may be codes and the column categorical.
        codes: the cells if each may mean a missing value.
    """

    about: str
    problem: str
    cure: str
    row: int = 0
    count: int = 1
    coded: bool = False
    codes: tuple[str, ...] = ()


@dataclass
class Faults:
    """The faults of one table, by column.

    Attributes:
        where: the name of the table, which starts every line.
        trained: whether a model is trained, so that its columns are fixed.
        inputs: the columns that may be categories.
        targets: the columns that cannot be dropped.
        skip_option: a function that returns the option to skip the lines of rows (from 0; -1 is the header), or "".
        has_number: whether a row (from 0) has a number; rows without one may be units or remarks.
        by_column: the faults of each column.
        notes: sentences about cells that are no faults.
    """

    where: str
    trained: bool = False
    inputs: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    skip_option: Callable[..., str] = _no_option
    has_number: Callable[[int], bool] = _has_numbers
    by_column: dict[str, list[Fault]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _rows: dict[str, list[Int[np.ndarray, " some"]]] = field(default_factory=dict)

    def add(self, column: str, fault: Fault, rows: Int[np.ndarray, " some"] | None = None) -> None:
        """Record a fault; only the first of each kind counts per column. `rows` (from 0) are the affected rows."""
        known = self.by_column.setdefault(column, [])
        if fault.about not in [other.about for other in known]:
            known.append(fault)
        if rows is not None:
            self._rows.setdefault(column, []).append(rows)

    def noted(self, column: str, count: int) -> NDArray[np.bool_]:
        """Return a mask of `count` rows that marks the recorded faults of a column."""
        found = np.zeros(count, bool)
        for rows in self._rows.get(column, ()):
            found[rows] = True
        return found

    def check(self) -> None:
        """Raise an error if there are faults.

        Raises:
            UsageError: with one line for each kind of fault, which lists every affected column.
        """
        kinds: dict[tuple[str, bool], dict[str, Fault]] = {}
        for column, faults in self.by_column.items():
            for fault in faults:
                kinds.setdefault((fault.about, column in self.targets), {})[column] = fault
        if kinds:
            raise UsageError("\n".join(self._line(about, found) for (about, _), found in kinds.items()))

    def _line(self, about: str, found: Mapping[str, Fault]) -> str:
        (column, first), *others = found.items()
        if not others:
            place = f"row {first.row}, column {column}" if first.row else f"column {column}"
            return f"{self.where}: {place}: {first.problem}{and_more(first.count - 1)}; {self._cure(found)}"
        named = [f"{name} ({_briefly(fault)})" for name, fault in found.items()]
        return f"{self.where}: {len(named)} columns {about}: {listed(named)}; {self._cure(found)}"

    def _cure(self, found: Mapping[str, Fault]) -> str:
        columns, faults = list(found), list(found.values())
        cure = faults[0].cure
        if self.trained or self.targets.intersection(columns):
            cure = cure.replace(", or --drop NAME", "").replace(", --drop NAME the column", "")
        if faults[0].about == CENSORED:
            are_targets = self.targets.issuperset(columns)
            if are_targets:
                option = "train with --censored to read" if self.trained else "--censored reads"
                cure = f"{option} it as a bound; or {cure}"
            elif not self.trained:
                cure += "; if it is the target, --target NAME --censored reads it as a bound"
        codes = sorted({code for fault in faults for code in fault.codes})
        if option := self._option_of_units(faults):
            cure += option
        elif "name among the cells" in faults[0].about and (option := self.skip_option(faults[0].row - 1)):
            cure = f"{option} leaves that line out"
        elif not self.trained and 0 < len(codes) <= MOST_CODES and all(fault.codes for fault in faults):
            names = [""] if len(columns) > 1 else [f"{columns[0]}="]
            options = " ".join(f"--missing-code {shlex.quote(name + code)}" for name in names for code in codes)
            cell = "it stands for a missing cell" if len(codes) == 1 else "such cells are missing"
            cure += f"; if {cell}, {options}"
        if any(fault.coded for fault in faults) and self.inputs.issuperset(columns):
            cure += "; if its cells are codes, --categories NAME"
        if not option:
            cure += self._option_of_remark(faults)
        return with_names(cure if len(columns) == 1 else cure.replace("NAME the column", "NAME the columns"), columns)

    def _option_of_units(self, faults: Sequence[Fault]) -> str:
        """Return the end of a remedy if the first rows have no numbers: they may hold units, or the header."""
        places = {(fault.row, fault.count) for fault in faults}
        row, count = places.pop()
        if places or row != 1 or count > _MOST_UNITS or any(map(self.has_number, range(count))):
            return ""
        units = self.skip_option(*range(count))
        if not units or not self.has_number(count):
            return ""
        some = "row 1 holds units" if count == 1 else f"rows 1 to {count} hold units"
        above = self.skip_option(*range(-1, count - 1))
        it = "it" if count == 1 else "them"
        return f"; if {some}, {units} leaves {it} out; if row {count} is the header, {above}"

    def _option_of_remark(self, faults: Sequence[Fault]) -> str:
        """Return the end of a remedy if the cells are of one row, without numbers: it may be a remark."""
        rows = {fault.row for fault in faults}
        row = rows.pop()
        if rows or not row or any(fault.count > 1 for fault in faults) or self.has_number(row - 1):
            return ""
        option = self.skip_option(row - 1)
        return f"; if row {row} is a remark, {option} leaves it out" if option else ""


def with_names(cure: str, columns: Sequence[str]) -> str:
    """Insert the columns into the options of a remedy, if they are few: `--drop NAME` becomes `--drop a,b`."""
    if len(columns) > _MOST_NAMED:
        return cure
    split = any("," in name for name in columns)
    for flag in ("--drop", "--categories"):
        each = [f"{flag} {shlex.quote(name)}" for name in columns]
        several = " ".join(each) if split else f"{flag} {shlex.quote(','.join(columns))}"
        cure = cure.replace(f"{flag} NAME", several)
    return cure.replace("NAME", columns[0] if len(columns) == 1 else "NAME")


def listed(names: Iterable[str]) -> str:
    """Join names for a message; at most twenty are listed."""
    names = list(names)
    more = len(names) - _MOST_NAMED
    return ", ".join([*names[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _briefly(fault: Fault) -> str:
    if not fault.row:
        return fault.problem
    return f"row {fault.row}: {fault.problem}" + (f", {fault.count} in all" if fault.count > 1 else "")
