"""Comparison of the requested and the tuned sampler: the changed fields, in the form in which a file stores them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from bnnzoo.errors import BnnzooError
from bnnzoo.plugins import registry
from bnnzoo.samplers import AbstractSampler


def tuned_fields(requested: AbstractSampler, tuned: AbstractSampler) -> dict[str, Any]:
    """Return the fields that `choose` or `tune` has changed, if their values are finite numbers, texts or booleans."""
    return {name: value for name, after in _changed_fields(requested, tuned) if (value := _plain(after)) is not None}


def refuse_lost_fields(requested: AbstractSampler, tuned: AbstractSampler) -> None:
    """Check that a resumed run can restore every field that `choose` or `tune` has changed.

    Raises:
        BnnzooError: if a changed field is not a finite number, a text or a boolean.
    """
    for name, after in _changed_fields(requested, tuned):
        if _plain(after) is None:
            raise BnnzooError(
                f"{registry.describe_part('samplers', tuned)}: choose or tune changed the field {name}; its new value "
                f"must be a finite number, a text or a boolean, so that the run can be resumed (got {str(after)[:80]})"
            )


def _changed_fields(requested: AbstractSampler, tuned: AbstractSampler) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(requested):
        before, after = getattr(requested, field.name), getattr(tuned, field.name)
        # Fields without `init` follow from the other fields.
        if field.init and after is not before and not eqx.tree_equal(before, after):
            yield field.name, after


def _plain(value: Any) -> Any:
    """Convert a value to a type that JSON supports; None if it is not a finite number, a text or a boolean."""
    if isinstance(value, np.ndarray | jax.Array | np.generic) and value.ndim == 0:
        value = np.asarray(value)[()]
        # `str` gives the shortest text from which the same float32 number can be read back.
        value = float(str(value)) if isinstance(value, np.floating) else value.item()
    is_storable = isinstance(value, int | str) or (isinstance(value, float) and np.isfinite(value))
    return value if is_storable else None
