"""Construction of parts (model, sampler, likelihood, prior) from raw values.

An error message has one line for each problem, with the place, the field and the valid values.
"""

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
    """A part of a recipe: its name, its raw fields, and the place of each field.

    Attributes:
        name: the name under which the part is registered, such as `mlp`. If the user gave only fields, it is "", and
            the fields apply to the default part.
        fields: the raw value of each field.
        where: the place at which the user wrote each field, such as "mdn.yaml:3:5" or "--model.hidden".
    """

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)


def build(cls: type, part: Part, prefix: str) -> Any:
    """Return an instance of `cls` with the validated fields of `part`.

    Raises:
        UsageError: if a field is unknown, missing or invalid. The message has one line for each problem.
    """
    values, problems = validate(fields_of(cls), part, prefix)
    if problems:
        raise UsageError("\n".join(problems))
    try:
        return cls(**values)
    except ValueError as error:
        raise UsageError(_with_field_place(message_of(error), part, prefix)) from error


def build_all(requests: Iterable[tuple[type, Part, str]]) -> list[Any]:
    """Build several parts and report all their problems together.

    Args:
        requests: for each part, its class, its raw values, and the prefix of its fields in messages, such as `model`.

    Raises:
        UsageError: if a part has problems. The message has one line for each problem.
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
    """Return the converted values of the fields of a part, and a message of one line for each problem."""
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
    """Return the message for an unknown key. The message proposes a similar name, or lists all names."""
    known_names = list(known_names)
    for similar in near_names(name, known_names, 1):
        return f"unknown key; did you mean {similar!r}?"
    return (
        f"unknown key; use one of {', '.join(known_names)}" if known_names else "unknown key; this part has no fields"
    )


def part_from_object(name: str, part: Any) -> Part:
    """Return the `Part` of an existing object, such as a sampler, with the values of all its fields."""
    return Part(
        name,
        {field_written.name: plain(getattr(part, field_written.name)) for field_written in fields_of(type(part))},
        {},
    )


def plain(value: Any) -> Any:
    """Return the value of a field in the form of recipes: a tuple as a list, a non-integer number as a float."""
    if isinstance(value, Real) and not isinstance(value, Integral):
        return float(str(value))  # 0.1 of the type float32 becomes 0.1, not 0.10000000149
    return list(value) if isinstance(value, tuple) else value


def _with_place(part: Part, prefix: str, name: str, text: str) -> str:
    where = part.where.get(name, "")
    path = f"{prefix}.{name}" if prefix else name
    if where == spelled(path):
        return f"{where}: {text}"
    return f"{where}: {path}: {text}" if where else f"{path}: {text}"


def _with_field_place(message: str, part: Part, prefix: str) -> str:
    """Return the error message of a constructor with the place of the field whose name begins the message.

    If the message does not begin with the name of a field, the name of the part is added instead.
    """
    name, colon, text = message.partition(":")
    if colon and name in part.fields:
        return _with_place(part, prefix, name, text.strip())
    return f"{prefix}: {message}" if part.name == "" else f"{prefix} {part.name}: {message}"
