"""Parts whose methods use numeric fields as Python numbers, converted for compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

P = TypeVar("P", bound=eqx.Module)

_UNKNOWN = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""The errors of JAX if Python code needs the value of a traced argument."""


def compilable(part: P, use: Callable[[P], Any]) -> P:
    """Return the part with traced numbers if its methods allow that, otherwise with Python numbers.

    A new value of a traced number needs no new compilation. A Python number is part of the program, so that a plugin's
    `float(self.scale)` works.

    Args:
        part: the part to convert.
        use: calls the methods that compiled programs call. It is traced, not run.
    """
    try:
        eqx.filter_eval_shape(use, part)
    except _UNKNOWN:
        return jax.tree.map(lambda leaf: leaf.item() if isinstance(leaf, np.generic) else leaf, part)
    return part
