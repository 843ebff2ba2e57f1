"""The fields of a sampler that warm-up changed, as a file records them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bnnzoo.samplers import AbstractSampler


def tuned_fields(requested: AbstractSampler, tuned: AbstractSampler) -> dict[str, Any]:
    """Return the fields that `choose` or `tune` has changed.

    The result contains integers, texts and booleans that differ, and numbers that replace a text such as `auto`.
    """
    names = [f.name for f in dataclasses.fields(requested)]
    pairs = [(name, getattr(requested, name), getattr(tuned, name)) for name in names]
    static = {name: after for name, before, after in pairs if isinstance(after, int | str | bool) and before != after}
    # `str` gives the shortest text from which the same float32 number can be read back.
    numbers = {
        name: float(str(after))
        for name, before, after in pairs
        if isinstance(before, str) and isinstance(after, np.floating)
    }
    return static | numbers
