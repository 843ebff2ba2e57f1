"""Everything wrong with a table, gathered and said at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bnnzoo.data.check import and_more
from bnnzoo.errors import UsageError

_MOST_NAMED = 20


class Fault(NamedTuple):
    """What is wrong with a column.

    about: what such columns have in common; a line of the message tells of all of them.
    problem: of this column. row: where it shows first, from 1; 0 for the column as a whole. count: in how many rows.
    cure: what to do; NAME stands for the column.
    coded: whether its cells may be codes, and the column one of categories.
    """

    about: str
    problem: str
    cure: str
    row: int = 0
    count: int = 1
    coded: bool = False


@dataclass
class Faults:
    """The faults of one table, by column; `where` (a file name) opens every line.

    trained: its columns are set. inputs: those that may be made categories.
    """

    where: str
    trained: bool = False
    inputs: frozenset[str] = frozenset()
    by_column: dict[str, Fault] = field(default_factory=dict)

    def add(self, column: str, fault: Fault) -> None:
        """Note a fault. The first of a column counts."""
        self.by_column.setdefault(column, fault)

    def check(self) -> None:
        """Refuse the table if anything was found.

        Raises:
            UsageError: a line for each kind of fault, naming every column that has it.
        """
        kinds: dict[str, dict[str, Fault]] = {}
        for column, fault in self.by_column.items():
            kinds.setdefault(fault.about, {})[column] = fault
        if kinds:
            raise UsageError("\n".join(self._line(about, found) for about, found in kinds.items()))

    def _line(self, about: str, found: Mapping[str, Fault]) -> str:
        (column, first), *others = found.items()
        if not others:
            place = f"row {first.row}, column {column}" if first.row else f"column {column}"
            return f"{self.where}: {place}: {first.problem}{and_more(first.count - 1)}; {self._cure(first, column)}"
        named = [f"{name} ({_briefly(fault)})" for name, fault in found.items()]
        return f"{self.where}: {len(named)} columns {about}: {listed(named)}; {self._cure(first, *found)}"

    def _cure(self, fault: Fault, *columns: str) -> str:
        cure = fault.cure.replace(", or --drop NAME", "") if self.trained else fault.cure
        if fault.coded and self.inputs.issuperset(columns):
            cure += "; if its cells are codes, --categories NAME"
        return cure.replace("NAME", columns[0] if len(columns) == 1 else "NAME")


def listed(names: Iterable[str]) -> str:
    """Names for a message: all of them, up to twenty."""
    names = list(names)
    more = len(names) - _MOST_NAMED
    return ", ".join([*names[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _briefly(fault: Fault) -> str:
    if not fault.row:
        return fault.problem
    return f"row {fault.row}: {fault.problem}" + (f", {fault.count} in all" if fault.count > 1 else "")
