"""Fields of parts (model, sampler, likelihood, prior) as parameters of an estimator, such as `model__hidden`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bnnzoo.errors import UsageError

Part = Any
"""A name, a mapping of a name and fields, or an object of a registered class, such as `bnnzoo.Penalty()`."""
PARTS = ("model", "sampler", "likelihood", "prior")
EXAMPLES: dict[str, str] = {"model": "mlp", "sampler": "nuts", "likelihood": "gaussian", "prior": "normal"}


def part_fields(part: Part) -> dict[str, Any]:
    """Return the fields in a mapping, or all fields of an object; empty for a name or None."""
    if isinstance(part, Mapping):
        return {str(name): value for name, value in part.items() if name != "name"}
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part)} if dataclasses.is_dataclass(part) else {}


def with_field(kind: str, part: Part, field: str, value: Any) -> Part:
    """Return the part with a new value of a field.

    Raises:
        UsageError: if the part is None or "auto", because the fields are then unknown.
    """
    if part is None or part == "auto":
        raise UsageError(
            f"{kind}__{field}: requires a named {kind}; set the {kind} first, such as {kind}={EXAMPLES[kind]!r}"
        )
    if isinstance(part, str):
        return {"name": part, field: value}
    if isinstance(part, Mapping):
        return {**part, field: value}
    return dataclasses.replace(part, **{field: value})
