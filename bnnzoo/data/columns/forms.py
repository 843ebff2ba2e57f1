"""Notations of the cells of a table: numbers, booleans, dates and times.

Some patterns (`OTHER_DATE`, `OTHER_TIME`, `DRESSED_NUMBER`) match notations that are not supported. The pattern that
matches a cell shows which type the user meant. The error message is then about this type.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from bnnzoo.data.columns.bounds import adjacent

MISSING = frozenset({"", ".", "nan", "+nan", "-nan", "na", "n/a", "#n/a", "#na", "null", "none", "<na>", "nat", r"\n"})
"""Words for a missing cell, after conversion to lower case. MySQL and PostgreSQL write \\N."""

_DIGITS = r"[+\u2212-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
NUMBER = re.compile(rf"(?=.{{1,400}}\Z)(?:{_DIGITS}|[+\u2212-]?inf(?:inity)?)", re.IGNORECASE)
_ONE_SIDED = re.compile(rf"(?=.{{1,400}}\Z)([<>\u2264\u2265]=?)\s?({_DIGITS})")
_INTERVAL = re.compile(
    rf"(?=.{{1,800}}\Z)(?:[\[(]\s?({_DIGITS})\s?[,;]\s?({_DIGITS})\s?[\])]|({_DIGITS})\s?\.\.\s?({_DIGITS}))"
)
LONG = re.compile(r"([+\u2212-]?[0-9]{16,400})(?:\.0*)?")
"""Whole numbers with so many digits that float64 may not represent them exactly."""
BOOLEAN = re.compile(r"true|false", re.IGNORECASE)
TIME = re.compile(r"(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?")
DATE = re.compile(
    r"[0-9]{4}([-/])[0-9]{1,2}\1[0-9]{1,2}"
    r"(?:[T ][0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?\s?(Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
    r"|[0-9]{4}-[0-9]{1,2}"
)
_MONTH = (
    r"jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?"
    # German, French, Spanish, Italian, Portuguese and Dutch
    r"|j[aä]nner|januar|februar|m[aä]rz|maart|mai|mei|juni|juli|okt(?:ober)?|dez(?:ember)?|mrt"
    r"|janv(?:ier)?\.?|f[eé]vr?(?:ier)?\.?|mars|avr(?:il)?\.?|juin|juil(?:let)?\.?|ao[uû]t|d[eé]c(?:embre)?\.?"
    r"|(?:septem|octo|novem)bre|enero|febrero|marzo|abril|mayo|junio|julio|agosto|(?:septiem|octu|noviem|diciem)bre"
    r"|gennaio|febbraio|aprile|maggio|giugno|luglio|settembre|ottobre|dicembre"
    r"|janeiro|fevereiro|março|maio|junho|julho|(?:setem|outu|novem|dezem)bro"
)
OTHER_DATE = re.compile(
    # Examples: 3/17/2024, 2024.03.17, 17-Mar-2024, March 17, 2024, each with or without a time.
    r"(?:[0-9]{1,2}([-/.])[0-9]{1,2}\1(?:[0-9]{4}|[0-9]{2})|[0-9]{4}([-/.])[0-9]{1,2}\2[0-9]{1,2}"
    rf"|[0-9]{{1,2}}\.?[-\s]?(?:{_MONTH})[-,\s]{{1,2}}[0-9]{{2,4}}|[0-9]{{4}}[-\s](?:{_MONTH})[-\s][0-9]{{1,2}}"
    rf"|(?:{_MONTH})\s[0-9]{{1,2}},?\s[0-9]{{4}}|(?:19|20)[0-9]{{6}}T[0-9]{{4,6}}Z?"
    # months: 03/2024, 2024/03, Mar-24, March 2024
    rf"|(?:0?[1-9]|1[0-2])[-/](?:19|20)[0-9]{{2}}|(?:19|20)[0-9]{{2}}/(?:0?[1-9]|1[0-2])|(?:{_MONTH})[-\s][0-9]{{2,4}})"
    r"(?:,?[\sT][0-9:.]+(?:\s?[ap]\.?m\.?)?(?:\s?(?:[A-Z]{1,4}|[+-][0-9:]+))?)?",
    re.IGNORECASE,
)
OTHER_TIME = re.compile(
    # Examples: 5:30 PM, or 36:15:00 (a duration of a day or more).
    r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?\s?[ap]\.?m\.?|[0-9]{1,4}:[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]+)?)?",
    re.IGNORECASE,
)
_MONEY = r"(?:[$€£¥₹₽₺₩]|R\$|kr\.?|zł|USD|EUR|GBP|CHF|Fr\.|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|BRL)"
DRESSED_NUMBER = re.compile(
    # Numbers with a decimal comma, thousands separators (also the Indian ones), a currency or a percent sign; negative
    # numbers in parentheses or with a final minus; Fortran's exponents (1D5); hexadecimal digits; prices such as 5,-;
    # powers of ten; numbers with errors, 1.5 ± 0.2 and 1.5 (0.2); numbers in quotes of a spreadsheet, ="05" and '05'
    rf"(?=.{{1,100}}\Z)(?:(?P<open>\()?[+\u2212-]?(?:{_MONEY}\s?)?[+\u2212-]?"
    r"(?:[0-9]{1,3}(?:[,.'\u2019\s][0-9]{3})+(?:[.,][0-9]+)?|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?"
    r"|[0-9]*[.,]?[0-9]+)"
    rf"\s?(?:[%‰]|{_MONEY})?-?(?(open)\))"
    r"|[+-]?[0-9]+\.?[0-9]*[dD][+-]?[0-9]+|0[xX][0-9a-fA-F]+"
    r"|[0-9.,]+(?:,-|\s?[\u00d7x*]\s?10(?:\^?[+-]?[0-9]+|[\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+))"
    r"|[+-]?[0-9]+[.,]?[0-9]*\s?(?:(?:\u00b1|\+/-)\s?[0-9]+[.,]?[0-9]*|\([0-9]+[.,]?[0-9]*\))"
    r"|=\"[+-]?[0-9]+[.,]?[0-9]*\"|'[+-]?[0-9]+[.,]?[0-9]*'?)",
    re.IGNORECASE,
)
WITH_UNIT = re.compile(
    r"[+\u2212-]?(?:[0-9]+[.,]?[0-9]*|[.,][0-9]+)\s?([^\s0-9.,:/+-][^\s0-9]{0,11}(?:/[^\s0-9]{1,4})?)"
)
"""A number with a unit, such as 1.5 kg. The group of the pattern matches the unit."""


class Style(NamedTuple):
    """The notation of the cells of a column.

    Attributes:
        decimal: the decimal mark. The value "" means a point. Tables without an option for the decimal mark have this
            value, such as data frames.
        codes: values that mean a missing cell.
        censored: whether cells can be bounds, such as <0.5.
    """

    decimal: Literal["", ".", ","] = ""
    codes: tuple[str, ...] = ()
    censored: bool = False

    def is_number(self, text: str) -> bool:
        """Whether the text is a number in this notation."""
        if self.decimal == ",":
            return "." not in text and NUMBER.fullmatch(text.replace(",", ".", 1)) is not None
        return NUMBER.fullmatch(text) is not None

    def number(self, text: str) -> float:
        """Return the number that a text represents."""
        text = text.replace(",", ".", 1) if self.decimal == "," else text
        return float(text.replace("\u2212", "-"))

    def is_missing(self, text: str) -> bool:
        """Whether a text means a missing cell: it is one of the words `MISSING`, or one of the codes."""
        if text.casefold() in MISSING or text in self.codes:
            return True
        return bool(self.codes) and self.is_number(text) and self.number(text) in self.code_numbers

    @property
    def code_numbers(self) -> tuple[float, ...]:
        """The values of the codes that are numbers. Codes may have a decimal point or the decimal mark of the file."""
        return tuple(
            style.number(code)
            for code in self.codes
            if (style := Style() if NUMBER.fullmatch(code) else self).is_number(code)
        )

    def is_one_sided(self, text: str) -> bool:
        """Whether the text is a one-sided bound, such as <0.5 or >100."""
        return _ONE_SIDED.fullmatch(self._with_points(text)) is not None

    def is_interval(self, text: str) -> bool:
        """Whether the text has the form of an interval, such as 1..2 or [1,2]. The ends may be in the wrong order."""
        return _INTERVAL.fullmatch(self._with_points(text)) is not None

    def bounds(self, text: str) -> tuple[float, float] | None:
        """Return the open interval of a censored cell, or None if the text is not a bound or the interval is empty.

        Inclusive ends, as in <=5, [1,2] and 1..2, are moved outwards to the adjacent float32 number, so that the open
        interval contains them.
        """
        text = self._with_points(text)
        if match := _ONE_SIDED.fullmatch(text):
            comparison, bound = match[1], Style().number(match[2])
            is_upper_bound = comparison[0] in "<\u2264"
            bound = bound if comparison in "<>" else adjacent(bound, up=is_upper_bound)
            return (-float("inf"), bound) if is_upper_bound else (bound, float("inf"))
        if match := _INTERVAL.fullmatch(text):
            first, last = text[0], text[-1]
            low, high = (Style().number(part) for part in match.groups() if part is not None)
            low = low if first == "(" else adjacent(low, up=False)
            high = high if last == ")" else adjacent(high, up=True)
            return (low, high) if low < high else None
        return None

    def _with_points(self, text: str) -> str:
        """Return a bound with decimal points in place of the decimal mark of the file.

        If the decimal mark is a comma and the text contains a point, return "": the number in >1.000 may be 1000.
        """
        if self.decimal != ",":
            return text
        return "" if "." in text.replace("..", "") else text.replace(",", ".")


def parse_hours(text: str) -> float:
    """Return the hours since midnight of a time such as 17:30:05."""
    return sum(float(part) / 60**i for i, part in enumerate(text.split(":")))


def as_iso(text: str) -> str:
    """Return a date in the form that pandas reads: with dashes, and with Z or +HH:MM as the time zone."""
    text = re.sub(r"\s?(UTC|GMT)$", "Z", text.replace("/", "-").replace(",", "."))
    return re.sub(r"(:[0-9.]+\s?[+-][0-9]{2})$", r"\1:00", text)


def is_true(text: str) -> float:
    """Return 1.0 for true and 1, otherwise 0.0."""
    return float(text.casefold() in ("true", "1"))
