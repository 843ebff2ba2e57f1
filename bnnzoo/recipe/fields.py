"""Fields of a part (a dataclass or an Equinox module), with the type and a description of their values."""

from __future__ import annotations

import dataclasses
import math
import operator
import reprlib
import struct
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt
from typing_extensions import Doc

from bnnzoo.errors import BnnzooError

REQUIRED = dataclasses.MISSING
"""The default of a required field."""

_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
_MAX_WHOLE = 2**53
"""Limit for integers. A larger number is probably a mistake: float64 cannot distinguish it from adjacent integers."""
_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Smallest and largest positive normal number of single precision. XLA replaces smaller positive numbers by zero."""
_COMPARISONS: dict[type, tuple[str, Callable[[Any, Any], bool], str]] = {
    Gt: (">", operator.gt, "gt"),
    Ge: (">=", operator.ge, "ge"),
    Lt: ("<", operator.lt, "lt"),
    Le: ("<=", operator.le, "le"),
}
"""For each kind of bound: sign in messages, comparison function, and name of the attribute with the limit."""
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class TargetUnits:
    """Marker for a likelihood field in the units of the target: `Annotated[float, TargetUnits()]`.

    With `--units data`, the value of the field is divided by the standard deviation of each target. If there are
    several targets, the value becomes an array [target].
    """


_UNITS_HELP = "in standard deviations of the target, or, with --units data, in the units of the data"


class Field(NamedTuple):
    """One option of a part: its name, default, help text and accepted values."""

    name: str
    default: Any
    help: str
    accepts: Accepts
    in_target_units: bool = False

    @property
    def default_text(self) -> str:
        """The default in the form that the command line accepts; "" if there is no default."""
        if self.default is REQUIRED or self.default is None:
            return ""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple | list):
            return ",".join(str(item) for item in self.default)
        return str(self.default)


class Accepts(NamedTuple):
    """The values that a field accepts. Only values that can be written in a recipe or on the command line are included.

    Attributes:
        scalars: the accepted types of single values, in the order in which conversion tries them.
        choices: the accepted words or other single values.
        items: the accepted entries if the field is a list, otherwise None.
        nullable: whether None is accepted.
        bounds: the bounds of numbers, such as `Gt(0)`.
    """

    scalars: tuple[type, ...]
    choices: tuple[Any, ...]
    items: Accepts | None
    nullable: bool
    bounds: tuple[Any, ...]

    @property
    def type(self) -> str:
        """Types and choices as text, such as "int|auto"; "text" if there is neither a type nor a choice."""
        names = [kind.__name__ for kind in self.scalars]
        if self.items:
            names.append(f"{self.items.type},...")
        return "|".join([*names, *map(str, self.choices)]) or "text"

    @property
    def limits(self) -> list[str]:
        """Bounds as text, such as "> 0"."""
        comparisons = [(bound, *_COMPARISONS[type(bound)]) for bound in self.bounds]
        return [f"{sign} {getattr(bound, attribute)}" for bound, sign, _, attribute in comparisons]

    @property
    def allowed(self) -> str:
        """Bounds and choices, such as "> 0, <= 1" or "a | b"; "" if every value of the type is accepted."""
        inner = self.items.limits if self.items else []
        parts = [", ".join([*self.limits, *inner])] if self.limits or inner else []
        return " | ".join([*parts, *map(str, self.choices)])

    @property
    def description(self) -> str:
        """Description of the valid values, such as "a number > 0", for messages of the form "must be a number > 0"."""
        ways = [" ".join([_WORDS[kind], *filter(None, [" and ".join(self.limits)])]) for kind in self.scalars]
        if self.items:
            ways.append(f"a list in which each entry is {self.items.description}")
        if self.choices and not ways:
            return f"one of {', '.join(map(str, self.choices))}"
        return " or ".join([*ways, *map(str, self.choices)]) or "a value that a recipe can contain"

    def convert(self, raw: Any) -> Any:
        """Convert `raw` (text, or a Python value) to a value of the field.

        Raises:
            ValueError: if the value is invalid. The message describes the valid values.
        """
        if hasattr(raw, "tolist"):  # an array, or a scalar of NumPy
            raw = raw.tolist()
        if raw is None:
            if self.nullable:
                return None
            raise ValueError(f"must be {self.description} (got nothing)")
        for choice in self.choices:
            if raw == choice and isinstance(raw, bool) == isinstance(choice, bool):
                return choice
            if isinstance(raw, str) and raw.strip() == str(choice):
                return choice
        if self.items:
            return tuple(self._item(item, raw) for item in _split_items(raw, self.items))
        if isinstance(raw, str | int | float):
            for kind in self.scalars:
                value = _scalar(kind, raw)
                if value is not None:
                    return self._check_bounds(value)
        raise ValueError(f"must be {self.description} (got {_short_text(raw)})")

    def _item(self, item: Any, raw: Any) -> Any:
        assert self.items is not None
        if isinstance(item, str) and not item.strip():
            raise ValueError(
                f"must be a list without empty entries, in which each entry is {self.items.description} (got "
                f"{_short_text(raw)})"
            )
        try:
            return self.items.convert(item)
        except ValueError as error:
            entry = f"each entry {str(error).split(' (got ')[0]}"
            words = f"must be {' or '.join(map(str, self.choices))}, or a list in which " if self.choices else ""
            raise ValueError(f"{words}{entry} (got {_short_text(raw)})") from None

    def _check_bounds(self, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"must be finite (got {value})")
        expected = " or ".join([" and ".join(self.limits), *map(str, self.choices)])
        if isinstance(value, int | float) and not all(_holds(bound, value) for bound in self.bounds):
            raise ValueError(f"must be {expected} (got {value})")
        if isinstance(value, float):
            single_value = _to_single_precision(value)
            if not all(_holds(bound, single_value) for bound in self.bounds):
                raise ValueError(f"must be {expected} in single precision (got {value}, which becomes {single_value})")
        return value


def fields_of(cls: type) -> list[Field]:
    """Return the options of a part: the arguments of its constructor whose names do not start with `_`.

    Raises:
        BnnzooError: if the annotations cannot be read, if a field has the name `name`, or if a recipe cannot contain
            the default of a field. A recipe must be able to contain all defaults, because the recipe in the file of a
            run has the values of all fields.
    """
    fields = unchecked_fields_of(cls)
    for field in fields:
        if fault := _fault_of_default(field):
            raise BnnzooError(
                f"{cls.__module__}:{cls.__qualname__}: field {field.name}: its default {fault}; the values of fields "
                "are numbers, text, booleans, None, or flat lists of these"
            )
    return fields


def unchecked_fields_of(cls: type) -> list[Field]:
    """Return the options of a dataclass, like `fields_of`, without a check of their defaults.

    Raises:
        BnnzooError: if the annotations cannot be read, or if a field has the name `name`.
    """
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise BnnzooError(f"{cls.__module__}:{cls.__qualname__}: cannot read the annotations: {error}") from error
    if any(field.name == "name" for field in dataclasses.fields(cls)):
        raise BnnzooError(
            f"{cls.__module__}:{cls.__qualname__}: no field may be called name, because recipes use this key "
            "for the name of the part"
        )
    fields = []
    for field in dataclasses.fields(cls):
        if field.init and not field.name.startswith("_"):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            metadata = getattr(hints[field.name], "__metadata__", ())
            texts = [note.documentation for note in metadata if isinstance(note, Doc)][:1]
            in_target_units = any(isinstance(note, TargetUnits) for note in metadata)
            texts += [_UNITS_HELP] if in_target_units else []
            help_text = "; ".join(filter(None, texts))
            fields.append(Field(field.name, default, help_text, accepts_of(hints[field.name]), in_target_units))
    return fields


def _fault_of_default(field: Field) -> str:
    """Return the reason why a recipe cannot contain the default of a field; empty if it can."""
    if field.default is REQUIRED:
        return ""
    if field.accepts.items and field.accepts.items.items:
        return f"must not be a nested list (got {_short_text(field.default)})"
    try:
        field.accepts.convert(field.default)
    except ValueError as error:
        return str(error)
    return ""


def accepts_of(annotation: Any) -> Accepts:
    """Return the values that an annotation allows.

    Types such as arrays are ignored if they are in a union, because the text of an option cannot express their values.
    """
    scalars: list[type] = []
    choices: list[Any] = []
    bounds: list[Any] = []
    items: Accepts | None = None
    nullable = False
    stack = [annotation]
    while stack:
        kind = stack.pop(0)
        origin = typing.get_origin(kind)
        if origin is typing.Annotated:
            inner, *metadata = typing.get_args(kind)
            stack.insert(0, inner)
            for note in metadata:
                notes = note if isinstance(note, GroupedMetadata) else [note]
                bounds += [bound for bound in notes if type(bound) in _COMPARISONS]
        elif origin in (typing.Union, types.UnionType):
            stack[:0] = typing.get_args(kind)
        elif origin is Literal:
            choices += typing.get_args(kind)
        elif origin in (tuple, list):
            arguments = [argument for argument in typing.get_args(kind) if argument is not Ellipsis]
            items = accepts_of(arguments[0])
        elif kind is type(None):
            nullable = True
        elif kind in _WORDS and kind not in scalars:
            scalars.append(kind)
    if items:
        items, bounds = items._replace(bounds=(*items.bounds, *bounds)), []
    # The text "1" is converted to a boolean if the field accepts booleans, otherwise to an integer, a number or text.
    order = [kind for kind in (bool, int, float, str) if kind in scalars]
    return Accepts(tuple(order), tuple(choices), items, nullable, tuple(bounds))


def _holds(bound: Any, value: Any) -> bool:
    _, compare, attribute = _COMPARISONS[type(bound)]
    return compare(value, getattr(bound, attribute))


def _to_single_precision(value: float) -> float:
    """Return the number rounded to single precision, because samplers and likelihoods store float32.

    Raises:
        ValueError: if the number is too large or too small for single precision.
    """
    if abs(value) > _LARGEST or 0 < abs(value) < _SMALLEST:
        raise ValueError(f"must be 0, or have an absolute value from {_SMALLEST:.2g} to {_LARGEST:.2g} (got {value})")
    return struct.unpack("f", struct.pack("f", value))[0]


def _scalar(kind: type, raw: str | int | float) -> Any:
    """Return `raw` as a value of the type `kind`, or None if `raw` has another type. A boolean is not a number."""
    if kind is bool:
        return raw if isinstance(raw, bool) else _TRUTHS.get(raw.strip().lower()) if isinstance(raw, str) else None
    if isinstance(raw, bool):
        return None
    if kind is str:
        return getattr(raw, "text", None) or str(raw)  # the spelling in the file, so that 1.10 and 007 are unchanged
    # Python also converts 1_0 and the digits of other scripts to numbers. In a recipe such numbers are errors.
    if isinstance(raw, str) and ("_" in raw or not raw.isascii()):
        return None
    try:
        if kind is float or (isinstance(raw, str) and not raw.strip().lstrip("+-").isdigit()):
            raw = float(raw)
        value = kind(raw)
        if kind is int and not abs(value) < _MAX_WHOLE:
            return None
        return value if value == raw or kind is float or isinstance(raw, str) else None
    except (ValueError, OverflowError):
        return None


def _split_items(raw: Any, items: Accepts) -> list[Any]:
    """Return the entries of a list. Text is split at commas, unless text itself is a valid entry."""
    if isinstance(raw, list | tuple):
        return list(raw)
    if isinstance(raw, str) and str not in items.scalars:
        content = raw.strip()
        if content.startswith("("):  # a tuple with one element ends with a comma
            content = content.removeprefix("(").removesuffix(")").strip().removesuffix(",")
        content = content.removeprefix("[").removesuffix("]")
        return [piece.strip() for piece in content.split(",")] if content.strip() else []
    return [raw]


def _short_text(raw: Any) -> str:
    text = raw if isinstance(raw, int | float) else reprlib.repr(raw)
    return str(text).lower() if isinstance(raw, bool) else str(text)
