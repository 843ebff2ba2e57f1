"""Fields of a part (a dataclass, an Equinox module): what each accepts, in words and as its type."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import struct
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt
from typing_extensions import Doc

from bnnzoo.errors import BnnzooError

REQUIRED = dataclasses.MISSING
"""The default of a field that has none."""

_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
_MOST_WHOLE = 2**53
"""Beyond this a number of anything is a slip of the keyboard, and to a float like its neighbours."""
_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Of single precision; smaller ones are zero to XLA."""
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class TargetUnits:
    """Marks a likelihood's field that is measured in the units of the target: `Annotated[float, TargetUnits()]`.

    With `--units data` its value is divided by the standard deviation of each target, and of several targets becomes
    an array [target].
    """


_UNITS_HELP = "in units of the target's standard deviation, or with --units data in the data's"


class Field(NamedTuple):
    """One option of a part, in words and as its type."""

    name: str
    type: str
    default: Any
    allowed: str
    help: str
    accepts: Accepts
    in_target_units: bool = False

    @property
    def default_text(self) -> str:
        """The default as it is typed on the command line; "" where there is none."""
        if self.default is REQUIRED or self.default is None:
            return ""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple | list):
            return ",".join(str(item) for item in self.default)
        return str(self.default)


class Accepts(NamedTuple):
    """What an annotation allows, reduced to what text can say."""

    scalars: tuple[type, ...]
    choices: tuple[Any, ...]
    items: Accepts | None
    nullable: bool
    bounds: tuple[Any, ...]

    @property
    def type(self) -> str:
        names = [kind.__name__ for kind in self.scalars]
        if self.items:
            names.append(f"{self.items.type},...")
        return "|".join([*names, *map(str, self.choices)]) or "text"

    @property
    def limits(self) -> list[str]:
        return [_limit(bound) for bound in self.bounds]

    @property
    def allowed(self) -> str:
        """ "> 0, <= 1", "a | b", or "" for anything of the type."""
        inner = self.items.limits if self.items else []
        parts = [", ".join([*self.limits, *inner])] if self.limits or inner else []
        return " | ".join([*parts, *map(str, self.choices)])

    @property
    def words(self) -> str:
        """What must be typed, as a sentence's end."""
        ways = [" ".join([_WORDS[kind], *filter(None, [" and ".join(self.limits)])]) for kind in self.scalars]
        if self.items:
            ways.append(f"a list, each {self.items.words}")
        if self.choices and not ways:
            return f"one of {', '.join(map(str, self.choices))}"
        return " or ".join([*ways, *map(str, self.choices)])

    def convert(self, raw: Any) -> Any:
        """The value that `raw` (text, or a natural value) stands for.

        Raises:
            ValueError: "must be ...", in words.
        """
        if hasattr(raw, "item") and getattr(raw, "ndim", None) == 0:
            raw = raw.item()
        if raw is None:
            if self.nullable:
                return None
            raise ValueError(f"must be {self.words} (got nothing)")
        for choice in self.choices:
            if raw == choice and isinstance(raw, bool) == isinstance(choice, bool):
                return choice
            if isinstance(raw, str) and raw.strip() == str(choice):
                return choice
        if self.items:
            return tuple(self._item(item, raw) for item in _listed(raw, self.items))
        if isinstance(raw, str | int | float):
            for kind in self.scalars:
                found = _scalar(kind, raw)
                if found is not None:
                    return self._within(found)
        raise ValueError(f"must be {self.words} (got {_short(raw)})")

    def _item(self, item: Any, raw: Any) -> Any:
        assert self.items is not None
        if isinstance(item, str) and not item.strip():
            raise ValueError(f"must be a list without empty entries, each {self.items.words} (got {_short(raw)})")
        try:
            return self.items.convert(item)
        except ValueError as error:
            raise ValueError(f"each {str(error).split(' (got ')[0]} (got {_short(raw)})") from None

    def _within(self, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"must be finite (got {value})")
        ways = " or ".join([" and ".join(self.limits), *map(str, self.choices)])
        if isinstance(value, int | float) and not all(_holds(bound, value) for bound in self.bounds):
            raise ValueError(f"must be {ways} (got {value})")
        if isinstance(value, float):
            single = _single(value)
            if not all(_holds(bound, single) for bound in self.bounds):
                raise ValueError(f"must be {ways} in single precision (got {value}, which is {single} there)")
        return value


def fields_of(cls: type) -> list[Field]:
    """The options of a dataclass: the fields that its constructor takes, without those starting with `_`."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise BnnzooError(f"{cls.__module__}:{cls.__qualname__}: its annotations cannot be read: {error}") from error
    if any(field.name == "name" for field in dataclasses.fields(cls)):
        raise BnnzooError(f"{cls.__module__}:{cls.__qualname__}: a field is called name, as the part is in a recipe")
    return [
        Field(
            field.name,
            accepts.type,
            _default(field),
            accepts.allowed,
            _help(hints[field.name]),
            accepts,
            _is_in_target_units(hints[field.name]),
        )
        for field in dataclasses.fields(cls)
        if field.init and not field.name.startswith("_")
        for accepts in [accepts_of(hints[field.name])]
    ]


def accepts_of(annotation: Any) -> Accepts:
    """What an annotation allows. Members of a union that no text can say (array types) are passed over."""
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
            bounds += _bounds(metadata)
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
    # "7" is an integer before it is a number, and a number before it is text.
    order = [kind for kind in (bool, int, float, str) if kind in scalars]
    return Accepts(tuple(order), tuple(choices), items, nullable, tuple(bounds))


def _bounds(metadata: Iterable[Any]) -> list[Any]:
    flat: list[Any] = []
    for note in metadata:
        flat += list(note) if isinstance(note, GroupedMetadata) else [note]
    return [note for note in flat if isinstance(note, Gt | Ge | Lt | Le)]


def _limit(bound: Any) -> str:
    signs: dict[type, tuple[str, str]] = {
        Gt: (">", "gt"),
        Ge: (">=", "ge"),
        Lt: ("<", "lt"),
        Le: ("<=", "le"),
    }
    sign, attribute = signs[type(bound)]
    return f"{sign} {getattr(bound, attribute)}"


def _holds(bound: Any, value: Any) -> bool:
    tests: dict[type, Callable[[], bool]] = {
        Gt: lambda: value > bound.gt,
        Ge: lambda: value >= bound.ge,
        Lt: lambda: value < bound.lt,
        Le: lambda: value <= bound.le,
    }
    return tests[type(bound)]()


def _single(value: float) -> float:
    """The number as samplers and likelihoods hold it.

    Raises:
        ValueError: where single precision has none like it.
    """
    if abs(value) > _LARGEST or 0 < abs(value) < _SMALLEST:
        raise ValueError(f"must be 0, or from {_SMALLEST:.2g} to {_LARGEST:.2g} in size (got {value})")
    return struct.unpack("f", struct.pack("f", value))[0]


def _scalar(kind: type, raw: str | int | float) -> Any:
    """`raw` as that kind, or None. true is no number, and 1 is no text where a number was possible."""
    if kind is bool:
        return raw if isinstance(raw, bool) else _TRUTHS.get(raw.strip().lower()) if isinstance(raw, str) else None
    if isinstance(raw, bool):
        return None
    if kind is str:
        return getattr(raw, "text", None) or str(raw)  # 1.10 and 007 as a file has them
    # Python's own reading is wider than a recipe's: 1_0, and the digits of every script.
    if isinstance(raw, str) and ("_" in raw or not raw.isascii()):
        return None
    try:
        if kind is float or (isinstance(raw, str) and not raw.strip().lstrip("+-").isdigit()):
            raw = float(raw)
        found = kind(raw)
        if kind is int and not abs(found) < _MOST_WHOLE:
            return None
        return found if found == raw or kind is float or isinstance(raw, str) else None
    except (ValueError, OverflowError):
        return None


def _listed(raw: Any, items: Accepts) -> list[Any]:
    """Several values from one: text is split at commas, except for a list of texts."""
    if isinstance(raw, list | tuple):
        return list(raw)
    if isinstance(raw, str) and str not in items.scalars:
        bare = raw.strip()
        if bare.startswith("("):  # a tuple of one ends with a comma
            bare = bare.removeprefix("(").removesuffix(")").strip().removesuffix(",")
        bare = bare.removeprefix("[").removesuffix("]")
        return [piece.strip() for piece in bare.split(",")] if bare.strip() else []
    return [raw]


def _short(raw: Any) -> str:
    text = raw if isinstance(raw, int | float) else reprlib.repr(raw)
    return str(text).lower() if isinstance(raw, bool) else str(text)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _help(annotation: Any) -> str:
    metadata = getattr(annotation, "__metadata__", ())
    words = next((note.documentation for note in metadata if isinstance(note, Doc)), "")
    return "; ".join(filter(None, [words, _UNITS_HELP if _is_in_target_units(annotation) else ""]))


def _is_in_target_units(annotation: Any) -> bool:
    return any(isinstance(note, TargetUnits) for note in getattr(annotation, "__metadata__", ()))
