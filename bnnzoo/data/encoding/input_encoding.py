"""The encoding of table columns as network inputs, fitted on the training table and stored in the run's file.

Numbers and booleans are unchanged. If float32 could not distinguish the numbers of a column, the smallest number of the
column is subtracted. A date becomes the number of days since the first date of the column, and a time of day becomes
hours since midnight. Each level of a text column becomes a separate input (`colour=red`), which is 1 in the rows with
this level and 0 in the other rows.

With `missing: median`, a missing number is replaced by the median of its column in the training rows. A column with
missing cells in the training table gets an additional input (`age is missing`). This input is 1 in the rows where the
cell is missing, and 0 in the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import FailFast

from bnnzoo.data.checks.check import did_you_mean, is_coarse
from bnnzoo.data.columns.cells import Cells, Kind, quoted
from bnnzoo.data.columns.faults import DROP_COLUMN, Fault, Faults
from bnnzoo.data.columns.levels import level_positions, numeric_values
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting

T = TypeVar("T")
Missing = Literal["error", "drop", "median"]
Unseen = Literal["error", "zero"]

MAX_LEVELS = 100
"""Maximal number of levels of a text column. A column with more levels probably contains identifiers or comments."""
MAX_LETTERS = 200
"""Maximal number of letters of a level. A column with longer texts probably contains comments."""
_COARSE = 1e-3
"""Maximal rounding error of float32, in standard deviations of the column.

If rounding has a larger error, the smallest number of the column is subtracted first.
"""
_NO_CATEGORIES = (
    f"of text, with more than {MAX_LEVELS} categories or with a category of more than {MAX_LETTERS} letters"
)
MISSING_REMEDY = f"fill in missing cells with [[missing=median]], drop their rows with [[missing=drop]]{DROP_COLUMN}"


@dataclass(frozen=True)
class Column:
    """The encoding of one column of the training table, as plain text and numbers for the run's file.

    Attributes:
        name: the name of the column.
        kind: the type of its cells.
        levels: the levels of a text column. Each level becomes one input.
        origin: the number that is subtracted: the first date, in days since 1970, or the smallest number of a column
            whose numbers float32 could not distinguish; otherwise 0.
        median: the value that replaces missing cells, or None.
        was_missing: whether an additional input marks missing cells.
        zoned: whether dates have a time zone.
        exposure: whether the column is the exposure, to which expected counts are proportional. The exposure is the
            last column. It is not scaled, and missing exposures are not replaced.
    """

    name: str
    kind: Kind = "number"
    levels: Annotated[tuple[str, ...], FailFast()] = ()
    origin: float = 0.0
    median: float | None = None
    was_missing: bool = False
    zoned: bool = False
    exposure: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs of this column."""
        value_inputs = tuple(f"{self.name}={level}" for level in self.levels) if self.kind == "text" else (self.name,)
        return (*value_inputs, f"{self.name} is missing") if self.was_missing else value_inputs


def _category_problem(levels: Sequence[str]) -> str:
    """Return the reason why these levels are too many or too long for categories, or "" if there is no such reason."""
    letters = max(map(len, levels), default=0)
    if len(levels) > MAX_LEVELS:
        return f"text with {len(levels)} categories, more than {MAX_LEVELS}"
    return (
        f"text with a category that has {letters} letters; the limit is {MAX_LETTERS}" if letters > MAX_LETTERS else ""
    )


@dataclass(frozen=True)
class Encoding:
    """The encoding of all input columns.

    Attributes:
        columns: the encoding of each column, in the order of the inputs.
        missing: the treatment of missing cells: report an error, leave out their rows, or replace them by medians.
        unseen: the treatment of levels that do not occur in the training rows: report an error, or set all inputs of
            the column to zero.
        exposure_place: the position of the exposure among these columns in the order of the training table, which is
            also the order in arrays. None if there is no exposure, or if the exposure is the last of them in the table.
    """

    columns: Annotated[tuple[Column, ...], FailFast()]
    missing: Missing = "error"
    unseen: Unseen = "error"
    exposure_place: int | None = None

    @classmethod
    def from_cells(
        cls, cells: Sequence[Cells], missing: Missing, unseen: Unseen, faults: Faults, exposure: str = ""
    ) -> Encoding:
        """Return the encoding of the columns of a training table. Report invalid columns to `faults`.

        The encoding has no medians yet. `with_medians` adds them.
        """
        columns = []
        for column in cells:
            if column.name == exposure:
                columns.append(Column(exposure, exposure=True))
                continue
            if problem := _category_problem(column.levels):
                is_numeric = numeric_values(column.levels) is not None
                remedy = (
                    "remove it from [[categories]] to read numbers" if is_numeric else "write its content as numbers"
                )
                faults.add(
                    column.name,
                    Fault(_NO_CATEGORIES, problem, f"use [[drop=NAME]], or {remedy}"),
                )
            if column.kind == "number" and is_coarse(column.numbers, fraction=_COARSE, origin="smallest"):
                description, problem = "of numbers too close to 0 for float32", "numbers too close to 0 for float32"
                faults.add(column.name, Fault(description, problem, "rescale the column, or use [[drop=NAME]]"))
            is_coarse_column = column.kind == "number" and is_coarse(column.numbers, fraction=_COARSE)
            is_shifted = (column.kind == "date" or is_coarse_column) and not column.is_missing.all()
            origin = float(np.nanmin(column.numbers)) if is_shifted else 0.0
            was_missing = missing == "median" and bool(column.is_missing.any())
            columns.append(Column(column.name, column.kind, column.levels, origin, None, was_missing, column.zoned))
        return cls(tuple(columns), missing, unseen)

    @classmethod
    def of_numbers(cls, names: Sequence[str]) -> Encoding:
        """Return the encoding that leaves numbers unchanged. The file of a run need not store this encoding."""
        return cls(tuple(Column(name) for name in names))

    @property
    def is_plain(self) -> bool:
        """Whether every column is used as an input without change."""
        return self.columns == Encoding.of_numbers(self.inputs).columns

    @property
    def exposure(self) -> str:
        """Name of the exposure column, to which expected counts are proportional; empty if there is none."""
        return self.columns[-1].name if self.columns and self.columns[-1].exposure else ""

    def in_table_order(self, columns: Sequence[T]) -> list[T]:
        """Return columns in the order of the training table. In `columns`, an exposure is always the last one."""
        ordered_columns = list(columns)
        if self.exposure_place is not None:
            ordered_columns.insert(self.exposure_place, ordered_columns.pop())
        return ordered_columns

    def makes_same_inputs(self, other: Encoding) -> bool:
        """Whether another encoding makes the same inputs from a table. Medians are not compared."""
        columns_of_both = [[replace(column, median=None) for column in encoding.columns] for encoding in (self, other)]
        return columns_of_both[0] == columns_of_both[1]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the network's inputs."""
        return tuple(name for column in self.columns for name in column.inputs)

    def encode(self, cells: Sequence[Cells]) -> Float[np.ndarray, "row feature"]:
        """Encode checked cells as inputs [N, D] float32. A missing number is nan if its column has no median yet."""
        x = np.zeros((len(cells[0].numbers) if cells else 0, len(self.inputs)), np.float32)
        position = 0
        for column, column_cells in zip(self.columns, cells, strict=True):
            if column.kind == "text":
                # A missing cell (nan) or an unknown level (-1) equals no code, so all inputs of the column are zero.
                codes = np.arange(len(column.levels))
                x[:, position : position + len(codes)] = column_cells.numbers[:, None] == codes
            else:
                with np.errstate(over="ignore"):
                    x[:, position] = column_cells.numbers - column.origin if column.origin else column_cells.numbers
                if column.median is not None:
                    x[column_cells.is_missing, position] = column.median
            position += len(column.inputs)
            if column.was_missing:
                x[:, position - 1] = column_cells.is_missing
        return x

    def with_medians(self, x: Float[np.ndarray, "row feature"], where: str) -> Encoding:
        """Return this encoding with the medians of the training inputs, if `missing` is "median".

        An existing median is kept. It is from an earlier run whose draws determine the prior, and the draws depend on
        this median.

        Args:
            x: the encoded inputs of the training rows; missing numbers are nan.
            where: the name of the table in error messages.

        Raises:
            UsageError: if every number of a column is missing in `x`.
        """
        if self.missing != "median":
            return self
        columns, position = [], 0
        for column in self.columns:
            has_open_median = column.kind != "text" and not column.exposure and column.median is None
            if has_open_median and np.isnan(x[:, position]).all():
                raise UsageError(
                    f"{where}: column {column.name}: every cell is missing in the training rows, so there is no "
                    f"median; use {setting('drop', column.name)}, or another [[split_seed]]"
                )
            columns.append(replace(column, median=float(np.nanmedian(x[:, position]))) if has_open_median else column)
            position += len(column.inputs)
        return replace(self, columns=tuple(columns))

    def fill(self, x: Float[np.ndarray, "row feature"]) -> Float[np.ndarray, "row feature"]:
        """Return encoded inputs with each nan replaced by the median of its column, if `missing` is "median"."""
        if self.missing != "median":
            return x
        medians = [m for column in self.columns for m in [column.median or 0.0, *([0.0] * (len(column.inputs) - 1))]]
        return np.where(np.isnan(x), np.array(medians, np.float32), x)

    def match_levels(self, cells: Sequence[Cells], faults: Faults, is_kept: NDArray[np.bool_]) -> list[Cells]:
        """Return the cells of new rows. In text columns, the numbers become positions in the training levels.

        A level that does not occur in the training rows gets the number -1. The level is reported to `faults` if
        `unseen` is "error" and the mask `is_kept` contains its row. Dates are reported if only the new dates, or only
        the training dates, have a time zone.
        """
        return [
            self._recode(column, column_cells, faults, is_kept)
            for column, column_cells in zip(self.columns, cells, strict=True)
        ]

    def _recode(self, column: Column, new_cells: Cells, faults: Faults, is_kept: NDArray[np.bool_]) -> Cells:
        if column.kind == "date" and new_cells.zoned != column.zoned and not new_cells.is_missing.all():
            new_form, training_form = ("with", "without") if new_cells.zoned else ("without", "with")
            problem = f"dates {new_form} a time zone, but the training dates were {training_form} one"
            description = f"with dates {new_form} a time zone, unlike the training dates"
            faults.add(column.name, Fault(description, problem, f"write the dates {training_form} a time zone"))
        if column.kind != "text":
            return new_cells
        positions = level_positions(new_cells.levels, column.levels, faults.table.decimal)
        codes = np.array([*positions, np.nan])
        index = np.where(new_cells.is_missing, len(new_cells.levels), np.nan_to_num(new_cells.numbers)).astype(int)
        numbers = codes[index]
        rows = np.flatnonzero((numbers == -1.0) & is_kept)
        if rows.size and self.unseen == "error":
            level = new_cells.levels[index[rows[0]]]
            problem = (
                f"category {quoted(level)} does not occur in the training rows ({did_you_mean(level, column.levels)})"
            )
            description = "with categories that do not occur in the training rows"
            remedy = "correct it, leave the row out, or use [[unseen=zero]] to set all inputs of the column to 0 there"
            faults.add(column.name, Fault(description, problem, remedy, int(rows[0]) + 1, rows.size))
        return new_cells.with_levels(numbers, column.levels)

    def to_dict(self) -> dict[str, Any]:
        """Return the encoding as JSON-compatible values. Fields of columns with default values are left out."""
        defaults = vars(Column(""))
        columns = [
            {name: value for name, value in vars(column).items() if value != defaults[name]} for column in self.columns
        ]
        place = {} if self.exposure_place is None else {"exposure_place": self.exposure_place}
        return {"columns": columns, "missing": self.missing, "unseen": self.unseen, **place}


def check_exposure(column: Cells, faults: Faults, *, missing: str) -> None:
    """Report to `faults` the exposures that are not positive, not finite in float32, or missing.

    Args:
        column: the exposures.
        faults: the faults of the table.
        missing: the remedy for missing exposures; if it is empty, missing exposures are not reported.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        values = column.numbers.astype(np.float32)
    is_invalid: NDArray[np.bool_] = (values <= 0) | np.isinf(values)
    if is_invalid.any():
        row = int(np.argmax(is_invalid))
        problem = f"an exposure must be positive and finite (got {faults.table.cell_text(row, column.name).strip()})"
        remedy = "correct it, or leave the row out"
        faults.add(column.name, Fault("with invalid exposures", problem, remedy, row + 1, int(is_invalid.sum())))
    is_missing = column.is_missing & ~faults.recorded_rows(column.name, len(column.numbers))
    if missing and is_missing.any():
        row, count = int(np.argmax(is_missing)), int(is_missing.sum())
        problem = "an exposure is missing, and missing exposures are not filled in"
        faults.add(column.name, Fault("with missing exposures", problem, missing, row + 1, count))


def check_cells(cells: Sequence[Cells], faults: Faults, *, missing: str = "", empty: str = "use [[drop=NAME]]") -> None:
    """Report infinite cells and missing cells to `faults`.

    Args:
        cells: the columns.
        faults: the faults of the table.
        missing: the remedy for missing cells. If the remedy is empty, missing cells are reported only for a column of a
            training table in which every cell is missing.
        empty: the remedy for such a column without any value.
    """
    for column in cells:
        with np.errstate(over="ignore"):
            infinite: NDArray[np.bool_] = np.isinf(column.numbers.astype(np.float32))
        if infinite.any():
            row = int(np.argmax(infinite))
            value, raw = float(column.numbers[row]), faults.table.cell_text(row, column.name).strip()
            large = np.isfinite(value) or any(digit in raw for digit in "0123456789")
            value_text = repr(value) if np.isfinite(value) else quoted(raw)
            problem = f"{value_text} is too large for float32" if large else f"not finite ({value})"
            remedy = "rescale the column" if large else "correct it, or leave the cell empty"
            faults.add(column.name, Fault("with infinite numbers", problem, remedy, row + 1, int(infinite.sum())))
        # A cell with a recorded fault is nan too. It is not reported again.
        is_missing = column.is_missing & ~faults.recorded_rows(column.name, len(column.numbers))
        if is_missing.all() and not faults.trained:
            faults.add(column.name, Fault("without any value", "every cell is missing", empty))
        elif missing and is_missing.any():
            row = int(np.argmax(is_missing))
            raw = faults.table.cell_text(row, column.name).strip()
            missing_text = "not a number (nan)" if raw.casefold() == "nan" else f"a missing cell ({raw})"
            problem = missing_text if raw else "an empty cell"
            faults.add(column.name, Fault("with missing cells", problem, missing, row + 1, int(is_missing.sum())))
