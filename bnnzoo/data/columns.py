"""Types of raw table columns: numbers, booleans, dates, times of day, or text with levels.

docs/data.md states the rules. They use distinct cells only, and are the same for CSV, Parquet and data frames.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from bnnzoo.data.bounds import stand_in
from bnnzoo.data.check import lost_digits, merged
from bnnzoo.data.faults import CENSORED, MOST_CODES, Fault, Faults
from bnnzoo.data.forms import (
    BOOLEAN,
    DATE,
    DRESSED_NUMBER,
    LONG,
    OTHER_DATE,
    OTHER_TIME,
    TIME,
    Style,
    as_iso,
    hours_of,
    is_true,
)

Kind = Literal["number", "boolean", "date", "time", "text"]

_NOT_A_NUMBER_CURE = "write plain numbers (1234.5), leave a cell that is missing empty, or --drop NAME"
_BOUND_CURE = "write a number, leave the cell empty, or --drop NAME"
_CENSORED_CURE = "write a number or a bound (<0.5, >100, 1..2), or leave a cell that is missing empty"
_DATE_CURE = "write dates as YYYY-MM-DD, or --drop NAME"
_UNIX_DAY = np.timedelta64(1, "D")


_PLAIN = Style()


class Cells(NamedTuple):
    """One column with a known type.

    numbers: [N] float64, nan if missing. Dates count days since 1970, times hours since midnight, text is a code into
    `levels`.
    """

    name: str
    kind: Kind
    numbers: Float[np.ndarray, " row"]
    levels: tuple[str, ...] = ()
    zoned: bool = False
    """Whether dates have a time zone."""
    bounds: Float[np.ndarray, "row 2"] | None = None
    """The smallest and the largest possible value of each cell of a censored target; equal for a known value."""

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Mask of the missing cells [N]."""
        return np.isnan(self.numbers)

    @property
    def known(self) -> Float[np.ndarray, " row"]:
        """The numbers [N], nan where the cell is missing or a bound."""
        if self.bounds is None:
            return self.numbers
        return np.where(self.bounds[:, 0] == self.bounds[:, 1], self.numbers, np.nan)


def interpret(
    name: str,
    series: Any,
    faults: Faults,
    *,
    shown: Callable[[int], str],
    kind: str = "",
    style: Style = _PLAIN,
) -> Cells:
    """Convert a column of a pandas frame to `Cells`; report invalid cells to `faults`.

    Args:
        shown: returns the raw text of a cell of a row, counted from 0, for messages.
        kind: the required type; by default the cells decide. `label` is text in which no word means a missing cell.
        style: the notation of the cells.
    """
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        known = series.cat.remove_unused_categories()
        codes, values = np.asarray(known.cat.codes), list(known.cat.categories)
        if kind in ("", "text", "label"):
            return _text(name, codes, [as_text(value) for value in values], style.is_missing, ordered=True)
        return _Reader(name, codes, [as_text(value) for value in values], faults, shown, style).read(kind)
    found = _kind_of_dtype(dtype)
    # A column that was 0 and 1 in training may be booleans here.
    if found and kind in ("", found, "number" if found == "boolean" else found):
        if found == "date":
            days = _days(series)
            days = np.where(np.isin(days, _coded_days(style)), np.nan, days)
            return Cells(name, "date", days, zoned=getattr(dtype, "tz", None) is not None)
        _refuse_merged(name, _whole(series), faults)
        values = _without_codes(_floats(series), dtype, style)
        bounds = np.stack([values, values], -1) if style.censored else None
        return Cells(name, kind or found, values, bounds=bounds)  # type: ignore[arg-type]
    try:
        codes, uniques = pd.factorize(series)
        strangers = {type(value).__name__ for value in uniques if not isinstance(value, _CELLS)}
    except (TypeError, NotImplementedError):  # the cells cannot be compared: lists, dictionaries
        codes, uniques, strangers = np.zeros(0, int), [], {str(dtype)}
    if strangers:
        about = "that hold neither numbers, text, booleans nor dates"
        problem = f"neither numbers, text, booleans nor dates ({', '.join(sorted(strangers))})"
        faults.add(name, Fault(about, problem, "convert it, or --drop NAME"))
        return Cells(name, "number", np.zeros(len(series)))
    return _Reader(name, codes, [as_text(value) for value in uniques], faults, shown, style).read(kind)


_CELLS = (str, numbers.Real, decimal.Decimal, np.bool_, datetime.date, datetime.time)


def as_text(value: Any) -> str:
    """Return a cell as one line of text. Whole numbers have no decimal point, so that 1 and 1.0 are one level.

    Letters with accents are composed (NFC), so that the two ways to store é are one level.
    """
    if isinstance(value, float | np.floating) and float(value).is_integer() and abs(value) < 2**53:
        return str(int(value))
    return unicodedata.normalize("NFC", " ".join(str(value).split()))


def _kind_of_dtype(dtype: Any) -> Kind | Literal[""]:
    import pandas as pd

    if pd.api.types.is_bool_dtype(dtype):
        return "boolean"
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return "date"
    return "number" if pd.api.types.is_any_real_numeric_dtype(dtype) else ""


def _floats(series: Any) -> Float[np.ndarray, " row"]:
    if isinstance(series.dtype, np.dtype):
        return series.to_numpy(dtype=np.float64)
    return series.to_numpy(dtype=np.float64, na_value=np.nan)


def _without_codes(values: Float[np.ndarray, " row"], dtype: Any, style: Style) -> Float[np.ndarray, " row"]:
    """Numbers, nan where one is a code for a missing cell: to float32 -999.9 is another number."""
    written = np.array(style.code_numbers)
    single = getattr(dtype, "itemsize", 8) == 4 and getattr(dtype, "kind", "f") == "f"
    written = written.astype(np.float32).astype(np.float64) if single else written
    return np.where(np.isin(values, written), np.nan, values) if written.size else values


def _whole(series: Any) -> NDArray[Any]:
    """Return the numbers of an integer column, 0 where missing, as integers because float64 might not hold them."""
    import pandas as pd

    if not pd.api.types.is_integer_dtype(series.dtype):
        return np.zeros(0, np.int64)
    return series.fillna(0).to_numpy(np.uint64 if "u" in str(series.dtype).casefold() else np.int64)


def _refuse_merged(name: str, whole: NDArray[Any], faults: Faults) -> None:
    rows = merged(whole)
    if rows.size:
        about = "of whole numbers beyond 2^53, of which different ones would become one"
        cure = "subtract a constant, write text (id123), or --drop NAME"
        cure = "round them to what float64 holds" if faults.trained else cure
        faults.add(name, Fault(about, lost_digits(whole[rows[0]]), cure, int(rows[0]) + 1, rows.size, coded=True))


class _Reader(NamedTuple):
    """Distinct texts and, per row, the position of its text (`codes`, -1 for a missing cell)."""

    name: str
    codes: Int[np.ndarray, " row"]
    texts: Sequence[str]
    faults: Faults
    shown: Callable[[int], str]
    style: Style

    def read(self, kind: str) -> Cells:
        """Return the column as `kind`, or as the type of its cells if `kind` is empty."""
        present = [text for text in self.texts if not self.style.is_missing(text)]
        kind_known, kind = bool(kind), kind or self._kind(present)
        if kind == "number":
            if kind_known and present and all(BOOLEAN.fullmatch(text) for text in present):
                return self._numbers("number", BOOLEAN.fullmatch, is_true, _NOT_A_NUMBER_CURE, "not a number")
            whole = [int(found[1].replace("\u2212", "-")) if (found := LONG.fullmatch(t)) else 0 for t in self.texts]
            _refuse_merged(self.name, np.array([*whole, 0], object)[self.codes], self.faults)
            if self.style.censored:
                return self._censored()
            return self._numbers("number", self.style.is_number, self.style.number, _NOT_A_NUMBER_CURE, "not a number")
        if kind == "boolean":
            cure = "write True or False, leave a cell that is missing empty, or --drop NAME"
            form = re.compile(r"true|false|[01]", re.I)
            return self._numbers("boolean", form.fullmatch, is_true, cure, "not a boolean")
        if kind == "time":
            cure = "write times as HH:MM:SS from 00:00 to 23:59:59, or --drop NAME"
            return self._numbers("time", TIME.fullmatch, hours_of, cure, "not a time of day")
        if kind == "date":
            return self._dates()
        gap = self.style.is_missing if kind == "text" else self.style.codes.__contains__
        return _text(self.name, self.codes, self.texts, gap)

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
        for kind, form in forms:
            if all(form(text) for text in present):
                return kind
        weights = np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))
        real = np.array([not self.style.is_missing(text) for text in self.texts])
        bounds = np.array([self.style.is_one_sided(text) for text in self.texts])
        for kind, form in forms:
            # If at least half of the cells have this type, the others are mistakes and not levels.
            of_kind = np.array([bool(form(text)) for text in self.texts]) & real
            counted = of_kind | bounds if kind == "number" and of_kind.any() else of_kind
            if 2 * weights[counted].sum() >= weights[real].sum():
                return kind
        strangers = [text for text in present if not self.style.is_number(text)]
        if len(strangers) == 1 and len(present) > 2 and _says_nothing(strangers[0], present):
            return "number"
        if len(present) > 2 and all(self.style.is_one_sided(text) for text in present):
            return "number"
        other_forms: tuple[tuple[Kind, re.Pattern[str]], ...] = (
            ("date", OTHER_DATE),
            ("time", OTHER_TIME),
            ("number", DRESSED_NUMBER),
        )
        for kind, other in other_forms:
            of_kind = np.array([bool(other.fullmatch(text)) for text in self.texts]) & real
            if 2 * weights[of_kind].sum() >= weights[real].sum():
                return kind
        return "text"

    def _numbers(
        self, kind: Kind, form: Callable[[str], Any], number: Callable[[str], float], cure: str, problem: str
    ) -> Cells:
        values = np.full(len(self.texts) + 1, np.nan)  # the last value is for code -1
        wrong = np.zeros(len(values), bool)
        for i, text in enumerate(self.texts):
            if self.style.is_missing(text):
                continue
            if form(text):
                values[i] = number(text)
            else:
                wrong[i] = True
        self._blame(wrong, f"with cells that are {problem}", problem, cure)
        return Cells(self.name, kind, values[self.codes])

    def _censored(self) -> Cells:
        """Read numbers and bounds: <0.5, >100, 1..2, [1,2]. A bound gives its finite end, an interval its midpoint."""
        ends, wrong = np.full((len(self.texts) + 1, 2), np.nan), np.zeros(len(self.texts) + 1, bool)
        for i, text in enumerate(self.texts):
            if self.style.is_missing(text):
                continue
            if self.style.is_number(text):
                ends[i] = self.style.number(text)
            elif (bounds := self.style.bounds(text)) is not None:
                ends[i] = bounds
            else:
                wrong[i] = True
        self._blame(wrong, "with cells that are no number or bound", "not a number", _CENSORED_CURE)
        bounds = ends[self.codes]
        return Cells(self.name, "number", stand_in(bounds), bounds=bounds)

    def _dates(self) -> Cells:
        import pandas as pd

        matches = [DATE.fullmatch(text) for text in self.texts]
        absent = np.array([self.style.is_missing(text) for text in self.texts], bool)
        zoned = {bool(match[2]) for match in matches if match}
        texts = [as_iso(text) if match else None for text, match in zip(self.texts, matches, strict=True)]
        parsed = pd.to_datetime(pd.Series(texts, dtype=object), format="ISO8601", errors="coerce", utc=True)
        days = np.where(absent, np.nan, _days(parsed))
        wrong = np.isnan(days) & ~absent
        days[np.isin(days, _coded_days(self.style))] = np.nan
        self._blame(np.append(wrong, False), "with cells that are not dates", "not a date", _DATE_CURE)
        if len(zoned) > 1:
            problem = "dates with and without a time zone"
            self.faults.add(self.name, Fault(f"with {problem}", problem, "give all or none of them a zone"))
        return Cells(self.name, "date", np.append(days, np.nan)[self.codes], zoned=True in zoned)

    def _blame(self, wrong: NDArray[np.bool_], about: str, problem: str, cure: str) -> None:
        """Report the invalid cells. Cells that are invalid in the same way form one fault."""
        groups: dict[Fault, list[int]] = {}
        for code in np.flatnonzero(wrong):
            fault = Fault(about, problem, cure.replace("1234.5", f"1234{self.style.decimal or '.'}5"))
            if problem == "not a number":
                fault = self._fault_of(self.texts[int(code)], fault)
            groups.setdefault(fault, []).append(int(code))
        strange = [code for fault, codes in groups.items() if fault.coded for code in codes]
        for fault, codes in groups.items():
            rows = np.flatnonzero(np.isin(self.codes, codes))
            text = self.shown(int(rows[0])).strip() or self.texts[int(self.codes[rows[0]])]
            shown = [self.texts[code] for code in strange]
            marks = (
                tuple(shown) if fault.coded and len(shown) <= MOST_CODES and all(map(_may_be_missing, shown)) else ()
            )
            what, *reason = fault.problem.split(":", 1)
            written = f"{what} ({quoted(text)})" + "".join(f":{part}" for part in reason)
            found = fault._replace(problem=written, row=int(rows[0]) + 1, count=rows.size, codes=marks)
            self.faults.add(self.name, found, rows)

    def _fault_of(self, text: str, fault: Fault) -> Fault:
        """Return the fault of a cell that is not a number. Its problem is followed by a reason."""
        decimal = self.style.decimal
        if self.style.bounds(text) is not None and self.style.is_one_sided(text):
            return Fault(CENSORED, "a bound and no number", _BOUND_CURE)
        if self.style.censored and self.style.is_interval(text):
            reason = "an interval whose first end is not the smaller"
            return fault._replace(about="with intervals in the wrong order", problem=f"{fault.problem}: {reason}")
        if text == self.name:
            return fault._replace(about="with their name among the cells", problem=f"{fault.problem}: the header again")
        mark: Literal[".", ","] = "." if decimal == "," else ","
        other = Style(mark).is_number(text) or Style(mark).is_one_sided(text)
        if other and (decimal == "," or text.count(",") == 1):
            reason = "a decimal point, and others have commas" if decimal == "," else "a decimal comma"
            maybe = "" if decimal == "," else " or a thousands separator"
            option = f"--decimal {mark} reads it so, or " if decimal else ""
            option = "" if self.faults.trained else option
            return fault._replace(
                about=f"with {reason}", problem=f"{fault.problem}: {reason}{maybe}", cure=option + fault.cure
            )
        if BOOLEAN.fullmatch(text) and all(BOOLEAN.fullmatch(t) or t in "01" for t in self.texts if t):
            reason = "other cells are 0 or 1"
            return fault._replace(
                about="with booleans in two forms",
                problem=f"{fault.problem}: {reason}",
                cure="write 0 and 1 in all cells",
            )
        if DRESSED_NUMBER.fullmatch(text):
            reason = "more than digits and a point"
            return fault._replace(about=f"with {reason} in their numbers", problem=f"{fault.problem}: {reason}")
        return fault._replace(coded=True)


def _says_nothing(text: str, present: Sequence[str]) -> bool:
    """Whether the one text among numbers is a mark, such as ? or --; or ND beside three decimals: no levels."""
    return not any(c.isalnum() for c in text) or sum(any(c in ".," for c in other) for other in present) > 2


def _may_be_missing(text: str) -> bool:
    """Whether a cell among numbers may say that there is nothing: a mark, or words without digits."""
    if any(map(str.isdigit, text)):
        return text.startswith("#")  # #DIV/0! of a spreadsheet; <5% is a bound
    if BOOLEAN.fullmatch(text) or ":" in text:
        return False
    return not text[0].isalnum() or 3 < len(text) <= 40 or (len(text) == 2 and text.isupper())


def quoted(text: str) -> str:
    """Quote the text of a cell for a message: one line, at most 40 characters."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _text(
    name: str,
    codes: Int[np.ndarray, " row"],
    texts: Sequence[str],
    is_gap: Callable[[str], bool],
    ordered: bool = False,
) -> Cells:
    present = dict.fromkeys(text for text in texts if not is_gap(text))
    levels = tuple(present) if ordered else tuple(sorted(present))
    place = {level: float(i) for i, level in enumerate(levels)}
    return Cells(name, "text", np.array([*(place.get(text, np.nan) for text in texts), np.nan])[codes], levels)


def _coded_days(style: Style) -> Float[np.ndarray, " code"]:
    """The dates among the codes for a missing cell, as days since 1970."""
    import pandas as pd

    codes = [as_iso(text) for text in style.codes if DATE.fullmatch(text)]
    return _days(pd.to_datetime(pd.Series(codes, dtype=object), format="ISO8601", errors="coerce", utc=True))


def _days(series: Any) -> Float[np.ndarray, " row"]:
    """Return the days since 1970 of a pandas series of datetimes, nan where missing."""
    import pandas as pd

    moments = pd.to_datetime(series, utc=True).dt.tz_localize(None).to_numpy()
    return np.where(np.isnat(moments), np.nan, (moments - np.datetime64(0, "s")) / _UNIX_DAY)
