"""Values of every option, from the registries and the recipe's fields: all choices, and small numbers.

An option of free text needs a line in `FREE`; `test_coverage.py` reports a missing line.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from bnnzoo.data.columns.reading_options import SEPARATORS
from bnnzoo.plugins import registry
from bnnzoo.recipe import PARTS, RUN_FIELDS, Field, fields_of

LENGTHS = {"warmup": 5, "draws": 5, "chains": 2, "start_steps": 250}
"""The lengths of every case."""
OF_THE_CASE = {"data", *LENGTHS}
"""Options that every case sets through its data and its lengths."""
FREE: dict[str, list[Any]] = {
    "target": [("y",)],
    "columns": [("a", "colour"), ("a", "b")],
    "drop": [("b",), ("colour",)],
    "categories": [("colour",)],
    "task": ["said"],
    "exposure": ["time"],
    "missing_code": [("-999",), ("-999", "colour=unknown")],
    "separator": [*SEPARATORS, ";"],
    "skip_rows": [("1", "3"), ("1,3",)],
    "encoding": ["latin-1", "utf-16"],
    "test_fraction": [0.25],
    "split_seed": [1],
    "likelihood_power": [0.5],
    "stochastic": ["all", "last", "*", "identified", "linearised"],
    "thin": [2],
    "budget": ["1s"],
    "seed": [3],
    "init": ["map", "prior"],  # given requires a network in Python, see test_own_network
    "start_held_out": [0.25],
    "mesh": ["chains=2,data=2"],
    "keep_at": ["new rows"],
    "checkpoint_every": [0.0],
}
"""Values of options whose type does not list them; a case replaces `said` and `new rows` by its own task and rows."""
SMALL: dict[str, Any] = {
    "model.hidden": (3,),
    "model.channels": (2,),
    "model.groups": 2,
    "model.components": 2,
    "sampler.batch_size": 6,
    "sampler.num_batches": 3,
    "sampler.budget": 200,
    "sampler.num_steps": 2,
    "sampler.max_tree_depth": 2,
    "sampler.warmup_tree_depth": 2,
    "sampler.cycle": 4,
    "sampler.block": 8,
    "sampler.rank": 2,
    "sampler.interval": 2,
    "sampler.masks": 2,
    "sampler.log_bound": 0.0,
    "likelihood.scale": 0.5,
    "sampler.step_size": 1e-3,
}
"""Numbers that replace defaults, so that a case takes only seconds."""
_CANDIDATES = (1, 0.5, 2, 10, 100)


@functools.cache
def run_values() -> dict[str, list[Any]]:
    """Return every option of a run that a case may leave out, with its test values."""
    return {name: _values(name, field) for name, field in RUN_FIELDS.items() if name not in OF_THE_CASE}


@functools.cache
def part_values(kind: str, name: str) -> dict[str, list[Any]]:
    """Return every field of a part as `sampler.step_size`, with its test values."""
    cls = registry.load(f"{kind}s", name)
    return {f"{kind}.{field.name}": _values(f"{kind}.{field.name}", field) for field in fields_of(cls)}


def _values(name: str, field: Field) -> list[Any]:
    if name in FREE:
        return FREE[name]
    accepts = field.accepts
    values = [*accepts.choices, *([True, False] if bool in accepts.scalars else [])]
    if name in SMALL:
        return [*values, SMALL[name]]
    if accepts.scalars and bool not in accepts.scalars and str not in accepts.scalars:
        values.append(_number(field))
    return values


def _number(field: Field) -> Any:
    """Return the default if it is a number, otherwise the first allowed candidate."""
    if isinstance(field.default, int | float) or hasattr(field.default, "dtype"):
        return field.accepts.convert(str(field.default))
    for candidate in _CANDIDATES:
        try:
            return field.accepts.convert(candidate)
        except ValueError:
            continue
    raise LookupError(f"{field.name}: no candidate is allowed; add a value to SMALL")


def documented() -> dict[str, list[Any]]:
    """Return every option with its values, by name; options of parts are named like `sampler nuts.step_size`."""
    values: dict[str, list[Any]] = dict(run_values())
    for kind in PARTS:
        for name in registry.entries(f"{kind}s"):
            values[f"{kind}"] = [*values.get(kind, []), name]
            values |= {labelled(kind, name, field): value for field, value in part_values(kind, name).items()}
    return values


def labelled(kind: str, name: str, field: str) -> str:
    """Return the name of a part's field in the coverage table: `sampler nuts.step_size`."""
    return f"{kind} {name}{field.removeprefix(kind)}"


def flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with values of Python's own types."""
    return {name: value.item() if hasattr(value, "item") else value for name, value in options.items()}
