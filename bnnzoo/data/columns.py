"""What a raw column of a table is: numbers, booleans, dates, times of day, or text with levels.

The rules are those of docs/data.md. They look at distinct cells only, and are the same for a CSV file, a Parquet
file and a data frame.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from bnnzoo.data.check import lost_digits, merged
from bnnzoo.data.faults import Fault, Faults

Kind = Literal["number", "boolean", "date", "time", "text"]

MISSING = frozenset({"", "nan", "+nan", "-nan", "na", "n/a", "#n/a", "#na", "null", "none", "<na>", "nat"})
"""Cells that say that there is nothing, whatever their case."""

_NUMBER = re.compile(
    r"(?=.{1,400}\Z)(?:[+\u2212-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+\u2212-]?inf(?:inity)?)",
    re.IGNORECASE,
)
_LONG = re.compile(r"([+\u2212-]?[0-9]{16,400})(?:\.0*)?")
"""Whole numbers that float64 may not hold."""
_BOOLEAN = re.compile(r"true|false", re.IGNORECASE)
_TIME = re.compile(r"(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?")
_DATE = re.compile(
    r"[0-9]{4}([-/])[0-9]{1,2}\1[0-9]{1,2}"
    r"(?:[T ][0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?\s?(Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
    r"|[0-9]{4}-[0-9]{1,2}"
)
_MONTH = (
    r"jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?"
)
_OTHER_DATE = re.compile(
    # 3/17/2024, 2024.03.17, 17-Mar-2024, March 17, 2024, with or without a time
    r"(?:[0-9]{1,2}([-/.])[0-9]{1,2}\1(?:[0-9]{4}|[0-9]{2})|[0-9]{4}([-/.])[0-9]{1,2}\2[0-9]{1,2}"
    rf"|[0-9]{{1,2}}[-\s](?:{_MONTH})[-,\s]{{1,2}}[0-9]{{2,4}}|[0-9]{{4}}[-\s](?:{_MONTH})[-\s][0-9]{{1,2}}"
    rf"|(?:{_MONTH})\s[0-9]{{1,2}},?\s[0-9]{{4}})"
    r"(?:,?[\sT][0-9:.]+(?:\s?[ap]\.?m\.?)?(?:\s?(?:[A-Z]{1,4}|[+-][0-9:]+))?)?",
    re.IGNORECASE,
)
_OTHER_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?\s?[ap]\.?m\.?", re.IGNORECASE)
_MONEY = r"(?:[$€£¥]|USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|BRL)"
_DRESSED_NUMBER = re.compile(
    # a decimal comma, thousands separators, a currency, a percent sign, parentheses for less than nothing; Fortran's
    # exponents; hexadecimal digits
    rf"(?=.{{1,100}}\Z)(?:(?P<open>\()?[+-]?(?:{_MONEY}\s?)?[+-]?"
    r"(?:[0-9]{1,3}(?:[,.'\s\u202f][0-9]{3})+(?:[.,][0-9]+)?|[0-9]*[.,]?[0-9]+)"
    rf"\s?(?:%|{_MONEY})?(?(open)\))"
    r"|[+-]?[0-9]+\.?[0-9]*[dD][+-]?[0-9]+|0[xX][0-9a-fA-F]+)"
)
_NOT_A_NUMBER_CURE = "write plain numbers (1234.5), leave a cell that is missing empty, or --drop NAME"
_DATE_CURE = "write dates as YYYY-MM-DD, or --drop NAME"
_UNIX_DAY = np.timedelta64(1, "D")


class Cells(NamedTuple):
    """A column that was understood.

    numbers: [N] float64, nan where missing (dates: days since 1970, times: hours since midnight); of text a code into
    `levels`.
    """

    name: str
    kind: Kind
    numbers: Float[np.ndarray, " row"]
    levels: tuple[str, ...] = ()
    zoned: bool = False
    """Of dates: whether they have a time zone."""

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        return np.isnan(self.numbers)


def interpret(name: str, series: Any, faults: Faults, *, shown: Callable[[int], str], kind: str = "") -> Cells:
    """A column of a pandas frame as `Cells`; what cannot be understood goes to `faults`.

    Args:
        shown: the raw text of a cell by row, from 0, for messages.
        kind: what the column must be, where it is known already; else found from the cells. `label` is text of which
            no word means that it is missing.
    """
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        known = series.cat.remove_unused_categories()
        codes, values = np.asarray(known.cat.codes), list(known.cat.categories)
        if kind in ("", "text", "label"):
            return _text(name, codes, [as_text(value) for value in values], ordered=True)
        return _Reader(name, codes, [as_text(value) for value in values], faults, shown).read(kind)
    found = _kind_of_dtype(dtype)
    # Where a model was trained on 0 and 1, truth is a number.
    if found and kind in ("", found, "number" if found == "boolean" else found):
        if found == "date":
            return Cells(name, "date", _days(series), zoned=getattr(dtype, "tz", None) is not None)
        _refuse_merged(name, _whole(series), faults)
        return Cells(name, kind or found, _floats(series))  # type: ignore[arg-type]
    try:
        codes, uniques = pd.factorize(series)
        strangers = {type(value).__name__ for value in uniques if not isinstance(value, _CELLS)}
    except (TypeError, NotImplementedError):  # cells that cannot even be compared: lists, dictionaries
        codes, uniques, strangers = np.zeros(0, int), [], {str(dtype)}
    if strangers:
        about = "that hold neither numbers, text, booleans nor dates"
        problem = f"neither numbers, text, booleans nor dates ({', '.join(sorted(strangers))})"
        faults.add(name, Fault(about, problem, "convert it, or --drop NAME"))
        return Cells(name, "number", np.zeros(len(series)))
    return _Reader(name, codes, [as_text(value) for value in uniques], faults, shown).read(kind)


_CELLS = (str, numbers.Real, decimal.Decimal, np.bool_, datetime.date, datetime.time)


def as_text(value: Any) -> str:
    """A cell as text of one line: a whole number without a decimal point, so that 1 and 1.0 are one level."""
    if isinstance(value, float | np.floating) and float(value).is_integer() and abs(value) < 2**53:
        return str(int(value))
    return " ".join(str(value).split())


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


def _whole(series: Any) -> NDArray[Any]:
    """The numbers of a column of whole ones, 0 where they are missing: float64 might not hold them."""
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
    """Distinct texts and the rows that hold them (`codes`, -1 where a cell is missing)."""

    name: str
    codes: Int[np.ndarray, " row"]
    texts: Sequence[str]
    faults: Faults
    shown: Callable[[int], str]

    def read(self, kind: str) -> Cells:
        present = [text for text in self.texts if text.casefold() not in MISSING]
        kind_known, kind = bool(kind), kind or self._kind(present)
        if kind == "number":
            if kind_known and present and all(_BOOLEAN.fullmatch(text) for text in present):
                return self._numbers("number", _BOOLEAN, _truth, _NOT_A_NUMBER_CURE, "not a number")
            whole = [int(found[1].replace("\u2212", "-")) if (found := _LONG.fullmatch(t)) else 0 for t in self.texts]
            _refuse_merged(self.name, np.array([*whole, 0], object)[self.codes], self.faults)
            return self._numbers("number", _NUMBER, _number, _NOT_A_NUMBER_CURE, "not a number")
        if kind == "boolean":
            cure = "write True or False, leave a cell that is missing empty, or --drop NAME"
            return self._numbers("boolean", re.compile(r"true|false|[01]", re.I), _truth, cure, "not a boolean")
        if kind == "time":
            cure = "write times as HH:MM:SS from 00:00 to 23:59:59, or --drop NAME"
            return self._numbers("time", _TIME, _hours, cure, "not a time of day")
        if kind == "date":
            return self._dates()
        return _text(self.name, self.codes, self.texts, gaps=MISSING if kind == "text" else frozenset())

    def _kind(self, present: Sequence[str]) -> Kind:
        if not present:
            return "number"
        forms: tuple[tuple[Kind, re.Pattern[str]], ...]
        forms = (("number", _NUMBER), ("boolean", _BOOLEAN), ("date", _DATE), ("time", _TIME))
        for kind, form in forms:
            if all(form.fullmatch(text) for text in present):
                return kind
        weights = np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))
        real = np.array([text.casefold() not in MISSING for text in self.texts])
        for kind, form in forms:
            # Half of the cells: then the others are mistakes and not levels.
            of_kind = np.array([form.fullmatch(text) is not None for text in self.texts])
            if 2 * weights[of_kind & real].sum() >= weights[real].sum():
                return kind
        strangers = [text for text in present if not _NUMBER.fullmatch(text)]
        if len(strangers) == 1 and len(present) > 2 and not any(c.isalnum() for c in strangers[0]):
            return "number"  # a mark such as ? or -- for what is missing
        if all(_OTHER_DATE.fullmatch(text) for text in present):
            return "date"
        if all(_OTHER_TIME.fullmatch(text) for text in present):
            return "time"
        return "number" if all(_DRESSED_NUMBER.fullmatch(text) for text in present) else "text"

    def _numbers(
        self, kind: Kind, form: re.Pattern[str], number: Callable[[str], float], cure: str, problem: str
    ) -> Cells:
        values = np.full(len(self.texts) + 1, np.nan)  # the last one is for code -1
        wrong = np.zeros(len(values), bool)
        for i, text in enumerate(self.texts):
            if form.fullmatch(text):
                values[i] = number(text)
            else:
                wrong[i] = text.casefold() not in MISSING
        self._blame(wrong, f"with cells that are {problem}", problem, cure)
        return Cells(self.name, kind, values[self.codes])

    def _dates(self) -> Cells:
        import pandas as pd

        matches = [_DATE.fullmatch(text) for text in self.texts]
        zoned = {bool(match[2]) for match in matches if match}
        texts = [_iso(text) if match else None for text, match in zip(self.texts, matches, strict=True)]
        parsed = pd.to_datetime(pd.Series(texts, dtype=object), format="ISO8601", errors="coerce", utc=True)
        values = np.append(_days(parsed), np.nan)
        wrong = np.isnan(values[:-1]) & np.array([text.casefold() not in MISSING for text in self.texts], bool)
        self._blame(np.append(wrong, False), "with cells that are not dates", "not a date", _DATE_CURE)
        if len(zoned) > 1:
            problem = "dates with and without a time zone"
            self.faults.add(self.name, Fault(f"with {problem}", problem, "give all or none of them a zone"))
        return Cells(self.name, "date", values[self.codes], zoned=True in zoned)

    def _blame(self, wrong: NDArray[np.bool_], about: str, problem: str, cure: str) -> None:
        rows = np.flatnonzero(wrong[self.codes])
        if rows.size:
            row = int(rows[0])
            text = self.shown(row).strip() or self.texts[int(self.codes[row])]
            if problem == "not a number" and _DRESSED_NUMBER.fullmatch(text):
                decimal = re.fullmatch(r"[+-]?[0-9]+,[0-9]+", text)
                reason = ": a decimal comma or a thousands separator" if decimal else ": more than digits and a point"
            else:
                reason = ""
            coded = problem == "not a number" and not reason
            fault = Fault(about, f"{problem} ({quoted(text)}){reason}", cure, row + 1, rows.size, coded=coded)
            self.faults.add(self.name, fault)


def quoted(text: str) -> str:
    """A cell's text for a message: on one line, at most 40 characters."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _text(
    name: str,
    codes: Int[np.ndarray, " row"],
    texts: Sequence[str],
    ordered: bool = False,
    gaps: frozenset[str] = MISSING,
) -> Cells:
    present = dict.fromkeys(text for text in texts if text.casefold() not in gaps)
    levels = tuple(present) if ordered else tuple(sorted(present))
    place = {level: float(i) for i, level in enumerate(levels)}
    return Cells(name, "text", np.array([*(place.get(text, np.nan) for text in texts), np.nan])[codes], levels)


def _days(series: Any) -> Float[np.ndarray, " row"]:
    """Days since 1970 of a pandas series of datetimes, nan for none."""
    import pandas as pd

    moments = pd.to_datetime(series, utc=True).dt.tz_localize(None).to_numpy()
    return np.where(np.isnat(moments), np.nan, (moments - np.datetime64(0, "s")) / _UNIX_DAY)


def _iso(text: str) -> str:
    """A date as pandas reads it: dashes, and a zone in digits."""
    text = re.sub(r"\s?(UTC|GMT)$", "Z", text.replace("/", "-"))
    return re.sub(r"(:[0-9.]+\s?[+-][0-9]{2})$", r"\1:00", text)


def _hours(text: str) -> float:
    return sum(float(part) / 60**i for i, part in enumerate(text.split(":")))


def _number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def places_of(texts: Sequence[str], known: Sequence[str]) -> list[int]:
    """Where each text is among those that are known; -1 where it is none of them.

    A text is the one that is written so; where all that are known are numbers or truths, the one of its value.
    """
    place = {text: i for i, text in enumerate(known)}
    of_value = {value: i for i, value in enumerate(values_of(known) or ())}
    of_value = of_value if len(of_value) == len(place) else {}
    return [place.get(text, -1 if (value := _value(text)) is None else of_value.get(value, -1)) for text in texts]


def values_of(levels: Sequence[str]) -> list[float] | None:
    """The value of each level, where all are numbers or truths as tables write them: 1 or 1.0 and not 01, a code."""
    values = [value for text in levels if (value := _value(text)) is not None]
    plain = len(values) == len(levels) and all(
        _BOOLEAN.fullmatch(text)
        or text == as_text(value)
        or (abs(value) < 2**53 and re.fullmatch(r"-?(0|[1-9][0-9]*)\.0+", text))
        for text, value in zip(levels, values, strict=True)
    )
    return values if plain else None


def one_level_a_value(cells: Cells) -> Cells:
    """A column of text whose levels of equal value, 1 and 1.0, are one: the first of them."""
    values = values_of(cells.levels) or []
    first = {value: level for level, value in zip(reversed(cells.levels), reversed(values), strict=False)}
    if len(first) == len(values):
        return cells
    levels = tuple(level for level in cells.levels if level in set(first.values()))
    codes = np.array([*(levels.index(first[value]) for value in values), np.nan])
    return cells._replace(
        numbers=codes[np.where(cells.is_missing, len(values), np.nan_to_num(cells.numbers)).astype(int)], levels=levels
    )


def _value(text: str) -> float | None:
    """The number or the truth that a text is, if it is one."""
    if _BOOLEAN.fullmatch(text):
        return _truth(text)
    return _number(text) if _NUMBER.fullmatch(text) else None


def _truth(text: str) -> float:
    return float(text.casefold() in ("true", "1"))
