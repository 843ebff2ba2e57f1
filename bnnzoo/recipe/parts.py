"""Construction of parts from raw values. Each problem is one line with the place, the field and the valid values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from bnnzoo.errors import UsageError, message_of
from bnnzoo.finding import spelled
from bnnzoo.recipe.fields import REQUIRED, Field, fields_of
from bnnzoo.suggestions import near_names


@dataclass(frozen=True)
class Part:
    """A part of a recipe: its name in the zoo, its raw fields, and the place of each field.

    Attributes:
        name: the name in the zoo. It is "" if only fields were given; the fields then apply to the default part.
        fields: the raw value of each field.
        where: the place of each field, such as "mdn.yaml:3:5" or "--model.hidden".
    """

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)


def build(cls: type, part: Part, prefix: str) -> Any:
    """Return an instance of `cls` with the validated fields of `part`.

    Raises:
        UsageError: with one line for each problem: place, field and valid values.
    """
    values, problems = validate(fields_of(cls), part, prefix)
    if problems:
        raise UsageError("\n".join(problems))
    try:
        return cls(**values)
    except ValueError as error:
        raise UsageError(_name_field(message_of(error), part, prefix)) from error


def build_all(requests: Iterable[tuple[type, Part, str]]) -> list[Any]:
    """Build several parts and report all their problems together.

    Args:
        requests: for each part, its class, its raw values, and the prefix of its fields in messages, such as `model`.

    Raises:
        UsageError: with one line for each problem.
    """
    built: list[Any] = []
    problems: list[str] = []
    for cls, part, prefix in requests:
        try:
            built.append(build(cls, part, prefix))
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))
    return built


def validate(fields: list[Field], part: Part, prefix: str) -> tuple[dict[str, Any], list[str]]:
    """Return the converted values of a part, and a line for each problem."""
    field_by_name = {field.name: field for field in fields}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, raw in part.fields.items():
        if name not in field_by_name:
            problems.append(_with_place(part, prefix, name, unknown_key_message(name, field_by_name)))
            continue
        try:
            values[name] = field_by_name[name].accepts.convert(raw)
        except ValueError as error:
            problems.append(_with_place(part, prefix, name, str(error)))
    for field_required in fields:
        if field_required.default is REQUIRED and field_required.name not in part.fields:
            option = spelled(f"{prefix}.{field_required.name}")
            problems.append(f"{option}: missing; must be {field_required.accepts.description}")
    return values, problems


def unknown_key_message(name: str, known_names: Iterable[str]) -> str:
    """Return the message for an unknown key. It proposes a similar name or, if there is none, lists all names."""
    known_names = list(known_names)
    for similar in near_names(name, known_names, 1):
        return f"unknown key; did you mean {similar!r}?"
    return (
        f"unknown key; there are: {', '.join(known_names)}" if known_names else "unknown key; this part has no fields"
    )


def part_from_object(name: str, part: Any) -> Part:
    """Convert an existing part to a `Part` with every field in the form of a recipe."""
    return Part(
        name,
        {field_written.name: plain(getattr(part, field_written.name)) for field_written in fields_of(type(part))},
        {},
    )


def plain(value: Any) -> Any:
    """Return the value of a field in the form of a recipe."""
    if isinstance(value, Real) and not isinstance(value, Integral):
        return float(str(value))  # the shortest decimal number of a float32, without further float64 digits
    return list(value) if isinstance(value, tuple) else value


def _with_place(part: Part, prefix: str, name: str, text: str) -> str:
    where = part.where.get(name, "")
    path = f"{prefix}.{name}" if prefix else name
    if where == spelled(path):
        return f"{where}: {text}"
    return f"{where}: {path}: {text}" if where else f"{path}: {text}"


def _name_field(message: str, part: Part, prefix: str) -> str:
    """Return a constructor's error message with the place of the field or, if it starts with no field, of the part."""
    name, colon, text = message.partition(":")
    if colon and name in part.fields:
        return _with_place(part, prefix, name, text.strip())
    return f"{prefix}: {message}" if part.name == "" else f"{prefix} {part.name}: {message}"
