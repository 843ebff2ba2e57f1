"""Columns of text. Their cells determine the type: numbers, booleans, dates, times of day, or levels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from bnnzoo.data.checks.check import lost_digits, merged_positions
from bnnzoo.data.columns.bounds import single_numbers
from bnnzoo.data.columns.cells import Cells, Kind, quoted
from bnnzoo.data.columns.faults import CENSORED, MAX_MISSING_CODES, Fault, Faults
from bnnzoo.data.columns.forms import (
    BOOLEAN,
    DATE,
    DRESSED_NUMBER,
    LONG,
    OTHER_DATE,
    OTHER_TIME,
    TIME,
    Style,
    as_iso,
    is_true,
    parse_hours,
)
from bnnzoo.finding import setting

_NOT_A_NUMBER_REMEDY = "write plain numbers (1234.5) and leave missing cells empty, or use [[drop=NAME]]"
_BOUND_REMEDY = "write a number or leave the cell empty, or use [[drop=NAME]]"
_CENSORED_REMEDY = "write a number or a bound (<0.5, >100, 1..2), or leave missing cells empty"
_DATE_REMEDY = "write dates as YYYY-MM-DD, or use [[drop=NAME]]"
_UNIX_DAY = np.timedelta64(1, "D")


class TextColumn(NamedTuple):
    """A column of text. `codes` gives the position of each row's text in `texts`, or -1 for a missing cell."""

    name: str
    codes: Int[np.ndarray, " row"]
    texts: Sequence[str]
    faults: Faults
    style: Style

    def read(self, kind: str) -> Cells:
        """Return the column with the type `kind`. If `kind` is empty, the cells determine the type."""
        present = [text for text in self.texts if not self.style.is_missing(text)]
        is_kind_known, kind = bool(kind), kind or self._kind(present)
        if kind == "number":
            if is_kind_known and present and all(BOOLEAN.fullmatch(text) for text in present):
                return self._numbers("number", BOOLEAN.fullmatch, is_true, _NOT_A_NUMBER_REMEDY, "not a number")
            integers = [
                int(long_number[1].replace("\u2212", "-")) if (long_number := LONG.fullmatch(text)) else 0
                for text in self.texts
            ]
            refuse_merged(self.name, np.array([*integers, 0], object)[self.codes], self.faults)
            if self.style.censored:
                return self._censored()
            return self._numbers(
                "number", self.style.is_number, self.style.number, _NOT_A_NUMBER_REMEDY, "not a number"
            )
        if kind == "boolean":
            remedy = "write True or False and leave missing cells empty, or use [[drop=NAME]]"
            pattern = re.compile(r"true|false|[01]", re.I)
            return self._numbers("boolean", pattern.fullmatch, is_true, remedy, "not a boolean")
        if kind == "time":
            remedy = "write times as HH:MM:SS from 00:00 to 23:59:59, or use [[drop=NAME]]"
            return self._numbers("time", TIME.fullmatch, parse_hours, remedy, "not a time of day")
        if kind == "date":
            return self._dates()
        is_missing = self.style.is_missing if kind == "text" else self.style.codes.__contains__
        return text_cells(self.name, self.codes, self.texts, is_missing)

    def _kind(self, present: Sequence[str]) -> Kind:
        if not present:
            return "number"
        forms: tuple[tuple[Kind, Callable[[str], Any]], ...]
        forms = (
            ("number", self.style.is_number),
            ("boolean", BOOLEAN.fullmatch),
            ("date", DATE.fullmatch),
            ("time", TIME.fullmatch),
        )
        for kind, matches in forms:
            if all(matches(text) for text in present):
                return kind
        weights = np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))
        is_present = np.array([not self.style.is_missing(text) for text in self.texts])
        bounds = np.array([self.style.is_one_sided(text) for text in self.texts])
        for kind, matches in forms:
            # If at least half of the cells have this type, the others are mistakes and not levels.
            is_of_kind = np.array([bool(matches(text)) for text in self.texts]) & is_present
            is_counted = is_of_kind | bounds if kind == "number" and is_of_kind.any() else is_of_kind
            if 2 * weights[is_counted].sum() >= weights[is_present].sum():
                return kind
        non_numbers = [text for text in present if not self.style.is_number(text)]
        if len(non_numbers) == 1 and len(present) > 2 and _is_placeholder(non_numbers[0], present):
            return "number"
        if len(present) > 2 and all(self.style.is_one_sided(text) for text in present):
            return "number"
        other_patterns: tuple[tuple[Kind, re.Pattern[str]], ...] = (
            ("date", OTHER_DATE),
            ("time", OTHER_TIME),
            ("number", DRESSED_NUMBER),
        )
        for kind, pattern in other_patterns:
            is_of_kind = np.array([bool(pattern.fullmatch(text)) for text in self.texts]) & is_present
            if 2 * weights[is_of_kind].sum() >= weights[is_present].sum():
                return kind
        return "text"

    def _numbers(
        self, kind: Kind, matches: Callable[[str], Any], number: Callable[[str], float], remedy: str, problem: str
    ) -> Cells:
        def parse(text: str) -> float | None:
            return number(text) if matches(text) else None

        values = self._parsed(parse, (), f"with cells that are {problem}", problem, remedy)
        return Cells(self.name, kind, values)

    def _censored(self) -> Cells:
        """Return a column of numbers and bounds, such as <0.5, >100, 1..2 and [1,2].

        The number of a one-sided bound is its finite end, and the number of an interval is its midpoint.
        """

        def parse(text: str) -> tuple[float, float] | None:
            if not self.style.is_number(text):
                return self.style.bounds(text)
            number = self.style.number(text)
            return number, number

        description = "with cells that are neither numbers nor bounds"
        bounds = self._parsed(parse, (2,), description, "not a number", _CENSORED_REMEDY)
        return Cells(self.name, "number", single_numbers(bounds), bounds=bounds)

    def _parsed(
        self, parse: Callable[[str], Any], shape: tuple[int, ...], description: str, problem: str, remedy: str
    ) -> Float[np.ndarray, "row ..."]:
        """Return the parsed value of each cell [N, *shape], with nan for missing and invalid cells.

        A cell is invalid if `parse` returns None. Invalid cells are reported as a fault with the given texts.
        """
        values = np.full((len(self.texts) + 1, *shape), np.nan)  # the last value is for code -1
        is_invalid = np.zeros(len(values), bool)
        for i, text in enumerate(self.texts):
            if not self.style.is_missing(text):
                value = parse(text)
                is_invalid[i] = value is None
                values[i] = np.nan if value is None else value
        self._report_invalid(is_invalid, description, problem, remedy)
        return values[self.codes]

    def _dates(self) -> Cells:
        import pandas as pd

        matches = [DATE.fullmatch(text) for text in self.texts]
        is_missing = np.array([self.style.is_missing(text) for text in self.texts], bool)
        time_zones = {bool(match[2]) for match in matches if match}
        texts = [as_iso(text) if match else None for text, match in zip(self.texts, matches, strict=True)]
        parsed = pd.to_datetime(pd.Series(texts, dtype=object), format="ISO8601", errors="coerce", utc=True)
        days = np.where(is_missing, np.nan, days_since_1970(parsed))
        is_invalid = np.isnan(days) & ~is_missing
        days[np.isin(days, coded_days(self.style))] = np.nan
        self._report_invalid(np.append(is_invalid, False), "with cells that are not dates", "not a date", _DATE_REMEDY)
        if len(time_zones) > 1:
            problem = "dates with and without a time zone"
            remedy = "write all dates with a time zone, or all without one"
            self.faults.add(self.name, Fault(f"with {problem}", problem, remedy))
        return Cells(self.name, "date", np.append(days, np.nan)[self.codes], zoned=True in time_zones)

    def _report_invalid(self, is_invalid: NDArray[np.bool_], description: str, problem: str, remedy: str) -> None:
        """Report the cells whose text is marked in `is_invalid`. Cells with the same problem form one fault."""
        groups: dict[Fault, list[int]] = {}
        remedy = remedy.replace("1234.5", f"1234{self.style.decimal or '.'}5")
        for code in np.flatnonzero(is_invalid):
            fault = Fault(description, problem, remedy)
            if problem == "not a number":
                fault = self._fault_of(self.texts[int(code)], fault)
            groups.setdefault(fault, []).append(int(code))
        coded_codes = [code for fault, codes in groups.items() if fault.coded for code in codes]
        for fault, codes in groups.items():
            rows = np.flatnonzero(np.isin(self.codes, codes))
            text = self.faults.table.cell_text(int(rows[0]), self.name).strip() or self.texts[int(self.codes[rows[0]])]
            shown_texts = [self.texts[code] for code in coded_codes]
            are_marks = fault.coded and len(shown_texts) <= MAX_MISSING_CODES and all(map(_may_be_missing, shown_texts))
            summary, *reason = fault.problem.split(":", 1)
            problem_text = f"{summary} ({quoted(text)})" + "".join(f":{part}" for part in reason)
            missing_codes = tuple(shown_texts) if are_marks else ()
            located_fault = fault._replace(
                problem=problem_text, row=int(rows[0]) + 1, count=rows.size, codes=missing_codes
            )
            self.faults.add(self.name, located_fault, rows)

    def _fault_of(self, text: str, fault: Fault) -> Fault:
        """Return the fault to report for a cell that is not a number: `fault`, with the reason added if it is known."""
        decimal = self.style.decimal
        if not self.style.censored and self.style.bounds(text) is not None:
            return Fault(CENSORED, "a bound, not a number", _BOUND_REMEDY)
        if self.style.censored and self.style.is_interval(text):
            reason = "an interval whose first end is not smaller than the second"
            return fault._replace(description="with intervals in the wrong order", problem=f"{fault.problem}: {reason}")
        if text == self.name:
            return fault._replace(
                description="with their name among the cells", problem=(f"{fault.problem}: the header is repeated here")
            )
        other_decimal: Literal[".", ","] = "." if decimal == "," else ","
        is_other_decimal = Style(other_decimal).is_number(text) or Style(other_decimal).is_one_sided(text)
        if is_other_decimal and (decimal == "," or text.count(",") == 1):
            reason = (
                "a decimal point, while other numbers have a decimal comma" if decimal == "," else "a decimal comma"
            )
            mark, alternative = ("point", "") if decimal == "," else ("comma", " or a thousands separator")
            option = f"; if the {mark} is the decimal mark, use {setting('decimal', other_decimal)}" if decimal else ""
            option = "" if self.faults.trained else option
            return fault._replace(
                description=f"with {reason}",
                problem=f"{fault.problem}: {reason}{alternative}",
                remedy=fault.remedy + option,
            )
        if BOOLEAN.fullmatch(text) and all(BOOLEAN.fullmatch(t) or t in "01" for t in self.texts if t):
            reason = "other cells are 0 or 1"
            return fault._replace(
                description="with booleans in two forms",
                problem=f"{fault.problem}: {reason}",
                remedy="write 0 and 1 in all cells",
            )
        if DRESSED_NUMBER.fullmatch(text):
            reason = "characters other than digits and a point"
            return fault._replace(description=f"with {reason} in their numbers", problem=f"{fault.problem}: {reason}")
        return fault._replace(coded=True)


def days_since_1970(series: Any) -> Float[np.ndarray, " row"]:
    """Return a pandas series of datetimes as days since 1970, with nan for missing cells."""
    import pandas as pd

    moments = pd.to_datetime(series, utc=True).dt.tz_localize(None).to_numpy()
    return np.where(np.isnat(moments), np.nan, (moments - np.datetime64(0, "s")) / _UNIX_DAY)


def coded_days(style: Style) -> Float[np.ndarray, " code"]:
    """Return the codes for missing cells that are dates, as days since 1970."""
    import pandas as pd

    codes = [as_iso(text) for text in style.codes if DATE.fullmatch(text)]
    return days_since_1970(pd.to_datetime(pd.Series(codes, dtype=object), format="ISO8601", errors="coerce", utc=True))


def text_cells(
    name: str,
    codes: Int[np.ndarray, " row"],
    texts: Sequence[str],
    is_missing: Callable[[str], bool],
    ordered: bool = False,
) -> Cells:
    """Return a column of text.

    Args:
        name: the name of the column.
        codes: the position of each row's text in `texts`; -1 for a missing cell.
        texts: the distinct texts.
        is_missing: whether a text means a missing cell.
        ordered: whether the levels keep the order of `texts`; otherwise the levels are sorted.
    """
    present = dict.fromkeys(text for text in texts if not is_missing(text))
    levels = tuple(present) if ordered else tuple(sorted(present))
    position_of_level = {level: float(i) for i, level in enumerate(levels)}
    return Cells(
        name, "text", np.array([*(position_of_level.get(text, np.nan) for text in texts), np.nan])[codes], levels
    )


def refuse_merged(name: str, integers: NDArray[Any], faults: Faults) -> None:
    """Report a fault if conversion to float64 would make different whole numbers equal."""
    rows = merged_positions(integers)
    if rows.size:
        description = "of whole numbers that cannot all be distinguished in float64"
        remedy = "subtract a constant, write the numbers as text (such as id123), or use [[drop=NAME]]"
        remedy = "round them to numbers that float64 can represent" if faults.trained else remedy
        faults.add(
            name, Fault(description, lost_digits(integers[rows[0]]), remedy, int(rows[0]) + 1, rows.size, coded=True)
        )


def _is_placeholder(text: str, present: Sequence[str]) -> bool:
    """Whether `text`, the only distinct text in a column of numbers, probably stands for a missing cell.

    This is the case if the text has neither letters nor digits (such as ? or --), or if at least three of the distinct
    texts `present` of the column contain a point or a comma.
    """
    return (
        not any(character.isalnum() for character in text)
        or sum(any(character in ".," for character in cell) for cell in present) > 2
    )


def _may_be_missing(text: str) -> bool:
    """Whether a text in a column of numbers may stand for a missing cell: a mark such as ?, or words without digits."""
    if any(map(str.isdigit, text)):
        return text.startswith("#")  # #DIV/0! of a spreadsheet; <5% is a bound
    if BOOLEAN.fullmatch(text) or ":" in text:
        return False
    return not text[0].isalnum() or 3 < len(text) <= 40 or (len(text) == 2 and text.isupper())
